"""Full nodes take nothing, nearly full ones are left where others can; and it costs nothing in the ordinary case."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.limits import Bucket, full, next_token_s, taken, tokens_left
from routing.core.plan import Attempt, Policy, Step, Stop, next_step
from routing.core.tables import Tables
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_envelope, an_offer, chances, tables
from tests.unit.routing.builders import a_rule, a_table

DRAWS = (0.0, 0.3, 0.6, 0.999)


def decide(found: Tables, flying: dict[str, int], *, draw: float = 0.5, **asked: Any) -> Step:
    journey = a_journey(an_envelope(**asked))
    return next_step(journey, found, KnownLoad(flying), Policy(), now_millis=NOW, chance=chances([draw]))


def rated(found: Tables, tokens: dict[str, float], *, draw: float = 0.5, **asked: Any) -> Step:
    """A decision on nodes that have so many calls of their rate left."""
    journey = a_journey(an_envelope(**asked))
    load = KnownLoad(tokens=tokens)
    return next_step(journey, found, load, Policy(), now_millis=NOW, chance=chances([draw]))


def takers(found: Tables, flying: dict[str, int], **asked: Any) -> set[str]:
    """Who takes the call, whatever chance says."""
    steps = [decide(found, flying, draw=draw, **asked) for draw in DRAWS]
    return {"/".join(step.chosen.node.key) for step in steps if isinstance(step, Attempt)}


def by(strategy: str) -> Any:
    return a_table(a_rule("r", strategy={"type": strategy}))


@pytest.mark.parametrize("strategy", ["weighted_random", "least_loaded", "latency_aware", "cost_aware"])
def test_a_full_node_takes_no_more(strategy):
    found = tables(a_node("a/1", max_concurrency=2), a_node("b/1"), routes=by(strategy))
    assert takers(found, {"a/1": 2, "b/1": 500}) == {"b/1"}
    assert "a/1" in takers(found, {"a/1": 1, "b/1": 500})


def test_a_full_node_is_shown_with_its_limit():
    found = tables(a_node("a/1", max_concurrency=2), a_node("b/1"), routes=by("weighted_random"))
    step = decide(found, {"a/1": 2}, draw=0.0)
    assert isinstance(step, Attempt)
    assert step.why.left_out == {"at its max_concurrency (2)": 1}
    assert [(c["service_id"], c["share"], c["reasons"]) for c in step.why.candidates] == [
        ("b", 1.0, []),
        ("a", 0.0, ["at its max_concurrency (2)"]),
    ]


def test_when_all_are_full_the_call_is_rate_limited():
    step = decide(tables(a_node("a/1", max_concurrency=2), a_node("b/1", max_concurrency=1)), {"a/1": 2, "b/1": 1})
    assert isinstance(step, Stop)
    assert (step.ending.code, step.ending.retry_after_ms) == ("rate_limited", 1000)
    assert step.ending.detail.endswith("now: 1 at its max_concurrency (1), 1 at its max_concurrency (2)")


def test_a_rule_for_full_nodes_answers_503():
    rule = {"condition": "rate_limited", "action": "return_503", "wait_before_retry_ms": 300}
    found = tables(a_node("a/1", max_concurrency=1), routes=a_table(a_rule("r", fallback_rules=[rule])))
    step = decide(found, {"a/1": 1})
    assert isinstance(step, Stop)
    assert (step.ending.code, step.ending.retry_after_ms) == ("no_available_node", 300)


def test_a_wider_service_takes_what_the_full_narrow_one_cannot():
    found = tables(a_node("narrow/1", an_offer(narrowness=3), max_concurrency=1), a_node("wide/1"))
    assert takers(found, {}) == {"narrow/1"}
    assert takers(found, {"narrow/1": 1}) == {"wide/1"}


@pytest.mark.parametrize(("urgency", "expected"), [("interactive", {"b/1"}), ("normal", {"a/1"}), ("bulk", {"a/1"})])
def test_interactive_calls_avoid_nodes_near_their_limit(urgency, expected):
    found = tables(a_node("a/1", max_concurrency=10, weight=1000), a_node("b/1", weight=1))
    assert takers(found, {"a/1": 8}, urgency=urgency) == expected


def test_interactive_calls_take_a_node_near_its_limit_where_there_is_no_other():
    found = tables(a_node("a/1", max_concurrency=10), a_node("b/1", max_concurrency=1))
    assert takers(found, {"a/1": 9, "b/1": 1}, urgency="interactive") == {"a/1"}


def costly(**flying: int) -> tuple[Tables, dict[str, int]]:
    levels = {"cheap": "low", "fair": "medium", "dear": "high"}
    nodes = [a_node(f"{name}/1", an_offer(cost_level=level), max_concurrency=10) for name, level in levels.items()]
    return tables(*nodes, routes=by("cost_aware")), {f"{name}/1": count for name, count in flying.items()}


@pytest.mark.parametrize(
    ("flying", "expected"),
    [
        ({}, "cheap/1"),
        ({"cheap": 7}, "cheap/1"),
        ({"cheap": 8}, "fair/1"),
        ({"cheap": 8, "fair": 8}, "dear/1"),
        ({"cheap": 8, "fair": 8, "dear": 8}, "cheap/1"),
        ({"cheap": 10, "fair": 9, "dear": 8}, "fair/1"),
    ],
)
def test_cost_aware_takes_the_cheapest_that_is_not_near_its_limit(flying, expected):
    assert takers(*costly(**flying)) == {expected}


def test_bulk_prefers_what_is_cheap_and_never_bends_reviewed_weights():
    nodes = [a_node("cheap/1", an_offer(cost_level="low")), a_node("dear/1", an_offer(cost_level="high"))]
    assert takers(tables(*nodes, routes=by("least_loaded")), {"cheap/1": 50}, urgency="bulk") == {"cheap/1"}
    assert takers(tables(*nodes, routes=by("weighted_random")), {}, urgency="bulk") == {"cheap/1", "dear/1"}


@given(
    strategy=st.sampled_from(["weighted_random", "least_loaded", "latency_aware", "cost_aware"]),
    urgency=st.sampled_from(["interactive", "normal", "bulk"]),
    nodes=st.lists(st.tuples(st.none() | st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=8),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_nothing_is_ever_sent_to_a_full_node_and_refused_only_when_all_are(strategy, urgency, nodes, draw):
    found = tables(
        *[a_node(f"s{n % 3}/{n}", max_concurrency=most) for n, (most, _flying) in enumerate(nodes)],
        routes=by(strategy),
    )
    flying = {f"s{n % 3}/{n}": count for n, (_most, count) in enumerate(nodes)}
    step = decide(found, flying, draw=draw, urgency=urgency)
    if isinstance(step, Attempt):
        most = step.chosen.node.max_concurrency
        assert most is None or flying["/".join(step.chosen.node.key)] < most
    else:
        assert isinstance(step, Stop)
        assert step.ending.code == "rate_limited"
        assert all(most is not None and count >= most for most, count in nodes)


# --- Rates -----------------------------------------------------------------------------------------------------------

T = 1000.0
TEN = an_offer(rate_per_s=10)


@pytest.mark.parametrize("strategy", ["weighted_random", "least_loaded", "latency_aware", "cost_aware"])
def test_over_its_rate_a_node_takes_nothing_and_others_do(strategy):
    found = tables(a_node("a/1", TEN), a_node("b/1"), routes=by(strategy))
    for draw in DRAWS:
        step = rated(found, {"a/1": 0.9}, draw=draw)
        assert isinstance(step, Attempt)
        assert step.chosen.node.service_id == "b"
    step = rated(found, {"a/1": 0.9}, draw=0.0)
    assert isinstance(step, Attempt)
    assert set(step.why.left_out) <= {"at its rate_limit (10 a second)"}


def test_when_all_are_over_their_rate_the_first_token_says_when_to_come_back():
    step = rated(tables(a_node("a/1", TEN), a_node("b/1", TEN)), {"a/1": 0.0, "b/1": 0.6})
    assert isinstance(step, Stop)
    assert (step.ending.code, step.ending.retry_after_ms) == ("rate_limited", 40)
    assert step.ending.detail.endswith("now: 2 at its rate_limit (10 a second)")


@pytest.mark.parametrize(("urgency", "expected"), [("interactive", "b"), ("normal", "a")])
def test_interactive_calls_avoid_nodes_near_their_rate(urgency, expected):
    found = tables(a_node("a/1", TEN, weight=1000), a_node("b/1", weight=1))
    step = rated(found, {"a/1": 2.0}, urgency=urgency)
    assert isinstance(step, Attempt)
    assert step.chosen.node.service_id == expected


@pytest.mark.parametrize(("left", "expected"), [(2.1, "cheap"), (2.0, "dear")])
def test_cost_aware_skips_nodes_near_their_rate(left, expected):
    cheap, dear = an_offer(rate_per_s=10, cost_level="low"), an_offer(cost_level="high")
    found = tables(a_node("cheap/1", cheap), a_node("dear/1", dear), routes=by("cost_aware"))
    step = rated(found, {"cheap/1": left})
    assert isinstance(step, Attempt)
    assert step.chosen.node.service_id == expected


@pytest.mark.parametrize(("rate", "at_once"), [(10, 10), (2.5, 2), (1, 1), (0.1, 1), (1 / 3600, 1)])
def test_a_burst_is_one_seconds_worth_and_at_least_one(rate, at_once):
    bucket, sent = full(rate, T), 0
    while tokens_left(bucket, rate, T) >= 1:
        bucket, sent = taken(bucket, rate, T), sent + 1
    assert sent == at_once


def test_tokens_come_back_at_the_rate_and_no_more_than_a_burst():
    empty = Bucket(0, T)
    assert tokens_left(empty, 10, T + 0.25) == 2.5
    assert tokens_left(empty, 10, T + 60) == 10
    assert next_token_s(empty, 10, T) == pytest.approx(0.1)
    assert next_token_s(full(10, T), 10, T) == 0
    assert taken(full(10, T), 10, T, -1) == full(10, T)


def test_a_clock_that_goes_back_gives_nothing():
    assert tokens_left(Bucket(0.5, T), 10, T - 100) == 0.5


@given(st.floats(0.05, 500), st.lists(st.floats(0, 2), max_size=150))
def test_however_it_is_asked_no_more_is_admitted_than_burst_and_rate(rate, rests):
    bucket, now_s, admitted = full(rate, T), T, 0
    for rest_s in rests:
        now_s += rest_s
        for _ in range(5):
            if tokens_left(bucket, rate, now_s) >= 1:
                bucket, admitted = taken(bucket, rate, now_s), admitted + 1
    assert admitted <= max(1, rate) + rate * (now_s - T) + 1e-6
