"""What a change would do: hand-counted cases, and for any tables the same verdict as dispatching."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.journey import Journey
from registry.core.node import Health, Node
from routing.core.impact import IDLE, Replay, never_matching, passes_on
from routing.core.implication import narrows
from routing.core.matching import Route, RouteTable
from routing.core.plan import Policy, next_step
from routing.core.tables import Tables
from routing.rules import build_table
from tests.factories import NOW, a_journey, a_node, an_envelope, an_offer, tables
from tests.unit.routing.builders import a_rule, routes

KNOWN = {"file_summary": "", "file_move": "", "ocr": ""}


def a_table(*rules: dict[str, Any], revision: int = 1) -> RouteTable:
    return build_table(revision, routes(*rules), KNOWN)


def to(service: str) -> dict[str, Any]:
    return {"strategy": {"type": "exact", "service": service}}


def a_call(number: int = 1, /, **facts: Any) -> Journey:
    return replace(a_journey(an_envelope(**facts)), call_id=UUID(int=number))


def a_report() -> Journey:
    return a_call(payload={"content_type": "report"})


def an_email() -> Journey:
    return a_call(payload={"content_type": "email"})


def replayed(
    before: RouteTable, after: RouteTable, *calls: Journey, nodes: tuple[Node, ...] = (), **more: Any
) -> dict[str, Any]:
    found = tables(*(nodes or (a_node("one/n"), a_node("two/n"))), routes=before, known=KNOWN)
    replay = Replay(found, before, after, Policy(), **more)
    for call in calls:
        replay.add(call)
    return replay.report()


# --- What moves ------------------------------------------------------------------------------------------------------


def test_calls_that_go_elsewhere_are_counted_by_route_and_service():
    before = a_table(a_rule("all", **to("one")))
    after = a_table(
        a_rule("all", **to("one")), a_rule("reports", {"input.content_type": "report"}, priority=9, **to("two"))
    )
    report = replayed(before, after, *[a_report() for _ in range(3)], *[an_email() for _ in range(7)])
    assert report["sampled_calls"] == 10
    assert report["moved"] == {
        "total": 3,
        "by_route": [{"from": "all", "to": "reports", "calls": 3}],
        "by_service": [{"from": "one", "to": "two", "calls": 3}],
        "by_capability": {"file_summary": 3},
        "flows": [
            {"from": {"route": "all", "service": "one"}, "to": {"route": "reports", "service": "two"}, "calls": 3}
        ],
    }
    assert report["services"] == [
        {"service": "one", "before": 10, "after": 7},
        {"service": "two", "before": 0, "after": 3},
    ]
    assert report["routes"] == [
        {"route": "all", "before": 10, "after": 7},
        {"route": "reports", "before": 0, "after": 3},
    ]
    assert report["scope"] == {"before": [["file_summary", "all"]], "after": [["file_summary", "reports"]]}


def test_other_weights_move_a_part_of_the_calls():
    def weights(one: int, two: int) -> RouteTable:
        return a_table(a_rule("r", strategy={"type": "weighted_random", "weights": {"one": one, "two": two}}))

    report = replayed(weights(100, 0), weights(70, 30), *[a_report() for _ in range(100)])
    assert report["moved"]["total"] == 30
    assert report["moved"]["by_service"] == [{"from": "one", "to": "two", "calls": 30}]
    assert report["moved"]["by_route"] == []


def test_flows_tell_route_and_service_of_what_moves_and_of_what_only_changes_its_route():
    def weights(one: int, two: int, route: str) -> RouteTable:
        return a_table(a_rule(route, strategy={"type": "weighted_random", "weights": {"one": one, "two": two}}))

    report = replayed(weights(100, 0, "old"), weights(70, 30, "new"), *[a_report() for _ in range(100)])
    old = {"route": "old", "service": "one"}
    assert report["moved"]["total"] == 100
    assert report["moved"]["flows"] == [
        {"from": old, "to": {"route": "new", "service": "one"}, "calls": 70},
        {"from": old, "to": {"route": "new", "service": "two"}, "calls": 30},
    ]


def test_the_same_table_moves_nothing():
    table = a_table(a_rule("r", strategy={"type": "weighted_random", "weights": {"one": 1, "two": 2}}))
    report = replayed(table, table, a_report(), an_email())
    assert report["moved"]["total"] == 0
    assert report["samples"] == []


def test_calls_that_move_can_be_opened():
    before, after = a_table(a_rule("all", **to("one"))), a_table(a_rule("all", **to("two")))
    report = replayed(before, after, *[a_call(number) for number in range(1, 9)])
    assert [sample["call_id"] for sample in report["samples"]] == [str(UUID(int=n)) for n in (1, 2, 3)]
    assert report["samples"][0]["before"] == {"route": "all", "services": {"one": 1.0}}
    assert report["samples"][0]["after"] == {"route": "all", "services": {"two": 1.0}}


def test_the_health_of_this_minute_is_none_of_the_changes_doing():
    nodes = (a_node("one/n", health=Health.NOT_READY), a_node("two/n", health=Health.SUSPECT))
    report = replayed(a_table(), a_table(a_rule("all", **to("one"))), a_report(), nodes=nodes)
    assert report["lost_calls"] == []


# --- Who is robbed ---------------------------------------------------------------------------------------------------

SPECIFIC = a_rule("reports", {"capability": "file_summary", "input.content_type": "report"}, priority=50, **to("one"))
GENERAL = {"id": "everything", "match": {"capability": "file_*"}, **to("two")}


def test_a_general_route_moved_above_a_specific_one_names_what_it_robs():
    before = a_table(SPECIFIC, GENERAL | {"priority": 10})
    after = a_table(SPECIFIC, GENERAL | {"priority": 90})
    report = replayed(before, after, *[a_report() for _ in range(4)], *[an_email() for _ in range(6)])
    assert report["shadowed_routes"] == [{"route": "reports", "by": "everything", "calls": 4, "whole": True}]


def test_only_the_calls_that_both_match_are_stolen():
    tagged = {"id": "tagged", "match": {"capability": "file_summary", "tags": ["prod"]}, **to("two")}
    before, after = a_table(SPECIFIC, tagged), a_table(SPECIFIC, tagged | {"priority": 90})
    prod = [a_call(payload={"content_type": "report"}, tags=frozenset({"prod"})) for _ in range(2)]
    report = replayed(before, after, *prod, *[a_report() for _ in range(3)])
    assert report["shadowed_routes"] == [{"route": "reports", "by": "tagged", "calls": 2, "whole": False}]


def test_an_exception_from_a_general_route_is_meant():
    before = a_table(GENERAL)
    report = replayed(before, a_table(GENERAL, SPECIFIC), *[a_report() for _ in range(4)])
    assert report["shadowed_routes"] == []
    assert report["moved"]["total"] == 4


def test_a_new_route_that_no_call_can_come_to_is_named():
    report = replayed(a_table(GENERAL | {"priority": 90}), a_table(GENERAL | {"priority": 90}, SPECIFIC), a_report())
    assert report["shadowed_routes"] == [{"route": "reports", "by": "everything", "calls": 1, "whole": True}]


def test_what_was_shadowed_before_is_no_news():
    old = (GENERAL | {"priority": 90}, SPECIFIC)
    report = replayed(a_table(*old), a_table(*old, a_rule("ocr", {"capability": "ocr"})), a_report(), an_email())
    assert report["shadowed_routes"] == []


def test_a_route_that_hands_on_has_the_next_one_below_it_on_purpose():
    first = a_rule("first", priority=9, fallback_rules=[{"condition": "no_available_node", "action": "next_route"}])
    report = replayed(a_table(), a_table(first, a_rule("second")), a_report())
    assert report["shadowed_routes"] == []


def test_never_matching_finds_the_first_that_takes_all():
    table = a_table(
        a_rule("any", {"input.x": {"exists": True}}, priority=9),
        a_rule("one", {"capability": "ocr", "input.x": 1}),
        a_rule("other", {"capability": "ocr", "input.y": 1}),
        a_rule("twin", {"capability": "ocr", "input.y": 1}),
        a_rule("off", {"capability": "ocr", "input.y": 1}, enabled=False),
    )
    assert never_matching(table) == {"one": "any", "twin": "other"}


# --- What else is told -----------------------------------------------------------------------------------------------


def test_a_capability_left_without_a_provider():
    report = replayed(a_table(), a_table(a_rule("all", **to("ghost"))), a_report(), an_email())
    assert report["unprovided_capabilities"] == ["file_summary"]
    assert report["lost_calls"] == [{"capability": "file_summary", "code": "no_available_node", "calls": 2}]
    assert report["moved"]["by_service"][0]["to"] is None


def test_a_capability_that_nobody_called_yesterday_is_missed_too():
    nodes = (a_node("one/n", an_offer("ocr"), an_offer()),)
    report = replayed(a_table(), a_table(a_rule("all", {"capability": "ocr"}, **to("ghost"))), nodes=nodes)
    assert report["unprovided_capabilities"] == ["ocr"]


def test_one_service_that_takes_nearly_everything():
    report = replayed(a_table(), a_table(a_rule("all", **to("one"))), *[a_report() for _ in range(10)])
    shares = {"share_before": 0.5, "share_after": 1.0}
    assert report["dominant_services"] == [{"service": "one", "capability": "file_summary", **shares, "calls": 10}]


def test_rates_are_held_against_what_is_declared():
    """Of 120 calls in one minute, each standing for two: 4 a second where 3 are allowed."""
    nodes = (a_node("one/n", an_offer(rate_per_s=3.0)), a_node("two/n", an_offer(rate_per_s=3.0)))
    calls = [a_call(received_at_millis=NOW // 60_000 * 60_000 + n) for n in range(120)]
    after = a_table(a_rule("all", **to("one")))
    report = replayed(a_table(), after, *calls, nodes=nodes, stands_for=2.0)
    rates = {"limit_per_s": 3.0, "before_per_s": 2.0, "after_per_s": 4.0}
    assert report["rate_limit_risks"] == [{"service": "one", "capability": "file_summary", **rates}]


def test_cost_levels_shift():
    nodes = (a_node("one/n", an_offer(cost_level="low")), a_node("two/n", an_offer(cost_level="high")))
    before, after = a_table(a_rule("r", **to("one"))), a_table(a_rule("r", **to("two")))
    report = replayed(before, after, a_report(), an_email(), nodes=nodes)
    assert report["cost_shift"] == {"before": {"low": 2}, "after": {"high": 2}}


def test_calls_whose_way_depends_on_a_masked_value_are_unknown():
    before = a_table(a_rule("all", **to("one")))
    rule = a_rule("secret", {"capability": "file_summary", "input.content_type": "report"}, priority=9, **to("two"))
    masked = {"file_summary": frozenset({("content_type",)})}
    after = a_table(a_rule("all", **to("one")), rule)
    report = replayed(before, after, a_report(), an_email(), a_call(capability="file_move"), masked=masked)
    condition = {"route": "secret", "condition": "input.content_type", "capability": "file_summary", "calls": 2}
    assert report["unknown"] == {"calls": 2, "conditions": [condition]}
    assert (report["sampled_calls"], report["moved"]["total"]) == (3, 0)


def test_a_masked_value_that_decides_nothing_hides_nothing():
    """The route that asks for it fails another condition, or stands below one that is sure to match."""
    masked = {"file_summary": frozenset({("content_type",)})}
    secret = {"capability": "file_summary", "input.content_type": "report"}
    before = a_table(a_rule("all", **to("one")))
    after = a_table(
        a_rule("elsewhere", secret | {"caller": "nobody"}, priority=9, **to("two")),
        a_rule("all", priority=5, **to("two")),
        a_rule("below", secret, **to("two")),
    )
    report = replayed(before, after, a_report(), masked=masked)
    assert report["unknown"]["calls"] == 0
    assert report["moved"]["by_service"] == [{"from": "one", "to": "two", "calls": 1}]


# --- As dispatching would --------------------------------------------------------------------------------------------

SERVICES = ("one", "two", "three")
NODES = (
    a_node("one/a"),
    a_node("one/b", an_offer(), an_offer("file_move"), tags=frozenset({"gpu"})),
    a_node("two/a", an_offer(input={"required": ["size"]}), an_offer("ocr", allow_callers=frozenset({"alice"}))),
    a_node("three/a", an_offer("ocr"), an_offer(cost_level="low", rate_per_s=1.0), weight=10),
)
VALUES = st.sampled_from(["report", "email", "re", 1, 1.0, 5, True, None])
WANTED = st.one_of(
    VALUES,
    st.lists(VALUES, min_size=1, max_size=3),
    st.fixed_dictionaries({"gte": st.integers(0, 3), "lt": st.integers(2, 6)}),
    st.fixed_dictionaries({"exists": st.booleans()}),
    st.fixed_dictionaries({"prefix": st.sampled_from(["re", "em"])}),
    st.fixed_dictionaries({"pattern": st.sampled_from(["^r", "l$"])}),
    st.fixed_dictionaries({"ne": VALUES}),
)
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "capability": st.sampled_from(["file_summary", "file_*", "ocr", "*"]),
        "input.content_type": WANTED,
        "input.size": WANTED,
        "input.deep.er": WANTED,
        "labels.team": st.sampled_from(["red", "blue"]),
        "caller": st.sampled_from(["alice", "bob"]),
        "tags": st.just(["prod"]),
        "urgency": st.sampled_from(["bulk", "interactive"]),
    },
)
STRATEGIES = st.sampled_from(
    [
        {"type": "least_loaded"},
        {"type": "latency_aware", "services": ["one", "three"]},
        {"type": "cost_aware"},
        {"type": "exact", "service": "two"},
        {"type": "exact", "service": "ghost"},
        {"type": "sticky", "key": "labels.team"},
        {"type": "weighted_random", "weights": {"one": 3, "three": 1}},
        {"type": "fuzzy"},
    ]
)
FALLBACKS = st.sampled_from(
    [
        [],
        [{"condition": "no_available_node", "action": "next_route"}],
        [{"condition": "no_available_node", "action": "route_to", "service": "one"}],
        [{"condition": "no_available_node", "action": "route_to", "capability": "ocr"}],
        [{"condition": "no_available_node", "action": "retry", "wait_before_retry_ms": 5}],
    ]
)
RULES = st.fixed_dictionaries(
    {"match": MATCHES, "strategy": STRATEGIES, "fallback_rules": FALLBACKS},
    optional={
        "priority": st.integers(0, 2),
        "enabled": st.booleans(),
        "canary": st.just({"service": "three", "percent": 50, "sticky_by": "labels.team"}),
        "allow_callers": st.just(["alice"]),
        "node_tags": st.just(["gpu"]),
    },
)
TABLES = st.lists(RULES, max_size=6).map(
    lambda rules: [{"id": f"r{number}", **rule} for number, rule in enumerate(rules)]
)
CALLS = st.builds(
    an_envelope,
    capability=st.sampled_from(["file_summary", "file_move", "ocr", "unheard_of"]),
    payload=st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {},
            optional={
                "content_type": VALUES,
                "size": VALUES,
                "deep": st.sampled_from([{}, {"er": 1}, {"er": [1]}, {"er": {"x": 1}}, 5]),
            },
        ),
    ),
    caller=st.sampled_from(["alice", "bob", "carol"]),
    labels=st.sampled_from([{}, {"team": "red"}, {"team": "blue"}]),
    tags=st.sampled_from([frozenset(), frozenset({"prod"}), frozenset({"prod", "gpu"})]),
    urgency=st.sampled_from(["bulk", "normal", "interactive"]),
)


@given(TABLES, TABLES, st.lists(CALLS, min_size=1, max_size=8), st.floats(0, 1, exclude_max=True))
def test_the_verdict_is_that_of_dispatching(old, new, envelopes, chance):
    """For any two tables and any calls, `next_step` itself says the same route, and a service among the takers."""
    before, after = a_table(*old), a_table(*new, revision=2)
    found = tables(*NODES, routes=before, known=KNOWN)
    replay = Replay(found, before, after, Policy())
    for envelope in envelopes:
        call = a_journey(envelope)
        matched = replay.matching(envelope)
        for side, table, seen in ((replay.before, before, matched.before), (replay.after, after, matched.after)):
            verdict = replay.verdict(call, side, seen)
            whole = Tables(1, NODES, found.known, table)
            step = next_step(call, whole, IDLE, Policy(), now_millis=NOW, chance=lambda: chance)
            assert verdict.route == (step.why.route_id if step.why else "auto")
            chosen = getattr(step, "chosen", None)
            assert bool(verdict.takers) is (chosen is not None)
            if chosen is not None:
                assert chosen.node.service_id in {taker.service for taker in verdict.takers}
                assert sum(taker.share for taker in verdict.takers) == pytest.approx(1)


@given(TABLES)
def test_never_matching_is_found_as_by_comparing_each_with_all_above(rules):
    table = a_table(*rules)
    expected: dict[str, str] = {}
    above: list[Route] = []
    for route in table.routes:
        if not route.enabled:
            continue
        taker = next((other for other in above if narrows(route, other)), None)
        if taker is not None:
            expected[route.id] = taker.id
        elif not passes_on(route):
            above.append(route)
    assert never_matching(table) == expected
