"""Sticky routes and canaries: stable by key, in proportion, and giving way when their node cannot."""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.envelope import digest_of
from receipts.core.journey import Ended, Journey
from registry.core.node import Health
from routing.core.balancing import stuck_to
from routing.core.plan import Attempt, Policy, next_step
from routing.core.pool import Field, Preferences, make_field
from routing.core.sticking import CallKey, Mirror
from routing.core.tables import Tables
from tests.factories import NOW, KnownLoad, a_candidate, a_journey, a_node, an_attempt, an_envelope, chances, tables
from tests.unit.routing.builders import a_rule, a_table

KEYS = [f"tenant-{n}" for n in range(10_000)]


def attempt(journey: Journey, found: Tables, *, flying: dict[str, int] | None = None, draw: float = 0.5) -> Attempt:
    step = next_step(journey, found, KnownLoad(flying), Policy(), now_millis=NOW, chance=chances([draw]))
    assert isinstance(step, Attempt)
    return step


def field_of(**weights: int) -> Field:
    return make_field([a_candidate(f"doc/{name}", weight=weight) for name, weight in weights.items()], Preferences())


def owners(field: Field, keys: list[str] = KEYS) -> dict[str, str]:
    return {key: stuck_to(field, key).node.node_id for key in keys}


# --- Sticky ----------------------------------------------------------------------------------------------------------


def test_keys_are_parted_by_the_weights_of_nodes():
    counted = Counter(owners(field_of(a=100, b=300)).values())
    assert counted["b"] / len(KEYS) == pytest.approx(0.75, abs=0.02)


def test_a_node_that_goes_takes_only_its_own_keys_with_it():
    before, after = owners(field_of(a=100, b=100, c=50)), owners(field_of(a=100, c=50))
    assert {key for key in KEYS if before[key] != after[key]} == {key for key in KEYS if before[key] == "b"}


def test_a_node_that_comes_takes_only_for_itself():
    before, after = owners(field_of(a=100, b=100)), owners(field_of(a=100, b=100, c=100))
    assert {after[key] for key in KEYS if before[key] != after[key]} == {"c"}


def test_every_process_comes_to_the_same_answer():
    assert owners(field_of(a=1, b=1, c=1), ["x", "y", "z", "中"]) == {"x": "c", "y": "b", "z": "a", "中": "b"}


def test_more_keys_than_are_remembered_find_their_node_all_the_same():
    field = field_of(a=1, b=1)
    assert owners(field) == owners(field)
    assert len(field.stuck) <= 4096


@pytest.mark.parametrize(
    ("key", "facts", "expected"),
    [
        (CallKey("caller"), {"caller": "ann"}, '"ann"'),
        (CallKey("session_id"), {"session_id": "s"}, '"s"'),
        (CallKey("session_id"), {}, None),
        (CallKey("trace_id"), {}, f'"{"a" * 32}"'),
        (CallKey("labels", ("tenant.id",)), {"labels": {"tenant.id": "t"}}, '"t"'),
        (CallKey("labels", ("tenant",)), {}, None),
        (CallKey("input", ("user", "id")), {"payload": {"user": {"id": 5}}}, "5"),
        (CallKey("input", ("user", "id")), {"payload": {"user": {"id": "5"}}}, '"5"'),
        (CallKey("input", ("user",)), {"payload": {"user": {"b": 1, "a": 2}}}, '{"a":2,"b":1}'),
        (CallKey("input", ("user",)), {"payload": {"user": None}}, None),
        (CallKey("input", ("user",)), {"payload": 5}, None),
        (CallKey("input", ("user",)), {"payload": {"user": "u" * 300}}, digest_of("u" * 300)),
    ],
)
def test_the_key_of_a_call(key, facts, expected):
    assert key.of(a_journey(an_envelope(**facts))) == expected


def sticky_by(key: str) -> Any:
    return a_table(a_rule("r", strategy={"type": "sticky", "key": key}))


def test_a_session_meets_the_same_node_whatever_chance_and_load_say():
    found = tables(*[a_node(f"doc/{n}") for n in range(9)], routes=sticky_by("session_id"))
    journey = a_journey(an_envelope(session_id="s-1", urgency="interactive"))
    first = attempt(journey, found).chosen.node
    for draw in (0.0, 0.5, 0.999):
        assert attempt(journey, found, draw=draw, flying={"/".join(first.key): 50}).chosen.node is first


def test_a_key_whose_node_is_full_or_unready_goes_to_one_other_and_comes_back():
    names = [f"doc/{n}" for n in range(5)]
    journey = a_journey(an_envelope(session_id="s-1"))
    found = tables(*[a_node(name, max_concurrency=10) for name in names], routes=sticky_by("session_id"))
    first = attempt(journey, found).chosen.node
    full = {"/".join(first.key): 10}
    second = attempt(journey, found, flying=full).chosen.node
    assert second is not first
    health = {name: Health.NOT_READY if name == "/".join(first.key) else Health.READY for name in names}
    without = tables(*[a_node(name, health=health[name]) for name in names], routes=sticky_by("session_id"))
    assert attempt(journey, without).chosen.node.key == second.key
    assert attempt(journey, found).chosen.node is first


def test_without_its_key_a_call_goes_to_the_least_loaded_and_says_so():
    found = tables(a_node("doc/1"), a_node("doc/2"), routes=sticky_by("labels.tenant"))
    step = attempt(a_journey(), found, flying={"doc/1": 9})
    assert step.chosen.node.node_id == "2"
    assert step.why.notes == ("sticks to nothing: the call has no labels.tenant; the least loaded was chosen",)


@pytest.mark.parametrize("routes", [a_table(), a_table(a_rule("r"))], ids=["auto", "another strategy"])
def test_a_session_alone_sticks_to_nothing(routes):
    found = tables(a_node("doc/1"), a_node("doc/2"), routes=routes)
    journey = a_journey(an_envelope(session_id="s-1"))
    assert {attempt(journey, found, flying={f"doc/{n}": 9}).chosen.node.node_id for n in (1, 2)} == {"1", "2"}


# --- Canary ----------------------------------------------------------------------------------------------------------


def with_canary(percent: float, *nodes: Any, **route: Any) -> Tables:
    rule = a_rule("r", canary={"service": "new", "percent": percent, "sticky_by": "labels.tenant"}, **route)
    return tables(*(nodes or (a_node("old/1"), a_node("new/1"))), routes=a_table(rule))


def of_tenant(tenant: str, *tried: Any) -> Journey:
    return a_journey(an_envelope(labels={"tenant": tenant}), *tried, waited=len(tried))


def chosen_services(found: Tables) -> dict[str, str]:
    return {key: attempt(of_tenant(key), found).chosen.node.service_id for key in KEYS}


def test_a_canary_has_its_percentage_of_the_keys_each_of_them_always():
    found = with_canary(5)
    services = chosen_services(found)
    assert 0.04 <= Counter(services.values())["new"] / len(KEYS) <= 0.06
    assert chosen_services(found) == services


def test_a_canary_that_grows_keeps_the_keys_it_has():
    few, more = chosen_services(with_canary(5)), chosen_services(with_canary(20))
    assert {key for key in KEYS if few[key] == "new"} <= {key for key in KEYS if more[key] == "new"}


@pytest.mark.parametrize(("percent", "expected"), [(0, "old"), (100, "new")])
def test_nothing_and_everything(percent, expected):
    found = with_canary(percent)
    assert {attempt(of_tenant(key), found).chosen.node.service_id for key in KEYS[:200]} == {expected}


def test_a_canary_shows_in_the_reasons():
    step = attempt(of_tenant("t"), with_canary(100))
    assert step.why.notes == ("canary: 100 % to new, by labels.tenant",)
    rest = attempt(of_tenant("t"), with_canary(0))
    assert rest.why.left_out == {"takes only the canary's share": 1}


def test_a_strategy_that_names_the_canarys_service_gives_it_more():
    found = with_canary(0, strategy={"type": "weighted_random", "weights": {"old": 1, "new": 1}})
    step = attempt(of_tenant("t"), found)
    assert {c["service_id"]: c["share"] for c in step.why.candidates} == {"old": 0.5, "new": 0.5}


@pytest.mark.parametrize(
    "new", [{"health": Health.NOT_READY}, {"max_concurrency": 1}, {"weight": 0}], ids=["not ready", "full", "weight 0"]
)
def test_without_an_able_node_of_the_canary_the_strategy_chooses(new):
    found = with_canary(100, a_node("old/1"), a_node("new/1", **new))
    step = attempt(of_tenant("t"), found, flying={"new/1": 1})
    assert step.chosen.node.service_id == "old"
    assert step.why.notes == ("the canary new has no able node: the route's strategy chose",)


def test_a_call_that_the_canary_has_failed_leaves_it():
    step = attempt(of_tenant("t", an_attempt(Ended.NOT_STARTED, "new/1", route_id="r")), with_canary(100))
    assert step.chosen.node.service_id == "old"
    assert step.why.notes == ("the canary new was tried already: the route's strategy chose",)


def test_a_call_without_the_key_is_not_the_canarys():
    step = attempt(a_journey(), with_canary(100))
    assert step.chosen.node.service_id == "old"
    assert step.why.notes == ("no canary: the call has no labels.tenant",)


@given(st.text(), st.floats(0, 100))
def test_any_key_is_decided_the_same_way_twice(tenant, percent):
    found = with_canary(percent)
    assert attempt(of_tenant(tenant), found).chosen is attempt(of_tenant(tenant), found).chosen


# --- Copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("percent", [1, 5, 50])
def test_a_mirror_has_its_percentage_of_the_calls(percent):
    ids = [UUID(int=number) for number in range(10_000)]
    taken = sum(Mirror("shadow", percent).takes("r", call_id) for call_id in ids)
    assert abs(taken / 100 - percent) < 1.5


@given(st.uuids(), st.floats(0, 100))
def test_a_call_is_copied_or_not_whoever_asks(call_id, percent):
    mirror = Mirror("shadow", percent)
    assert mirror.takes("r", call_id) == Mirror("shadow", percent).takes("r", UUID(str(call_id)))
    assert not Mirror("shadow", 0).takes("r", call_id) and Mirror("shadow", 100).takes("r", call_id)
    if mirror.takes("r", call_id):
        assert Mirror("shadow", min(100.0, percent + 1)).takes("r", call_id), "a growing share keeps what it has"


def test_whom_a_route_mirrors_to_gets_nothing_else_unless_it_is_named():
    nodes = a_node("old/1"), a_node("shadow/1")
    mirrored = a_table(a_rule("r", mirror={"service": "shadow", "percent": 100}))
    step = attempt(of_tenant("t"), tables(*nodes, routes=mirrored))
    assert step.chosen.node.service_id == "old" and step.why.left_out == {"takes only copies": 1}
