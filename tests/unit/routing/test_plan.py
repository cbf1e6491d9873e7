"""What happens next with a call: pure decisions, so time, chance and tables are plain arguments."""

import gc
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receipts.core.journey import Ancestor, Ended, Journey, Outcome, Tried
from registry.core.node import AdminState, Health, Node, Tier
from routing.core.breaker import Shut, State
from routing.core.plan import Attempt, Policy, Step, Stop, Wait, next_step
from routing.core.tables import Tables
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_attempt, an_envelope, an_offer, chances, tables
from tests.unit.routing.builders import a_rule, a_table

REPORTS = {"type": "object", "properties": {"content_type": {"const": "report"}}, "required": ["content_type"]}


def decide(
    journey: Journey,
    found: Tables,
    *,
    at: int = NOW,
    chance: float = 0.5,
    policy: Policy | None = None,
    suspected: Sequence[str] = (),
) -> Step:
    load = KnownLoad(suspected=suspected)
    return next_step(journey, found, load, policy or Policy(), now_millis=at, chance=chances([chance]))


def stopped(journey: Journey, found: Tables, **more: Any) -> Stop:
    step = decide(journey, found, **more)
    assert isinstance(step, Stop)
    return step


def attempted(journey: Journey, found: Tables, **more: Any) -> Attempt:
    step = decide(journey, found, **more)
    assert isinstance(step, Attempt)
    return step


# --- The first decision ----------------------------------------------------------------------------------------------


def test_without_a_route_any_provider_may_have_it():
    step = attempted(a_journey(), tables(a_node()))
    assert step.chosen.node.key == ("summarizer", "n1")
    assert (step.why.route_id, step.why.table_revision, step.why.strategy) == ("auto", 0, "least_loaded")


def test_where_routes_are_demanded_a_call_without_one_is_forbidden():
    step = stopped(a_journey(), tables(a_node()), policy=Policy(default_route="deny"))
    assert step.ending.code == "forbidden"


def test_a_capability_that_nobody_ever_declared_is_unknown():
    assert stopped(a_journey(), tables(known=())).ending.code == "unknown_capability"


def test_a_capability_once_known_without_a_provider_has_no_node():
    assert stopped(a_journey(), tables()).ending.code == "no_available_node"


def test_a_payload_that_no_schema_takes_is_invalid_and_each_place_is_named():
    step = stopped(a_journey(an_envelope(payload={"content_type": 5})), tables(a_node("a/1", an_offer(input=REPORTS))))
    assert step.ending.code == "invalid_payload"
    assert [error["path"] for error in step.ending.errors] == ["/payload/content_type"]


def test_a_node_whose_schema_refuses_the_payload_is_no_candidate():
    found = tables(a_node("reports/1", an_offer(input=REPORTS)), a_node("anything/1"))
    step = attempted(a_journey(an_envelope(payload={})), found)
    assert step.chosen.node.service_id == "anything"
    assert step.why.left_out == {"its input schema refuses the payload": 1}


def test_a_bad_payload_is_told_even_when_no_node_is_ready():
    found = tables(a_node("reports/1", an_offer(input=REPORTS), health=Health.NOT_READY))
    assert stopped(a_journey(an_envelope(payload={})), found).ending.code == "invalid_payload"


def test_callers_that_a_capability_leaves_out_are_forbidden():
    found = tables(a_node("a/1", an_offer(allow_callers=frozenset({"ceo"}))))
    assert stopped(a_journey(), found).ending.code == "forbidden"
    assert attempted(a_journey(an_envelope(caller="ceo")), found)


def test_a_route_that_leaves_the_caller_out_is_forbidden_and_no_other_route_is_tried():
    table = a_table(a_rule("mine", priority=9, allow_callers=["ceo"]), a_rule("everybody"))
    step = stopped(a_journey(), tables(a_node(), routes=table))
    assert (step.ending.code, step.why.route_id) == ("forbidden", "mine")


def test_a_chain_of_sixteen_is_let_pass_and_a_seventeenth_is_a_loop():
    assert attempted(a_journey(depth=16), tables(a_node()))
    assert stopped(a_journey(depth=17), tables(a_node())).ending.code == "loop_detected"


def ancestor(envelope: Any, service_id: str, **facts: Any) -> Ancestor:
    about = {"capability": envelope.capability, "payload_digest": envelope.payload_digest, **facts}
    return Ancestor(UUID(int=1), service_id, **about)


def test_the_same_payload_open_at_the_same_service_is_a_loop():
    envelope = an_envelope()
    journey = a_journey(envelope, ancestors=(ancestor(envelope, "summarizer"),), depth=1)
    assert stopped(journey, tables(a_node())).ending.code == "loop_detected"


@pytest.mark.parametrize(
    "facts",
    [{"payload_digest": "another"}, {"capability": "another"}, {"service_id": "another"}],
    ids=["other payload", "other capability", "other service"],
)
def test_what_differs_is_no_loop(facts):
    envelope = an_envelope()
    above = ancestor(envelope, **{"service_id": "summarizer", **facts})
    assert attempted(a_journey(envelope, ancestors=(above,), depth=1), tables(a_node()))


def test_the_same_payload_may_go_to_a_service_that_is_not_above():
    envelope = an_envelope()
    journey = a_journey(envelope, ancestors=(ancestor(envelope, "a"),), depth=1)
    for draw in (0.0, 0.3, 0.6, 0.99):
        assert attempted(journey, tables(a_node("a/1"), a_node("b/1")), chance=draw).chosen.node.service_id == "b"


# --- Deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "tier", "route", "parent", "expected"),
    [
        pytest.param(None, Tier.LIGHT, {}, None, 10_000, id="light"),
        pytest.param(None, Tier.MEDIUM, {}, None, 60_000, id="medium"),
        pytest.param(None, Tier.HEAVY, {}, None, 600_000, id="heavy"),
        pytest.param(90_000, Tier.LIGHT, {}, None, 90_000, id="a call may ask for more than its tier"),
        pytest.param(10**9, Tier.LIGHT, {}, None, 600_000, id="and not for more than ten minutes"),
        pytest.param(90_000, Tier.LIGHT, {"timeout_ms": 5_000}, None, 5_000, id="a route caps it"),
        pytest.param(None, Tier.LIGHT, {"timeout_ms": 50_000}, None, 10_000, id="a route never lengthens it"),
        pytest.param(90_000, Tier.LIGHT, {}, 3_000, 3_000, id="a parent's remainder caps it"),
        pytest.param(2_000, Tier.LIGHT, {}, 30_000, 2_000, id="a parent never lengthens it"),
    ],
)
def test_the_deadline(asked, tier, route, parent, expected):
    found = tables(a_node("a/1", an_offer(tier=tier)), routes=a_table(a_rule("r", **route)))
    journey = a_journey(an_envelope(timeout_ms=asked), parent_deadline_millis=None if parent is None else NOW + parent)
    assert attempted(journey, found).deadline_millis == NOW + expected


def test_nothing_starts_when_the_parents_time_is_up():
    step = stopped(a_journey(parent_deadline_millis=NOW), tables(a_node()))
    assert step.ending.code == "deadline_exceeded"


# --- Routes and fallbacks --------------------------------------------------------------------------------------------

NOBODY_503 = {"condition": "no_available_node", "action": "return_503", "wait_before_retry_ms": 1500}
NOBODY_NEXT = {"condition": "no_available_node", "action": "next_route"}


def only(service: str) -> dict[str, Any]:
    return {"strategy": {"type": "exact", "service": service}}


def test_return_503_advises_when_to_come_again():
    table = a_table(a_rule("r", **only("gone"), fallback_rules=[NOBODY_503]))
    step = stopped(a_journey(), tables(a_node(), routes=table))
    assert (step.ending.code, step.ending.retry_after_ms) == ("no_available_node", 1500)
    assert [(f.route_id, f.action) for f in step.why.fallbacks] == [("r", "return_503")]


def test_without_a_rule_the_installations_advice_stands_and_no_other_route_is_tried():
    table = a_table(a_rule("first", priority=9, **only("gone")), a_rule("second"))
    step = stopped(a_journey(), tables(a_node(), routes=table))
    assert (step.ending.code, step.ending.retry_after_ms, step.why.route_id) == ("no_available_node", 1000, "first")


def test_next_route_goes_on_in_order():
    table = a_table(
        a_rule("first", priority=9, **only("gone"), fallback_rules=[NOBODY_NEXT]),
        a_rule("second", priority=8, **only("also-gone"), fallback_rules=[NOBODY_NEXT]),
        a_rule("third"),
    )
    step = attempted(a_journey(), tables(a_node(), routes=table))
    assert step.why.route_id == "third"
    assert [f.route_id for f in step.why.fallbacks] == ["first", "second"]


def test_next_route_after_the_last_one_is_the_end_and_not_auto():
    table = a_table(a_rule("only", **only("gone"), fallback_rules=[NOBODY_NEXT]))
    step = stopped(a_journey(), tables(a_node(), routes=table))
    assert step.ending.code == "no_available_node"


def test_next_route_after_an_error_takes_the_call_to_another_service():
    table = a_table(
        a_rule(
            "first",
            priority=9,
            **only("a"),
            retry={"max_retries": 0},
            fallback_rules=[{"condition": "error", "action": "next_route"}],
        ),
        a_rule("second", **only("b")),
    )
    journey = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED, "a/1", route_id="first"))
    step = attempted(journey, tables(a_node("a/1"), a_node("b/1"), routes=table), at=NOW + 10)
    assert (step.why.route_id, step.chosen.node.service_id) == ("second", "b")
    assert [f.condition for f in step.why.fallbacks] == ["error"]


def test_next_route_does_not_repeat_what_may_have_worked():
    table = a_table(
        a_rule("first", priority=9, **only("a"), fallback_rules=[{"condition": "error", "action": "next_route"}]),
        a_rule("second", **only("b")),
    )
    journey = a_journey(an_envelope(), an_attempt(Ended.BROKEN, "a/1", route_id="first"), idempotent=False)
    step = stopped(journey, tables(a_node("a/1"), a_node("b/1"), routes=table), at=NOW + 10)
    assert (step.ending.code, step.ending.outcome_unknown) == ("upstream_error", True)


def test_return_503_after_an_error_hides_the_code_and_keeps_the_nodes_words():
    rule = {"condition": "error", "action": "return_503", "wait_before_retry_ms": 700}
    table = a_table(a_rule("r", **only("a"), fallback_rules=[rule]))
    journey = a_journey(an_envelope(), an_attempt(Ended.FAILED, "a/1", route_id="r", error={"code": "oom"}))
    step = stopped(journey, tables(a_node("a/1"), routes=table))
    assert (step.ending.code, step.ending.retry_after_ms) == ("no_available_node", 700)
    assert step.ending.upstream == {"code": "oom"}


# --- After an attempt ------------------------------------------------------------------------------------------------


def test_what_had_not_started_is_tried_again_after_a_rest():
    journey = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED))
    assert decide(journey, tables(a_node())) == Wait(100)


def test_a_further_attempt_prefers_another_service_then_another_node():
    found = tables(a_node("a/1"), a_node("a/2"), a_node("b/1"))
    for draw in (0.0, 0.4, 0.99):
        once = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED, "a/1"), waited=1)
        assert attempted(once, found, chance=draw).chosen.node.key == ("b", "1")
        twice = a_journey(
            an_envelope(),
            an_attempt(Ended.NOT_STARTED, "a/1"),
            an_attempt(Ended.NOT_STARTED, "b/1", number=2),
            waited=2,
        )
        assert attempted(twice, found, chance=draw).chosen.node.key == ("a", "2")


def test_a_retry_leaves_the_narrow_service_that_failed_for_a_wider_one():
    found = tables(a_node("narrow/1", an_offer(input=REPORTS, narrowness=2)), a_node("wide/1"))
    assert attempted(a_journey(), found).chosen.node.service_id == "narrow"
    once = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED, "narrow/1"), waited=1)
    step = attempted(once, found)
    assert step.chosen.node.service_id == "wide"
    assert [c["reasons"] for c in step.why.candidates] == [[], ["tried already: only where nobody else can"]]


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_a_node_that_this_process_could_not_reach_is_taken_last(chance):
    found = tables(a_node("a/1"), a_node("a/2", health=Health.SUSPECT), a_node("b/1"))
    step = attempted(a_journey(), found, chance=chance, suspected=["a/1"])
    assert step.chosen.node.key == ("b", "1")
    assert {c["node_id"]: c["share"] for c in step.why.candidates if c["service_id"] == "a"} == {"1": 0.0, "2": 0.0}


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_and_still_taken_where_there_is_no_other(chance):
    step = attempted(a_journey(), tables(a_node("a/1")), chance=chance, suspected=["a/1"])
    assert step.chosen.node.key == ("a", "1")


def test_the_only_node_is_tried_again():
    once = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED), waited=1)
    assert attempted(once, tables(a_node())).chosen.node.key == ("summarizer", "n1")


def test_a_retry_that_has_rested_for_too_long_does_not_start():
    """The database or this process was away meanwhile: 30 s after the first forward nothing starts."""
    once = a_journey(an_envelope(), an_attempt(Ended.BROKEN), waited=1, idempotent=True)
    attempted(once, tables(a_node()), at=NOW + 30_000)
    step = stopped(once, tables(a_node()), at=NOW + 30_001)
    assert (step.ending.code, step.ending.outcome_unknown) == ("upstream_error", True)


def test_what_was_not_sent_because_the_time_was_up_has_spent_its_deadline():
    unsent = a_journey(an_envelope(), an_attempt(Ended.NOT_STARTED, reason="no time was left"))
    step = stopped(unsent, tables(a_node()), at=NOW + 60_000)
    assert (step.ending.code, step.ending.outcome_unknown) == ("deadline_exceeded", False)


@pytest.mark.parametrize(
    ("outcome", "code", "unknown"),
    [
        (Outcome(Ended.FAILED), "upstream_error", False),
        (Outcome(Ended.BROKEN), "upstream_error", True),
        (Outcome(Ended.TOO_LARGE), "upstream_error", False),
        (Outcome(Ended.INVALID_OUTPUT), "invalid_output", False),
        (Outcome(Ended.TIMED_OUT), "deadline_exceeded", True),
        (Outcome(Ended.SILENT), "deadline_exceeded", True),
    ],
)
def test_how_a_call_ends_after_its_last_attempt(outcome, code, unknown):
    journey = a_journey(an_envelope(), Tried(1, ("summarizer", "n1"), "auto", outcome))
    step = stopped(journey, tables(a_node()))
    assert (step.ending.code, step.ending.outcome_unknown) == (code, unknown)


@pytest.mark.parametrize(
    ("asked", "route", "allowed"),
    [(None, {}, 2), (0, {}, 0), (1, {}, 1), (9, {}, 2), (None, {"max_retries": 1}, 1), (2, {"max_retries": 0}, 0)],
)
def test_retries_may_only_be_lowered(asked, route, allowed):
    found = tables(a_node(), routes=a_table(a_rule("r", retry=route) if route else a_rule("r")))
    envelope = an_envelope(max_retries=asked)
    for made in range(1, 5):
        tried = [an_attempt(Ended.NOT_STARTED, number=n, route_id="r") for n in range(1, made + 1)]
        step = decide(a_journey(envelope, *tried, waited=made - 1), found)
        assert isinstance(step, Wait if made <= allowed else Stop), made


def test_a_call_may_shorten_the_rest_and_a_route_may_lengthen_it():
    found = tables(a_node(), routes=a_table(a_rule("r", retry={"retry_base_delay_ms": 400})))
    once = an_attempt(Ended.NOT_STARTED, route_id="r")
    assert decide(a_journey(an_envelope(), once), found) == Wait(400)
    assert decide(a_journey(an_envelope(retry_base_delay_ms=10), once), found) == Wait(10)
    assert decide(a_journey(an_envelope(retry_base_delay_ms=9_999), once), found) == Wait(400)


# --- What always holds -----------------------------------------------------------------------------------------------

FAILURES = (Ended.NOT_STARTED, Ended.FAILED, Ended.BROKEN, Ended.SILENT)


@st.composite
def troubled_nodes(draw: Callable[..., Any]) -> list[Any]:
    return [
        a_node(
            f"{draw(st.sampled_from('abc'))}/{n}",
            an_offer(idempotent=draw(st.booleans())),
            health=draw(st.sampled_from(Health)),
            admin_state=draw(st.sampled_from([AdminState.ENABLED, AdminState.ENABLED, *AdminState])),
            expired=draw(st.booleans()) and draw(st.booleans()),
            weight=draw(st.sampled_from([0, 1, 100])),
        )
        for n in range(draw(st.integers(1, 6)))
    ]


@settings(deadline=None, max_examples=100)
@given(
    nodes=troubled_nodes(),
    timeout_ms=st.sampled_from([200, 5_000, 40_000, 600_000]),
    total_ms=st.none() | st.sampled_from([0, 1_000, 30_000]),
    max_retries=st.none() | st.integers(0, 5),
    base_ms=st.sampled_from([0, 100, 60_000]),
    outcomes=st.lists(st.tuples(st.sampled_from(FAILURES), st.sampled_from([0, 50, 9_000])), min_size=8, max_size=8),
    seed=st.integers(0, 2**16),
)
def test_a_call_keeps_its_bounds_whatever_fails(nodes, timeout_ms, total_ms, max_retries, base_ms, outcomes, seed):
    """Walk a call to its end: able nodes only, at most 2 retries, nothing starts after the deadline or 30 s."""
    retry = {"retry_base_delay_ms": base_ms, **({} if total_ms is None else {"total_ms": total_ms})}
    found = tables(*nodes, routes=a_table(a_rule("r", retry=retry)))
    journey = a_journey(an_envelope(timeout_ms=timeout_ms, max_retries=max_retries))
    draw, now = random.Random(seed).random, NOW
    for attempts, (ended, takes_ms) in enumerate(outcomes, start=1):
        step = next_step(journey, found, KnownLoad(), Policy(), now_millis=now, chance=draw)
        if isinstance(step, Wait):
            now += step.wait_ms
            journey = rested(journey)
            step = next_step(journey, found, KnownLoad(), Policy(), now_millis=now, chance=draw)
        assert not isinstance(step, Wait), "one rest an attempt"
        if isinstance(step, Stop):
            return
        node = step.chosen.node
        assert node.health in (Health.READY, Health.SUSPECT)
        assert node.admin_state is AdminState.ENABLED and not node.expired and node.weight > 0
        assert now < NOW + timeout_ms
        if attempts > 1:
            assert attempts <= 1 + min(2, 2 if max_retries is None else max_retries)
            assert now < NOW + min(30_000, 30_000 if total_ms is None else total_ms)
            assert journey.tried[-1].outcome.ended is Ended.NOT_STARTED or journey.idempotent
        journey = forwarded(journey, step, now).after(
            Tried(attempts, node.key, step.why.route_id, Outcome(ended, retryable=True))
        )
        now += takes_ms
    raise AssertionError("the call never ended")


def rested(journey: Journey) -> Journey:
    return replace(journey, waited=journey.attempts)


def forwarded(journey: Journey, step: Attempt, now: int) -> Journey:
    first = journey.first_forwarded_at_millis
    return replace(
        journey,
        deadline_millis=step.deadline_millis,
        idempotent=step.chosen.offer.idempotent,
        first_forwarded_at_millis=now if first is None else first,
    )


# --- What it costs ---------------------------------------------------------------------------------------------------


def work_of(decision: Callable[[], Any]) -> int:
    """How many function calls a decision makes, in Python and in C: work that does not depend on the machine."""
    count = 0

    def on_event(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # whoever watches collections would be counted
    sys.setprofile(on_event)
    try:
        decision()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def table_of(size: int, services: int) -> Tables:
    """`size` routes, all but three for other capabilities, by name, glob and condition; `services` providers."""
    others = [
        a_rule(f"other-{n}", {"capability": f"other_{n}", "input.kind": f"k{n}"}) for n in range(size - 3 - size // 10)
    ]
    globs = [a_rule(f"glob-{n}", {"capability": f"data_{n}_*"}, priority=99) for n in range(size // 10)]
    mine = [
        a_rule("mine", {"capability": "file_summary", "input.content_type": "report"}, priority=90),
        a_rule("general", {"capability": "file_*"}, priority=50),
        a_rule("catch-all", {}),
    ]
    known = {"file_summary": "", **{f"other_{n}": "" for n in range(size)}}
    offers = [a_node(f"service-{n}/1", an_offer(narrowness=n % 3), an_offer(f"other_{n}")) for n in range(services)]
    return tables(*offers, routes=a_table(*others, *globs, *mine, known=known), known=known)


@pytest.mark.parametrize("strategy_payload", [{"content_type": "report"}, {"content_type": "email"}])
def test_a_decision_costs_the_same_with_ten_routes_and_with_a_thousand(strategy_payload):
    journey = a_journey(an_envelope(payload=strategy_payload))
    costs = {}
    for size in (10, 1_000):
        found = table_of(size, services=10)
        decide(journey, found)  # pools are made when first asked for
        costs[size] = work_of(lambda found=found: decide(journey, found))
    assert costs[1_000] == costs[10]


@cache
def many_nodes(count: int) -> tuple[Node, ...]:
    """Nodes of as many services, with schemas, costs and limits of several kinds."""
    offers = [an_offer(narrowness=n % 3, cost_level=("low", "medium", "high")[n % 5 % 3]) for n in range(15)]
    return tuple(a_node(f"s{n}/1", offers[n % 15], max_concurrency=9) for n in range(count))


@pytest.mark.parametrize(
    ("strategy", "urgency"),
    [
        (None, "interactive"),
        (None, "bulk"),
        ({"type": "weighted_random"}, "interactive"),
        ({"type": "least_loaded"}, "bulk"),
        ({"type": "latency_aware"}, "normal"),
        ({"type": "cost_aware"}, "normal"),
        ({"type": "sticky", "key": "caller"}, "normal"),
    ],
)
def test_a_decision_costs_the_same_with_ten_nodes_and_with_ten_thousand(strategy, urgency):
    journey = a_journey(an_envelope(urgency=urgency))
    table = a_table(a_rule("r", strategy=strategy)) if strategy else a_table()
    costs = {}
    for count in (10, 10_000):
        found = tables(*many_nodes(count), routes=table)
        decide(journey, found)
        costs[count] = work_of(lambda found=found: decide(journey, found))
    assert costs[10_000] == costs[10]


def test_open_breakers_cost_a_decision_the_same_in_a_pool_of_any_size():
    journey = a_journey(an_envelope())
    costs: dict[tuple[str, int], int] = {}
    for count in (10, 10_000):
        found = tables(*many_nodes(count))
        for name in ("elsewhere/1", "s0/1"):
            load = KnownLoad(shut={name: Shut(State.OPEN, NOW / 1000 + 3)})

            def decision(found: Tables = found, load: KnownLoad = load) -> Any:
                return next_step(journey, found, load, Policy(), now_millis=NOW, chance=chances([0.5]))

            decision()
            costs[name, count] = work_of(decision)
    assert costs["elsewhere/1", 10_000] == costs["elsewhere/1", 10]
    assert costs["s0/1", 10_000] == costs["s0/1", 10]
