"""What traffic and tables give reason to say, and what not."""

from typing import Any

import pytest

from registry.core.node import AdminState, Health, Node
from routing.core.advisories import Advisory, Evidence, Kind, SampledCall, Thresholds, advise
from routing.core.matching import RouteTable
from routing.core.tables import Tables
from routing.wording import ADVISORY, advisory_words
from tests.factories import a_node, an_offer, tables
from tests.unit.routing.builders import a_rule, a_table

CAPABILITY = "file_summary"


def asks_for(*fields: str) -> dict[str, Any]:
    return {"type": "object", "required": list(fields)}


def a_service(name: str, schema: Any = None, **facts: Any) -> Node:
    return a_node(name, an_offer(CAPABILITY, input=schema), **{"health": Health.READY, **facts})


def calls(number: int, service: str | None = "a", payload: Any = None, **facts: Any) -> list[SampledCall]:
    call = {"capability": CAPABILITY, "payload": payload or {}, "route_id": "auto", "succeeded": True, **facts}
    return [SampledCall(service_id=service, **call)] * number


def seen(now: Tables, sample: list[SampledCall] | None = None, **facts: Any) -> list[Advisory]:
    known = {"default_route": "auto", "limited": {}, "requires": {}, "table_changes": 0, **facts}
    return advise(Evidence(now, sample=sample or [], **known), Thresholds())


def kinds(found: list[Advisory]) -> list[tuple[Kind, str]]:
    return [(one.kind, one.subject) for one in found]


THREE = [a_service("a"), a_service("b"), a_service("c")]


def test_one_of_three_takes_nearly_all() -> None:
    [found] = seen(tables(*THREE), [*calls(28), *calls(4, "b")])
    assert (found.kind, found.subject) == (Kind.TAKES_MOST, "file_summary a")
    assert found.facts == {"capability": CAPABILITY, "service": "a", "percent": 88, "services": 3, "calls": 32}


@pytest.mark.parametrize(
    ("nodes", "sample"),
    [
        pytest.param(THREE, [*calls(24), *calls(6, "b")], id="80 % is not over 80 %"),
        pytest.param(THREE, calls(29), id="too few calls to tell"),
        pytest.param(THREE[:2], calls(40), id="two services only"),
        pytest.param([*THREE[:2], a_service("c", admin_state=AdminState.DISABLED)], calls(40), id="the third is out"),
        pytest.param([*THREE[:2], a_service("c", asks_for("x"))], calls(40, payload={"y": 1}), id="the third refuses"),
        pytest.param(THREE, calls(40, None), id="nobody took them"),
    ],
)
def test_a_share_that_says_nothing(nodes: list[Node], sample: list[SampledCall]) -> None:
    assert Kind.TAKES_MOST not in dict(kinds(seen(tables(*nodes), sample)))


def test_a_share_that_was_reviewed_says_nothing() -> None:
    def routed(strategy: dict[str, Any]) -> Tables:
        table: RouteTable = a_table({"id": "r", "match": {"capability": CAPABILITY}, "strategy": strategy})
        return tables(*THREE, routes=table)

    sample = calls(40, route_id="r")
    weights = {"a": 90, "b": 5, "c": 5}
    assert seen(routed({"type": "weighted_random", "weights": weights}), sample) == []
    assert Kind.TAKES_MOST in dict(kinds(seen(routed({"type": "least_loaded"}), sample)))


def test_two_schemas_that_take_the_same_payloads() -> None:
    now = tables(a_service("narrow", asks_for("x")), a_service("wide"), a_service("wide/n2"))
    [found] = seen(now, [*calls(5, "narrow", {"x": 1}), *calls(7, "wide", {"y": 1})])
    assert (found.kind, found.subject) == (Kind.BOTH_ACCEPT, "file_summary narrow wide")
    assert (found.facts["calls"], found.facts["of"]) == (5, 12)


def test_services_that_declare_the_same_or_share_nothing() -> None:
    assert seen(tables(*THREE[:2]), calls(9)) == []
    apart = tables(a_service("a", asks_for("x")), a_service("b", asks_for("y")))
    assert seen(apart, [*calls(9, "a", {"x": 1}), *calls(9, "b", {"y": 1})]) == []


def test_of_many_pairs_those_that_share_most_are_named() -> None:
    nodes = [a_service(f"s{n}", {"description": str(n)}) for n in range(40)]
    assert len(seen(tables(*nodes), calls(9, "s1"))) == 5


def test_a_schema_of_today_that_refuses_yesterday() -> None:
    sample = [*calls(3, payload={"x": 1}), *calls(2, payload={"x": 1, "y": 2}), *calls(1, succeeded=False)]
    [found] = seen(tables(a_service("a", asks_for("x", "y"))), sample)
    assert (found.kind, found.subject) == (Kind.SCHEMA_REFUSES, "file_summary a")
    assert found.facts | {"error": ""} == {
        "capability": CAPABILITY, "service": "a", "calls": 3, "of": 5, "path": "/payload/y", "error": "",
    }  # fmt: skip


def test_an_older_node_of_the_service_that_still_takes_them() -> None:
    rolling = tables(a_service("a", asks_for("y")), a_service("a/n2", asks_for("x")))
    assert seen(rolling, calls(3, payload={"x": 1})) == []


@pytest.mark.parametrize(
    ("routes", "default_route", "expected"),
    [
        pytest.param([], "auto", [], id="no routes"),
        pytest.param([], "deny", ["a", "b", "c"], id="no routes, and none by default"),
        pytest.param([{"strategy": {"type": "exact", "service": "a"}}], "auto", ["b", "c"], id="one takes everything"),
        pytest.param(
            [{"match": {"urgency": "bulk"}, "strategy": {"type": "exact", "service": "a"}}],
            "auto",
            [],
            id="what does not match goes on",
        ),
        pytest.param(
            [
                {
                    "strategy": {"type": "exact", "service": "a"},
                    "fallback_rules": [{"condition": "error", "action": "route_to", "service": "b"}],
                }
            ],
            "auto",
            ["c"],
            id="a fallback leads there",
        ),
        pytest.param(
            [
                {
                    "strategy": {"type": "exact", "service": "a"},
                    "canary": {"service": "b", "percent": 5, "sticky_by": "caller"},
                }
            ],
            "auto",
            ["c"],
            id="a canary leads there",
        ),
        pytest.param(
            [
                {
                    "strategy": {"type": "exact", "service": "a"},
                    "fallback_rules": [{"condition": "no_available_node", "action": "next_route"}],
                }
            ],
            "auto",
            [],
            id="the route lets go",
        ),
        pytest.param([{"strategy": {"type": "least_loaded"}}], "deny", [], id="a route for all"),
    ],
)
def test_ready_and_reached_by_no_route(routes: list[dict[str, Any]], default_route: str, expected: list[str]) -> None:
    documents = [{"id": f"r{n}", "match": {"capability": CAPABILITY}, **route} for n, route in enumerate(routes)]
    for document in documents:
        document["match"] = {"capability": CAPABILITY, **document["match"]}
    now = tables(*THREE, a_service("ill", health=Health.NOT_READY), routes=a_table(*documents))
    found = seen(now, default_route=default_route)
    assert kinds(found) == [(Kind.UNREACHED, f"file_summary {service}") for service in expected]


def test_needs_that_nobody_meets() -> None:
    found = seen(tables(*THREE), requires={"a": [CAPABILITY, "weather"], "b": ["weather"]})
    assert kinds(found) == [(Kind.UNPROVIDED, "weather a"), (Kind.UNPROVIDED, "weather b")]


def test_every_kind_has_words_for_its_facts() -> None:
    """What each kind says is made from the facts that it is found with."""
    weights = a_table(a_rule("r", strategy={"type": "exact", "service": "a"}))
    now = tables(*THREE, a_service("d", asks_for("x", "y")), routes=weights)
    sample = [*calls(40, payload={"x": 1, "y": 1}), *calls(1, "d", payload={"x": 1})]
    found = seen(now, sample, requires={"a": ["weather"]}, limited={CAPABILITY: 10}, table_changes=11)
    found += seen(tables(*THREE), calls(40))
    by_kind = {one.kind: one for one in found}
    assert by_kind.keys() == set(Kind) == ADVISORY.keys()
    for kind, one in by_kind.items():
        title, message, remedy = advisory_words(kind, one.facts)
        assert title and remedy and "%" not in message.replace(" % of", "")


def test_limits_reached_and_a_restless_table() -> None:
    found = seen(tables(*THREE), limited={CAPABILITY: 10, "rare": 9}, table_changes=11)
    assert kinds(found) == [(Kind.RATE_LIMITED, CAPABILITY), (Kind.MANY_CHANGES, "")]
    assert seen(tables(*THREE), table_changes=10) == []
