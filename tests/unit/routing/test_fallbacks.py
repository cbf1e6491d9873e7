"""What the fallback rules of a route do with a call that found nobody, or whose attempt was in vain."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from receipts.core.journey import Ended, Journey
from registry.core.node import Health
from routing.core.plan import Attempt, Fallback, Policy, Step, Stop, Wait, after_fallback, next_step
from routing.core.tables import Tables
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_attempt, an_envelope, an_offer, chances, tables
from tests.unit.routing.builders import a_rule, a_table

GONE = {"strategy": {"type": "exact", "service": "gone"}}
KNOWN = {"file_summary": "", "file_digest": ""}


def decide(journey: Journey, found: Tables, *, at: int = NOW, flying: dict[str, int] | None = None) -> Step:
    return next_step(journey, found, KnownLoad(flying), Policy(), now_millis=at, chance=chances([0.5]))


def attempted(journey: Journey, found: Tables, **more: Any) -> Attempt:
    step = decide(journey, found, **more)
    assert isinstance(step, Attempt)
    return step


def rested(journey: Journey, found: Tables, **more: Any) -> tuple[Wait, Journey]:
    """The rest that a rule asks for, and the journey after it."""
    step = decide(journey, found, **more)
    assert isinstance(step, Wait)
    for fallback in step.fallbacks:
        journey = after_fallback(journey, fallback)
    return step, journey


def stopped(journey: Journey, found: Tables, **more: Any) -> Stop:
    step = decide(journey, found, **more)
    assert isinstance(step, Stop)
    return step


def rule(action: str, condition: str = "no_available_node", **more: Any) -> dict[str, Any]:
    return {"condition": condition, "action": action, **more}


def with_rules(*rules: dict[str, Any], nodes: Any = (), **route: Any) -> Tables:
    table = a_table(a_rule("r", fallback_rules=list(rules), **route), known=KNOWN)
    return tables(*nodes, routes=table, known=KNOWN)


# --- retry -----------------------------------------------------------------------------------------------------------


def test_retry_rests_once_and_then_the_call_is_refused():
    found = with_rules(rule("retry", wait_before_retry_ms=700), **GONE)
    wait, journey = rested(a_journey(), found)
    assert (wait.wait_ms, [f.action for f in wait.fallbacks]) == (700, ["retry"])
    assert stopped(journey, found, at=NOW + 700).ending.code == "no_available_node"


def test_after_its_rest_a_call_finds_the_node_that_has_come():
    found = with_rules(rule("retry", wait_before_retry_ms=700))
    _wait, journey = rested(a_journey(), found)
    come = with_rules(rule("retry", wait_before_retry_ms=700), nodes=[a_node()])
    assert attempted(journey, come, at=NOW + 700).chosen.node.service_id == "summarizer"


def test_rules_for_one_condition_are_used_in_the_order_written():
    rules = rule("retry"), rule("route_to", service="spare"), rule("return_503", wait_before_retry_ms=900)
    found = with_rules(*rules, **GONE)
    _wait, journey = rested(a_journey(), found)
    step = stopped(journey, found)
    assert [f.action for f in step.why.fallbacks] == ["route_to", "return_503"]
    assert (step.ending.code, step.ending.retry_after_ms) == ("no_available_node", 900)


def test_a_rest_that_would_outlast_the_deadline_is_left_out():
    found = with_rules(rule("retry", wait_before_retry_ms=5_000), rule("route_to", service="spare"), **GONE)
    step = stopped(a_journey(an_envelope(timeout_ms=5_000)), found)
    assert [f.action for f in step.why.fallbacks] == ["route_to"]


def test_full_nodes_are_waited_for_under_their_own_condition():
    found = with_rules(rule("retry", "rate_limited", wait_before_retry_ms=50), nodes=[a_node(max_concurrency=1)])
    full = {"summarizer/n1": 1}
    wait, journey = rested(a_journey(), found, flying=full)
    assert wait.wait_ms == 50
    assert stopped(journey, found, flying=full).ending.code == "rate_limited"
    assert attempted(journey, found)


def test_retry_after_an_error_is_one_more_attempt_on_the_same_route():
    found = with_rules(
        rule("retry", "error", wait_before_retry_ms=300), nodes=[a_node("a/1")], retry={"max_retries": 0}
    )
    journey = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED, "a/1", route_id="r"))
    wait, journey = rested(journey, found)
    assert wait.wait_ms == 300
    again = a_journey(
        an_envelope(),
        an_attempt(Ended.NOT_STARTED, "a/1", route_id="r"),
        an_attempt(Ended.NOT_STARTED, "a/1", number=2, route_id="r"),
        used_fallbacks=journey.used_fallbacks,
    )
    assert stopped(again, found).ending.code == "upstream_error"


def test_retry_does_not_repeat_what_may_have_worked():
    found = with_rules(rule("retry", "error"), nodes=[a_node("a/1")], retry={"max_retries": 0})
    journey = a_journey(an_envelope(), an_attempt(Ended.BROKEN, "a/1", route_id="r"), idempotent=False)
    assert stopped(journey, found).ending.outcome_unknown


def test_silence_falls_under_timeout():
    found = with_rules(rule("retry", "timeout"), nodes=[a_node("a/1")], retry={"max_retries": 0})
    journey = a_journey(an_envelope(), an_attempt(Ended.SILENT, "a/1", route_id="r"), idempotent=True)
    assert isinstance(decide(journey, found), Wait)


# --- route_to --------------------------------------------------------------------------------------------------------


def test_route_to_a_service_hands_the_call_to_it_alone():
    found = with_rules(rule("route_to", service="spare"), nodes=[a_node("spare/1"), a_node("other/1")], **GONE)
    step = attempted(a_journey(), found)
    assert step.chosen.node.service_id == "spare"
    assert [(f.action, f.service) for f in step.why.fallbacks] == [("route_to", "spare")]
    assert step.why.notes == ("a fallback rule has handed it to spare",)


def test_route_to_a_service_after_an_error():
    found = with_rules(
        rule("route_to", "error", service="spare"),
        nodes=[a_node("a/1"), a_node("spare/1")],
        strategy={"type": "exact", "service": "a"},
        retry={"max_retries": 0},
    )
    journey = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED, "a/1", route_id="r"))
    assert attempted(journey, found).chosen.node.service_id == "spare"


def test_the_routes_own_demands_on_nodes_hold_for_the_service_it_hands_to():
    found = with_rules(rule("route_to", service="spare"), nodes=[a_node("spare/1")], node_tags=["eu"], **GONE)
    assert stopped(a_journey(), found).why.left_out == {"lacks tag eu": 1}


def test_route_to_a_capability_follows_that_capabilitys_own_routes():
    table = a_table(
        a_rule("r", fallback_rules=[rule("route_to", capability="file_digest")], **GONE),
        a_rule("digest", {"capability": "file_digest"}, strategy={"type": "exact", "service": "digester"}),
        known=KNOWN,
    )
    nodes = [a_node(f"{name}/1", an_offer("file_digest")) for name in ("digester", "other")]
    found = tables(*nodes, routes=table, known=KNOWN)
    step = attempted(a_journey(), found)
    assert (step.chosen.node.service_id, step.chosen.offer.capability, step.why.route_id) == (
        "digester", "file_digest", "digest",
    )  # fmt: skip
    (taken,) = step.why.fallbacks
    assert after_fallback(a_journey(), taken).envelope.capability == "file_digest"


def test_a_target_that_refuses_the_payload_is_not_the_callers_mistake():
    target = a_node("digester/1", an_offer("file_digest", input={"required": ["digest"]}))
    found = with_rules(rule("route_to", capability="file_digest"), nodes=[target], **GONE)
    step = stopped(a_journey(), found)
    assert step.ending.code == "no_available_node"
    assert step.why.left_out == {"its input schema refuses the payload": 1}


def test_routes_that_hand_to_each_other_come_to_an_end():
    table = a_table(
        a_rule("r", fallback_rules=[rule("route_to", capability="file_digest")]),
        a_rule("s", {"capability": "file_digest"}, fallback_rules=[rule("route_to", capability="file_summary")]),
        known=KNOWN,
    )
    step = stopped(a_journey(), tables(routes=table, known=KNOWN))
    assert [f.route_id for f in step.why.fallbacks] == ["r", "s"]


# --- What always holds -----------------------------------------------------------------------------------------------

ACTIONS = (
    {"action": "return_503"},
    {"action": "next_route"},
    {"action": "retry", "wait_before_retry_ms": 100},
    {"action": "route_to", "service": "spare"},
    {"action": "route_to", "capability": "file_digest"},
)


@given(
    rules=st.lists(
        st.lists(
            st.tuples(st.sampled_from(["no_available_node", "rate_limited", "error"]), st.sampled_from(ACTIONS)),
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    ),
    spare=st.sampled_from(Health),
    full=st.booleans(),
)
def test_no_rule_is_applied_twice_and_every_call_comes_to_a_decision(rules, spare, full):
    written = [
        a_rule(
            f"r{n}",
            {"capability": "file_digest" if n == 2 else "file_summary"},
            fallback_rules=[{"condition": condition, **action} for condition, action in of_route],
            strategy={"type": "exact", "service": "main"},
        )
        for n, of_route in enumerate(rules)
    ]
    nodes = a_node("main/1", max_concurrency=1), a_node("spare/1", health=spare)
    found = tables(*nodes, routes=a_table(*written, known=KNOWN), known=KNOWN)
    journey, now, applied = a_journey(), NOW, []
    for _round in range(20):
        step = decide(journey, found, at=now, flying={"main/1": 1} if full else {})
        assert step.why is not None
        applied += [(f.route_id, f.rule) for f in step.why.fallbacks]
        assert len(set(applied)) == len(applied)
        if not isinstance(step, Wait):
            break
        now += step.wait_ms
        for fallback in step.fallbacks:
            journey = after_fallback(journey, fallback)
    else:
        raise AssertionError("it rested for ever")


def test_a_fallback_moves_the_journey():
    journey = a_journey()
    onward = after_fallback(journey, Fallback("r", "error", "next_route", 0))
    assert (onward.routes_left, onward.used_fallbacks) == (1, {("r", 0)})
    assert after_fallback(onward, Fallback("s", "error", "route_to", 1, service="x")).handed_to == "x"
    back = after_fallback(onward, Fallback("s", "error", "route_to", 2, capability="file_digest"))
    assert (back.routes_left, back.envelope.capability) == (0, "file_digest")
