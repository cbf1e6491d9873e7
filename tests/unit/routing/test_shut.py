"""Nothing goes through an open breaker, even where that empties a pool; and the receipt names it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.breaker import Shut, State
from routing.core.plan import Attempt, Policy, Step, Stop, next_step
from routing.core.tables import Tables
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_envelope, an_offer, chances, tables
from tests.unit.routing.builders import a_rule, a_table

NOW_S = NOW / 1000
OPEN = Shut(State.OPEN, NOW_S + 3.2, 8, 6)
TRYING = Shut(State.TRYING, NOW_S + 5)
DRAWS = (0.0, 0.3, 0.6, 0.999)


def decide(found: Tables, shut: dict[str, Shut], *, draw: float = 0.5, flying: Any = None, **asked: Any) -> Step:
    load = KnownLoad(flying, shut=shut)
    journey = a_journey(an_envelope(**asked))
    return next_step(journey, found, load, Policy(), now_millis=NOW, chance=chances([draw]))


def stopped(found: Tables, shut: dict[str, Shut], **asked: Any) -> Stop:
    step = decide(found, shut, **asked)
    assert isinstance(step, Stop)
    return step


@pytest.mark.parametrize("strategy", ["weighted_random", "least_loaded", "latency_aware", "cost_aware", "sticky"])
@pytest.mark.parametrize("name", ["a/1", "a"])
def test_what_is_behind_an_open_breaker_takes_nothing(strategy, name):
    rule = {"type": strategy, "key": "caller"} if strategy == "sticky" else {"type": strategy}
    found = tables(a_node("a/1"), a_node("b/1"), routes=a_table(a_rule("r", strategy=rule)))
    for draw in DRAWS:
        step = decide(found, {name: OPEN}, draw=draw)
        assert isinstance(step, Attempt)
        assert step.chosen.node.key == ("b", "1")


def test_the_receipt_names_the_breaker_its_state_and_for_how_long():
    step = decide(tables(a_node("a/1"), a_node("b/1")), {"a/1": OPEN})
    assert isinstance(step, Attempt)
    assert step.why.left_out == {"its breaker is open": 1}
    assert step.why.notes == ("the breaker of a/1 is open after 6 errors of 8: one attempt may try again in 3.2 s",)


@pytest.mark.parametrize("shut", [{"a/1": OPEN, "b/1": OPEN}, {"a": OPEN, "b/1": OPEN}, {"a": OPEN, "b": OPEN}])
def test_open_means_open_even_if_that_empties_a_pool(shut):
    step = stopped(tables(a_node("a/1"), a_node("b/1")), shut)
    assert (step.ending.code, step.ending.retry_after_ms) == ("circuit_open", 3200)


def test_the_first_that_may_be_tried_again_says_when_to_come_back():
    later = Shut(State.OPEN, NOW_S + 4.5)
    both = {"a/1": OPEN, "a": later, "b/1": Shut(State.OPEN, NOW_S + 4)}
    assert stopped(tables(a_node("a/1"), a_node("b/1")), both).ending.retry_after_ms == 4000


def test_while_one_attempt_is_tried_the_others_wait_a_moment():
    step = stopped(tables(a_node("a/1")), {"a/1": TRYING})
    assert (step.ending.code, step.ending.retry_after_ms) == ("circuit_open", 1000)
    assert "half-open" in step.why.notes[0]


def test_a_bad_payload_stays_the_callers_mistake():
    found = tables(a_node("a/1", an_offer(input={"type": "object", "required": ["x"]})))
    assert stopped(found, {"a/1": OPEN}, payload={}).ending.code == "invalid_payload"


def test_who_is_full_beside_open_breakers_makes_it_rate_limited():
    found = tables(a_node("a/1", max_concurrency=1), a_node("b/1"))
    assert stopped(found, {"b/1": OPEN}, flying={"a/1": 1}).ending.code == "rate_limited"


def test_a_rule_for_open_breakers_keeps_their_code():
    rule = {"condition": "circuit_open", "action": "return_503", "wait_before_retry_ms": 700}
    found = tables(a_node("a/1"), routes=a_table(a_rule("r", fallback_rules=[rule])))
    ending = stopped(found, {"a/1": OPEN}).ending
    assert (ending.code, ending.retry_after_ms) == ("circuit_open", 700)


def test_a_rule_for_open_breakers_hands_the_call_on():
    rule = {"condition": "circuit_open", "action": "route_to", "service": "b"}
    strategy = {"type": "exact", "service": "a"}
    routes = a_table(a_rule("r", strategy=strategy, fallback_rules=[rule]))
    step = decide(tables(a_node("a/1"), a_node("b/1"), routes=routes), {"a": OPEN})
    assert isinstance(step, Attempt)
    assert step.chosen.node.service_id == "b"


@given(
    shut=st.dictionaries(st.sampled_from(["a", "b", "a/1", "a/2", "b/1", "c/1"]), st.sampled_from([OPEN, TRYING])),
    strategy=st.sampled_from(["weighted_random", "least_loaded", "latency_aware", "cost_aware"]),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_nothing_is_ever_sent_behind_a_shut_breaker_and_refused_only_when_all_are(shut, strategy, draw):
    names = ("a/1", "a/2", "b/1", "c/1")
    found = tables(*map(a_node, names), routes=a_table(a_rule("r", strategy={"type": strategy})))
    step = decide(found, shut, draw=draw)
    free = {name for name in names if name not in shut and name.partition("/")[0] not in shut}
    if isinstance(step, Attempt):
        assert "/".join(step.chosen.node.key) in free
    else:
        assert isinstance(step, Stop)
        assert step.ending.code == "circuit_open"
        assert not free
