"""Who can take calls, and the reason of everybody who cannot."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.node import AdminState, Health
from routing.core.matching import Route, Strategy
from routing.core.pool import Pool, Preferences, make_field, standing_refusal
from tests.factories import a_candidate, a_node, an_offer, tables


@dataclass(frozen=True)
class Exactly:
    """A version range of one."""

    version: str

    def accepts(self, version: str) -> bool:
        return version == self.version


def a_route(**facts) -> Route:
    return Route("r", facts.pop("strategy", Strategy("least_loaded")), **facts)


WEIGHTED = Strategy("weighted_random", weights={"summarizer": 0, "other": 5})


@pytest.mark.parametrize(
    ("node", "route", "refusal"),
    [
        pytest.param({}, None, None, id="able"),
        pytest.param({"health": Health.SUSPECT}, None, None, id="suspicion alone takes nobody out"),
        pytest.param({"admin_state": AdminState.DISABLED}, None, "disabled by an operator", id="disabled"),
        pytest.param({"admin_state": AdminState.DRAINING}, None, "draining", id="draining"),
        pytest.param({"expired": True}, None, "lease expired", id="expired"),
        pytest.param({"health": Health.STARTING}, None, "not yet proven ready", id="starting"),
        pytest.param({"health": Health.NOT_READY}, None, "not ready", id="not ready"),
        pytest.param({"weight": 0}, None, "weight 0", id="weight 0"),
        pytest.param({}, a_route(node_tags=frozenset({"gpu"})), "lacks tag gpu", id="lacks a tag of the route"),
        pytest.param({"tags": frozenset({"gpu"})}, a_route(node_tags=frozenset({"gpu"})), None, id="has the tag"),
        pytest.param({"version": "1"}, a_route(node_version=Exactly("1")), None, id="version fits"),
        pytest.param(
            {"version": "2"}, a_route(node_version=Exactly("1")), "version 2 is outside the route's range", id="version"
        ),
        pytest.param({}, a_route(strategy=WEIGHTED), "weight 0 in the route", id="weight 0 in the route"),
    ],
)
def test_standing_refusal(node, route, refusal):
    assert standing_refusal(a_node(**node), route, frozenset()) == refusal


def test_a_calls_tags_narrow_nodes_only_where_no_route_matched():
    node = a_node(tags=frozenset({"prod"}))
    assert standing_refusal(node, None, frozenset({"prod"})) is None
    assert standing_refusal(node, None, frozenset({"prod", "gpu"})) == "lacks tag gpu"
    assert standing_refusal(node, a_route(), frozenset({"gpu"})) is None


def test_a_route_narrows_the_services():
    found = tables(a_node("doc/1"), a_node("llm/1"))
    route = a_route(strategy=Strategy("exact", services=("llm",)))
    assert [c.node.service_id for g in found.pool("file_summary", route, frozenset()).groups for c in g.candidates] == [
        "llm"
    ]


def test_weighted_random_without_weights_gives_each_service_the_same():
    found = tables(a_node("doc/1"), a_node("doc/2"), a_node("llm/1"))
    pool = found.pool("file_summary", a_route(strategy=Strategy("weighted_random")), frozenset())
    assert [c["share"] for c in pool.field((None,)).shown] == [0.25, 0.25, 0.5]


def test_nodes_are_grouped_by_what_they_take():
    report = an_offer(input={"required": ["content_type"]})
    found = tables(
        a_node("a/1", report),
        a_node("a/2", an_offer(input={"required": ["content_type"]})),
        a_node("b/1", an_offer()),
        a_node("c/1", an_offer(allow_callers=frozenset({"ceo"}))),
    )
    assert sorted(len(g.candidates) for g in found.pool("file_summary", None, frozenset()).groups) == [1, 1, 2]


def test_a_group_that_is_out_takes_its_nodes_out_with_the_reason():
    pool = Pool([a_candidate("a/1"), a_candidate("b/1", refusal="not ready")], Preferences())
    field = pool.field(("its input schema refuses the payload",))
    assert field.able == ()
    assert field.left_out == {"its input schema refuses the payload": 2}


def test_candidates_are_shown_in_full_up_to_a_bound_and_counted_beyond():
    able = [a_candidate(f"a/{n}") for n in range(3)]
    refused = [a_candidate(f"b/{n}", refusal="not ready") for n in range(5)]
    field = make_field(able + refused, Preferences(None, shown_at_most=4))
    assert [c["eligible"] for c in field.shown] == [True, True, True, False]
    assert field.shown[3] == {
        "service_id": "b", "node_id": "0", "eligible": False, "reasons": ["not ready"], "share": 0.0
    }  # fmt: skip
    assert field.left_out == {"not ready": 5}


@given(
    nodes=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 1000), st.booleans()), min_size=1, max_size=20),
    weights=st.none() | st.fixed_dictionaries({s: st.integers(1, 100) for s in "abcd"}),
)
def test_shares_of_the_able_sum_to_one(nodes, weights):
    candidates = [
        a_candidate(f"{service}/{n}", weight=weight, refusal=None if able else "not ready")
        for n, (service, weight, able) in enumerate(nodes)
    ]
    field = make_field(candidates, Preferences(weights, shown_at_most=32))
    assert len(field.able) == sum(able for *_rest, able in nodes)
    if field.able:
        assert field.cumulative[-1] == pytest.approx(1.0)
        assert sum(c["share"] for c in field.shown) == pytest.approx(1.0, abs=0.01)


def test_a_suspect_is_last_choice():
    sound, doubted = a_candidate("summarizer/n1"), a_candidate("summarizer/n2", suspect=True)
    field = make_field([doubted, sound], Preferences(None, shown_at_most=32))
    assert field.able == (sound,)
    assert [(c["node_id"], c["eligible"], c["share"]) for c in field.shown] == [("n1", True, 1.0), ("n2", True, 0.0)]
    assert field.shown[1]["reasons"] == ["suspect: only where nobody else can"]
    assert not field.left_out


def test_suspicion_alone_never_empties_a_pool():
    doubted = [a_candidate(f"summarizer/n{n}", suspect=True) for n in (1, 2)]
    refused = a_candidate("summarizer/n3", refusal="not ready")
    assert make_field([*doubted, refused], Preferences(None, shown_at_most=32)).able == tuple(doubted)


def test_a_suspected_service_leaves_its_share_to_the_others():
    doubted, sound = a_candidate("a/n1", suspect=True), a_candidate("b/n1")
    field = make_field([doubted, sound], Preferences({"a": 90, "b": 10}, shown_at_most=32))
    assert field.at(0.0).node.service_id == field.at(0.999).node.service_id == "b"


NARROW_FIRST = Preferences(narrow_first=True)


def test_a_narrower_service_comes_first_while_it_has_able_nodes():
    narrow = a_candidate("reports/1", an_offer(narrowness=3))
    wide = a_candidate("anything/1", an_offer(narrowness=0))
    found = make_field([wide, narrow], NARROW_FIRST)
    assert found.able == (narrow,)
    assert [(c["service_id"], c["eligible"], c["share"], c["reasons"]) for c in found.shown] == [
        ("reports", True, 1.0, []),
        ("anything", True, 0.0, ["a narrower service takes it"]),
    ]
    gone = a_candidate("reports/1", an_offer(narrowness=3), refusal="not ready")
    assert make_field([wide, gone], NARROW_FIRST).able == (wide,)


def test_suspicion_counts_more_than_a_narrow_schema():
    narrow = a_candidate("reports/1", an_offer(narrowness=3), suspect=True)
    wide = a_candidate("anything/1", an_offer(narrowness=0))
    assert make_field([narrow, wide], NARROW_FIRST).able == (wide,)


def test_versions_of_one_service_share_its_calls_whatever_they_demand():
    old, new = a_candidate("a/1", an_offer(narrowness=2)), a_candidate("a/2", an_offer(narrowness=3))
    assert make_field([old, new], NARROW_FIRST).able == (old, new)


def test_under_a_route_that_names_another_strategy_narrowness_counts_nothing():
    found = tables(a_node("a/1", an_offer(narrowness=3)), a_node("b/1", an_offer(narrowness=0)))
    assert len(found.pool("file_summary", a_route(), frozenset()).field((None,)).able) == 2
    assert len(found.pool("file_summary", None, frozenset()).field((None,)).able) == 1
