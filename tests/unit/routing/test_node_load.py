"""What a process remembers of its nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.node import Health
from routing.core.breaker import FRESH, Breaker, State, after_attempt
from routing.core.retry import Budget
from routing.health import NodeLoad
from tests.factories import a_candidate, a_node, an_offer, tables

KEY = ("summarizer", "n1")


@pytest.fixture
def load() -> NodeLoad:
    return NodeLoad(decay_s=10, suspicion_s=60)


def test_others_hear_of_a_suspicion_once(load):
    assert load.suspect(KEY)
    assert not load.suspect(KEY)
    assert KEY in load.suspects()


def test_a_suspicion_fades(load):
    load.suspicion_s = 0
    load.suspect(KEY)
    assert KEY not in load.suspects()


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.NOT_READY, Health.STARTING])
def test_what_the_tables_know_is_theirs_to_end(load, health):
    load.suspect(KEY)
    load.heed(tables(a_node(health=health)))
    assert KEY not in load.suspects()
    assert not load.suspect(KEY), "and still nobody is told twice"


def test_tables_that_do_not_know_of_it_yet_change_nothing(load):
    load.suspect(KEY)
    load.heed(tables(a_node(health=Health.READY)))
    assert KEY in load.suspects()


def test_nodes_that_are_gone_are_forgotten(load):
    load.observe(KEY, 0.1)
    load.suspect(KEY)
    load.heed(tables())
    assert not load.latencies and not load.told and KEY not in load.suspects()


# --- Breakers --------------------------------------------------------------------------------------------------------

SERVICE = ("summarizer", "")


class Times:
    """A clock that a test turns."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def judging(times) -> NodeLoad:
    return NodeLoad(decay_s=10, clock=times)


def fail(load: NodeLoad, times: Times, count: int, key: tuple[str, str] = KEY) -> None:
    for _ in range(count):
        load.judge(key, failed=True, began_s=times.now_s)


def test_a_nodes_breaker_opens_before_that_of_its_service(judging, times):
    fail(judging, times, 4)
    assert not judging.shut()
    fail(judging, times, 1)
    assert list(judging.shut()) == [KEY]
    assert judging.is_open(KEY)
    fail(judging, times, 5, ("summarizer", "n2"))
    assert set(judging.shut()) == {KEY, ("summarizer", "n2"), SERVICE}
    assert judging.is_open(("summarizer", "n3")), "behind its service's breaker"


def test_one_attempt_is_let_through_and_its_end_decides(judging, times):
    fail(judging, times, 5)
    assert judging.shut()[KEY].until_s == times.now_s + 5
    times.now_s += 5
    assert not judging.shut()
    judging.claim(KEY)
    assert judging.shut()[KEY].state is State.TRYING
    assert not judging.is_open(KEY), "the trial itself may go on"
    began_s, times.now_s = times.now_s, times.now_s + 0.2
    judging.judge(KEY, failed=False, began_s=began_s)
    assert not judging.shut()
    assert not judging.opened


def test_a_trial_that_was_never_sent_leaves_the_place_to_another(judging, times):
    fail(judging, times, 5)
    times.now_s += 5
    judging.claim(KEY)
    judging.give_back(a_candidate())
    assert not judging.shut()


def test_others_hear_of_what_turns(judging, times):
    heard = []
    judging.when_turned.append(lambda key, breaker: heard.append((key, breaker.opened_at_s)))
    fail(judging, times, 5)
    times.now_s += 5
    judging.judge(KEY, failed=False, began_s=times.now_s)
    assert heard == [(KEY, 1000.0), (KEY, None)]
    assert judging.openings == 1


def test_retries_are_charged_to_the_service_that_failed(judging, times):
    for _ in range(10):
        judging.count_retry("summarizer")
    assert judging.retry_refusal("summarizer") == (
        "the retry budget of summarizer is spent: 10 retries for 0 calls in 10 s"
    )
    assert judging.retry_refusal("other") is None
    for _ in range(55):
        judging.count_call("summarizer")
    assert judging.retries_left("summarizer") == 1
    times.now_s += 10
    assert judging.retries_left("summarizer") == 10


def test_a_declared_rate_is_a_second_at_once_and_comes_back(judging, times):
    rated = a_candidate("summarizer/n1", an_offer(rate_per_s=4))
    key = (*KEY, "file_summary")
    for left in (3, 2, 1, 0):
        judging.take(rated)
        assert judging.tokens(key, 4) == left
    assert judging.next_token_s(key, 4) == 0.25
    judging.give_back(rated)
    assert judging.tokens(key, 4) == 1
    times.now_s += 10
    assert judging.tokens(key, 4) == 4
    judging.heed(tables(a_node("other/n2")))
    assert not judging.buckets


def test_breakers_of_who_is_gone_are_forgotten(judging, times):
    fail(judging, times, 10)
    judging.heed(tables(a_node("summarizer/n2")))
    assert list(judging.breakers) == [SERVICE]
    judging.heed(tables(a_node("other/n2")))
    assert not judging.breakers
    assert not judging.shut()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("later"), st.floats(0, 3), st.none()),
            st.tuples(st.sampled_from(["well", "failed"]), st.sampled_from(["n1", "n2"]), st.floats(0, 2)),
            st.tuples(st.sampled_from(["call", "look"]), st.none(), st.none()),
            st.tuples(st.just("retry"), st.none(), st.none()),
        ),
        max_size=80,
    )
)
def test_what_is_only_counted_comes_to_the_same_as_each_by_itself(deeds):
    """`settle` takes in a second's attempts at once; it is as if each had been judged when it ended."""
    times = Times()
    load = NodeLoad(decay_s=10, clock=lambda: times.now_s)
    breakers: dict[tuple[str, str], Breaker] = {}
    budget = Budget()
    for deed, what, ago_s in deeds:
        now_s = times.now_s
        match deed:
            case "later":
                times.now_s += what
            case "look":
                assert load.retries_left("summarizer") == budget.left(load.budget_rules, now_s)
            case "call":
                load.count_call("summarizer")
                budget = budget.after(load.budget_rules, now_s, calls=1)
            case "retry":
                load.count_retry("summarizer")
                budget = budget.after(load.budget_rules, now_s, retries=1)
            case _:
                key, failed, began_s = ("summarizer", what), deed == "failed", now_s - ago_s
                load.judge(key, failed=failed, began_s=began_s)
                for one in (key, SERVICE):
                    facts = {"failed": failed, "began_s": began_s, "now_s": now_s}
                    breakers[one] = after_attempt(breakers.get(one, FRESH), load.rules_of(one), **facts)
        open_ones = {key for key, breaker in breakers.items() if breaker.opened_at_s is not None}
        assert load.opened.keys() == open_ones
    assert load.retries_left("summarizer") == budget.left(load.budget_rules, times.now_s)
    assert load.breakers == breakers
