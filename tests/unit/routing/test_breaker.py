"""Whether anything is sent, by how the last attempts went."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.journey import Ended, Outcome
from routing.core.breaker import (
    FRESH,
    Breaker,
    BreakerRules,
    State,
    after_attempt,
    is_error,
    opened,
    trial_lost,
    tried,
    with_more,
)

RULES = BreakerRules(min_calls=10)
T = 1000.0


def after(outcomes: str, breaker: Breaker = FRESH, *, at: float = T, every_s: float = 0.0) -> Breaker:
    """`x` failed, `.` went well."""
    for number, outcome in enumerate(outcomes):
        now_s = at + number * every_s
        breaker = after_attempt(breaker, RULES, failed=outcome == "x", began_s=now_s, now_s=now_s)
    return breaker


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        pytest.param("xxxxxxxxx", State.CLOSED, id="nine failures are too few to judge"),
        pytest.param("xxxxxxxxxx", State.OPEN, id="ten are enough"),
        pytest.param(".....xxxxx", State.CLOSED, id="half is not more than half"),
        pytest.param(".....xxxxxx", State.OPEN, id="one more is"),
        pytest.param("xxxxxx....", State.CLOSED, id="a success opens nothing"),
    ],
)
def test_when_it_opens(outcomes, state):
    assert after(outcomes).state(RULES, T) is state


def test_what_has_left_the_window_counts_no_more():
    early = after("xxxxxxxxx")
    late = after_attempt(early, RULES, failed=True, began_s=T + 10, now_s=T + 10)
    assert late.state(RULES, T + 10) is State.CLOSED
    assert late.counts(RULES, T + 10) == (1, 1)


def test_from_open_to_half_open_to_closed():
    breaker = after("x" * 10)
    assert breaker.state(RULES, T + 4.999) is State.OPEN
    assert breaker.turns_at_s(RULES, T + 1) == T + 5
    assert breaker.state(RULES, T + 5) is State.HALF_OPEN
    breaker = tried(breaker, T + 5)
    assert breaker.state(RULES, T + 5.1) is State.TRYING
    closed = after_attempt(breaker, RULES, failed=False, began_s=T + 5, now_s=T + 5.2)
    assert (closed.state(RULES, T + 5.2), closed.seconds) == (State.CLOSED, ())


def test_a_failed_trial_opens_it_anew():
    breaker = after_attempt(tried(after("x" * 10), T + 5), RULES, failed=True, began_s=T + 5, now_s=T + 6)
    assert breaker.state(RULES, T + 10.9) is State.OPEN
    assert breaker.state(RULES, T + 11) is State.HALF_OPEN


def test_a_trial_that_told_nothing_leaves_the_place_to_another():
    assert trial_lost(tried(after("x" * 10), T + 5)).state(RULES, T + 5) is State.HALF_OPEN


def test_a_trial_that_takes_too_long_leaves_the_place_to_another():
    breaker = tried(after("x" * 10), T + 5)
    assert breaker.state(RULES, T + 9.9) is State.TRYING
    assert breaker.state(RULES, T + 10) is State.HALF_OPEN


@pytest.mark.parametrize("failed", [True, False])
def test_late_ends_of_what_was_sent_before_change_nothing(failed):
    breaker = after("x" * 10)
    for ended_s in (T + 1, T + 7):
        assert after_attempt(breaker, RULES, failed=failed, began_s=T - 1, now_s=ended_s) == breaker
    trying = tried(breaker, T + 5)
    assert after_attempt(trying, RULES, failed=failed, began_s=T - 1, now_s=T + 6) == trying
    closed = after_attempt(trying, RULES, failed=False, began_s=T + 5, now_s=T + 6)
    assert after_attempt(closed, RULES, failed=failed, began_s=T - 1, now_s=T + 8) == closed


def test_what_others_have_seen_opens_it_too():
    assert with_more(after("xxxxx"), RULES, 5, 5, T).state(RULES, T) is State.OPEN
    assert with_more(after("xxxxx"), RULES, 50, 5, T).state(RULES, T) is State.CLOSED
    breaker = after("x" * 10)
    assert with_more(breaker, RULES, 100, 0, T + 1) == breaker, "open is open"


def test_an_opening_elsewhere_is_taken_over_unless_it_is_older():
    breaker = opened(FRESH, RULES, (10, 9), T)
    assert breaker.state(RULES, T + 1) is State.OPEN
    later = opened(breaker, RULES, (1, 1), T + 6)
    assert opened(later, RULES, (10, 9), T) == later


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(Ended.SUCCEEDED), False),
        (Outcome(Ended.NOT_STARTED, "connection refused", unreached=True), True),
        (Outcome(Ended.NOT_STARTED, "it became unable"), None),
        (Outcome(Ended.NOT_STARTED, http_status=503), True),
        (Outcome(Ended.NOT_STARTED, http_status=429), False),
        (Outcome(Ended.BROKEN, unreached=True), True),
        (Outcome(Ended.SILENT), True),
        (Outcome(Ended.TIMED_OUT, "its answer may have come to a process that is gone", ours=True), None),
        (Outcome(Ended.FAILED, http_status=500), True),
        (Outcome(Ended.FAILED, http_status=500, retryable=False), True),
        (Outcome(Ended.FAILED, http_status=301), True),
        (Outcome(Ended.FAILED, http_status=422), False),
        (Outcome(Ended.FAILED, "reported", retryable=True), True),
        (Outcome(Ended.FAILED, "reported", retryable=False), False),
        (Outcome(Ended.INVALID_OUTPUT), False),
        (Outcome(Ended.TOO_LARGE), False),
    ],
)
def test_what_speaks_against_a_node(outcome, expected):
    assert is_error(outcome, 0.0, least_timeout_s=1.0) is expected


@pytest.mark.parametrize(("elapsed_s", "expected"), [(0.05, None), (1.0, True)])
def test_a_callers_short_deadline_says_nothing_of_a_node(elapsed_s, expected):
    assert is_error(Outcome(Ended.TIMED_OUT), elapsed_s, least_timeout_s=1.0) is expected


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3)), max_size=200))
def test_while_it_is_open_nothing_gets_through_and_it_opens_only_with_cause(history):
    """Whatever happens, in whatever rhythm: an attempt is sent only while closed, or as the one trial."""
    breaker, now_s = FRESH, T
    for failed, rest_s in history:
        now_s += rest_s
        state = breaker.state(RULES, now_s)
        if state in (State.OPEN, State.TRYING):
            continue
        if state is State.HALF_OPEN:
            breaker = tried(breaker, now_s)
            assert breaker.state(RULES, now_s) is State.TRYING
        before = breaker
        breaker = after_attempt(breaker, RULES, failed=failed, began_s=now_s, now_s=now_s)
        has_opened = before.opened_at_s is None and breaker.opened_at_s is not None
        if has_opened:
            attempts, failures = before.counts(RULES, now_s)
            assert failed and attempts + 1 >= RULES.min_calls
            assert failures + 1 > RULES.error_share * (attempts + 1)
        assert len(breaker.seconds) <= RULES.window_s + 1
