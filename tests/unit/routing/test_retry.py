"""Whether an attempt may be repeated, after how long, and whether its service can bear it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.journey import Ended, Outcome, Tried
from routing.core.plan import Policy, Step, Stop, Wait, next_step
from routing.core.retry import Budget, BudgetRules, backoff_ms, may_repeat
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_attempt, chances, tables
from tests.unit.routing.builders import a_rule, a_table

HARMLESS = "harmless"  # may always be repeated
SAFE = "safe"  # may be repeated when the capability is idempotent
NEVER = "never"

TABLE = [
    pytest.param(Outcome(Ended.NOT_STARTED), HARMLESS, id="not started"),
    pytest.param(Outcome(Ended.NOT_STARTED, retryable=True), HARMLESS, id="not started, retryable"),
    pytest.param(Outcome(Ended.NOT_STARTED, retryable=False), NEVER, id="not started, but the node says never"),
    pytest.param(Outcome(Ended.BROKEN), SAFE, id="broken connection"),
    pytest.param(Outcome(Ended.BROKEN, retryable=False), NEVER, id="broken, but the node says never"),
    pytest.param(Outcome(Ended.SILENT), SAFE, id="fell silent"),
    pytest.param(Outcome(Ended.FAILED, retryable=True), SAFE, id="failed, retryable"),
    pytest.param(Outcome(Ended.FAILED, retryable=False), NEVER, id="failed, not retryable"),
    pytest.param(Outcome(Ended.FAILED), NEVER, id="failed, nothing said"),
    pytest.param(Outcome(Ended.TIMED_OUT), NEVER, id="the deadline has passed"),
    pytest.param(Outcome(Ended.INVALID_OUTPUT), NEVER, id="an output that will not get better"),
    pytest.param(Outcome(Ended.TOO_LARGE), NEVER, id="an answer that will not get smaller"),
]


@pytest.mark.parametrize(("outcome", "verdict"), TABLE)
def test_what_may_be_repeated(outcome, verdict):
    assert may_repeat(outcome, idempotent=True) is (verdict in (HARMLESS, SAFE))
    assert may_repeat(outcome, idempotent=False) is (verdict is HARMLESS)


@given(
    ended=st.sampled_from(Ended),
    retryable=st.sampled_from([None, True, False]),
    status=st.integers(100, 599) | st.none(),
)
def test_what_is_not_idempotent_is_repeated_only_if_it_had_not_started(ended, retryable, status):
    outcome = Outcome(ended, retryable=retryable, http_status=status)
    assert may_repeat(outcome, idempotent=False) is (ended is Ended.NOT_STARTED and retryable is not False)


@given(retry=st.integers(1, 10), base_ms=st.integers(0, 60_000), chance=st.floats(0, 1, exclude_max=True))
def test_the_rest_doubles_and_is_scattered_by_half_of_itself(retry, base_ms, chance):
    middle = base_ms * 2 ** (retry - 1)
    assert middle * 0.5 - 1 <= backoff_ms(retry, base_ms=base_ms, chance=chance) <= middle * 1.5 + 1


def test_the_first_rest_is_the_base_delay_on_average():
    assert backoff_ms(1, base_ms=100, chance=0.5) == 100
    assert backoff_ms(2, base_ms=100, chance=0.5) == 200


def test_there_is_no_retry_before_the_first():
    with pytest.raises(ValueError, match="retry 0"):
        backoff_ms(0, base_ms=100, chance=0.5)


# --- The budget ------------------------------------------------------------------------------------------------------

T = 1000.0
RULES = BudgetRules()


def test_the_floor_holds_without_any_calls():
    assert Budget().left(RULES, T) == 10
    assert Budget().after(RULES, T, retries=10).left(RULES, T) == 0


def test_a_fifth_of_the_recent_calls_may_be_retries():
    budget = Budget().after(RULES, T, calls=100)
    assert budget.left(RULES, T) == 20
    assert budget.after(RULES, T, retries=20).left(RULES, T) == 0
    assert budget.left(RULES, T + 10) == 10, "old calls count no more"


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 40), st.integers(0, 40)), max_size=80))
def test_retries_within_the_budget_never_exceed_it_in_any_window(history):
    budget, now_s, seen = Budget(), T, []
    for rest_s, calls, wanted in history:
        now_s += rest_s
        budget = budget.after(RULES, now_s, calls=calls)
        granted = min(wanted, max(0, budget.left(RULES, now_s)))
        budget = budget.after(RULES, now_s, retries=granted)
        seen.append((int(now_s), calls, granted))
        recent = [one for one in seen if one[0] > now_s - RULES.window_s]
        total_calls, retries = sum(c for _, c, _ in recent), sum(r for _, _, r in recent)
        if granted:
            assert retries <= max(RULES.floor, int(RULES.share * total_calls))


BROKEN = an_attempt(Ended.BROKEN, "a/1")


def after(tried: Tried, *, spent: str | None = "the retry budget of a is spent", **facts: Any) -> Step:
    journey = a_journey(None, tried, idempotent=True)
    found = tables(a_node("a/1"), a_node("b/1"), **facts)
    return next_step(journey, found, KnownLoad(spent=spent), Policy(), now_millis=NOW + 5, chance=chances([0.5]))


def test_a_spent_budget_ends_the_call_with_its_last_error():
    assert isinstance(after(BROKEN, spent=None), Wait)
    step = after(BROKEN)
    assert isinstance(step, Stop)
    assert step.ending.code == "upstream_error"
    assert step.ending.detail.endswith("; the retry budget of a is spent")


@pytest.mark.parametrize("action", ["retry", "next_route"])
def test_fallback_rules_do_not_get_round_a_spent_budget(action):
    rule = a_rule("r", fallback_rules=[{"condition": "error", "action": action}])
    routes = a_table(rule, a_rule("s", priority=-1))
    step = after(an_attempt(Ended.BROKEN, "a/1", route_id="r"), routes=routes)
    assert isinstance(step, Stop)
    assert "the retry budget of a is spent" in step.ending.detail


@pytest.mark.parametrize(
    "free",
    [
        pytest.param(an_attempt(Ended.NOT_STARTED, "a/1"), id="never sent"),
        pytest.param(an_attempt(Ended.BROKEN, "a/1", ours=True), id="the reach's own process was gone"),
    ],
)
def test_what_is_not_the_nodes_failure_costs_nothing_of_it(free):
    assert isinstance(after(free), Wait)
