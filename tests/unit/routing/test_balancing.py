"""Which of the able: shares over many draws of a seeded generator, and never one that is not able."""

import heapq
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.balancing import load_cost, peak_cost, peak_ewma, pick
from routing.core.pool import Field, Preferences, make_field
from tests.factories import KnownLoad, a_candidate, chances

STRATEGIES = ("weighted_random", "latency_aware", "least_loaded", "exact", "cost_aware")
DRAWS = 20_000


def field_of(*candidates, weights=None) -> Field:
    return make_field(candidates, Preferences(weights, shown_at_most=32))


def shares(strategy: str, field: Field, load: KnownLoad | None = None) -> dict[str, float]:
    draw = random.Random(7).random
    picked = Counter("/".join(pick(strategy, field, load or KnownLoad(), draw).node.key) for _ in range(DRAWS))
    return {name: count / DRAWS for name, count in picked.items()}


def test_weighted_random_follows_the_weights_of_services():
    field = field_of(a_candidate("doc/1"), a_candidate("llm/1"), weights={"doc": 40, "llm": 60})
    assert shares("weighted_random", field) == pytest.approx({"doc/1": 0.4, "llm/1": 0.6}, abs=0.015)


def test_weighted_random_parts_a_services_share_by_the_weights_of_its_nodes():
    field = field_of(
        a_candidate("doc/1", weight=100),
        a_candidate("doc/2", weight=300),
        a_candidate("llm/1", weight=1000),
        weights={"doc": 40, "llm": 60},
    )
    assert shares("weighted_random", field) == pytest.approx({"doc/1": 0.1, "doc/2": 0.3, "llm/1": 0.6}, abs=0.015)


def test_the_share_of_a_service_without_able_nodes_goes_to_the_others_in_proportion():
    field = field_of(
        a_candidate("doc/1"),
        a_candidate("llm/1"),
        a_candidate("gone/1", refusal="not ready"),
        weights={"doc": 10, "llm": 30, "gone": 60},
    )
    assert shares("weighted_random", field) == pytest.approx({"doc/1": 0.25, "llm/1": 0.75}, abs=0.015)


@pytest.mark.parametrize("strategy", ["least_loaded", "latency_aware", "exact"])
def test_two_choices_are_even_where_all_are_alike(strategy):
    field = field_of(*[a_candidate(f"doc/{n}") for n in range(4)])
    assert shares(strategy, field) == pytest.approx({f"doc/{n}": 0.25 for n in range(4)}, abs=0.015)


def test_least_loaded_never_takes_the_fullest_of_three():
    field = field_of(*[a_candidate(f"doc/{n}") for n in range(3)])
    assert "doc/2" not in shares("least_loaded", field, KnownLoad(flying={"doc/2": 5}))


def test_least_loaded_counts_calls_per_weight():
    light, heavy = a_candidate("doc/1", weight=10), a_candidate("doc/2", weight=100)
    load = KnownLoad(flying={"doc/1": 1, "doc/2": 9})
    assert load_cost(heavy, load) < load_cost(light, load)
    assert shares("least_loaded", field_of(light, heavy), load) == {"doc/2": 1.0}


def test_latency_aware_leaves_the_slow_one():
    field = field_of(a_candidate("doc/1"), a_candidate("doc/2"))
    assert shares("latency_aware", field, KnownLoad(latency_s={"doc/1": 0.2, "doc/2": 0.02})) == {"doc/2": 1.0}


def test_latency_aware_returns_to_the_slow_one_when_the_quick_one_is_full():
    slow, quick = a_candidate("doc/1"), a_candidate("doc/2")
    load = KnownLoad(latency_s={"doc/1": 0.2, "doc/2": 0.02}, flying={"doc/2": 20})
    assert peak_cost(slow, load) < peak_cost(quick, load)


@given(
    strategy=st.sampled_from(STRATEGIES),
    candidates=st.lists(st.tuples(st.integers(1, 1000), st.booleans()), min_size=1, max_size=12),
    flying=st.lists(st.integers(0, 50), min_size=12, max_size=12),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2),
)
def test_only_able_nodes_are_ever_picked(strategy, candidates, flying, draws):
    made = [
        a_candidate(f"doc/{n}", weight=weight, refusal=None if able else "not ready")
        for n, (weight, able) in enumerate(candidates)
    ]
    field = field_of(*made)
    if field.able:
        load = KnownLoad(flying={f"doc/{n}": count for n, count in enumerate(flying)})
        assert pick(strategy, field, load, chances(draws)).refusal is None


def test_a_chance_just_below_one_still_falls_on_somebody():
    thirds = field_of(*[a_candidate(f"doc/{n}", weight=1) for n in range(3)])
    assert pick("weighted_random", thirds, KnownLoad(), chances([1 - 2**-53])).node.key == ("doc", "2")


def test_a_worse_latency_counts_at_once_and_a_better_one_by_and_by():
    assert peak_ewma(0.1, 0.5, 0.0, decay_s=10) == 0.5
    assert 0.1 < peak_ewma(0.5, 0.1, 1.0, decay_s=10) < 0.5
    assert peak_ewma(0.5, 0.1, 1000.0, decay_s=10) == pytest.approx(0.1)


# --- latency_aware over time: nodes that really take time, averages that really fade ---------------------------------

QUICK_S, SLOW_S, DECAY_S = 0.02, 0.2, 10.0


class Simulated:
    """Calls in flight and peak averages of nodes, by a clock that the simulation moves."""

    def __init__(self) -> None:
        self.now, self.flying = 0.0, Counter[tuple[str, str]]()
        self.averages: dict[tuple[str, str], tuple[float, float]] = {}
        self.ends: list[tuple[float, tuple[str, str], float]] = []

    def in_flight(self, key: tuple[str, str]) -> int:
        return self.flying[key]

    def latency_s(self, key: tuple[str, str]) -> float:
        average, at = self.averages.get(key, (0.0, 0.0))
        return average * math.exp(-(self.now - at) / DECAY_S)

    def suspects(self) -> tuple[()]:
        return ()

    def start(self, key: tuple[str, str], takes_s: float) -> None:
        self.flying[key] += 1
        heapq.heappush(self.ends, (self.now + takes_s, key, takes_s))

    def go_to(self, moment: float) -> None:
        while self.ends and self.ends[0][0] <= moment:
            self.now, key, took_s = heapq.heappop(self.ends)
            average, at = self.averages.get(key, (0.0, self.now))
            self.averages[key] = (peak_ewma(average, took_s, self.now - at, decay_s=DECAY_S), self.now)
            self.flying[key] -= 1
        self.now = moment


def simulated_shares(takes_s: dict[str, float], *, calls: int = 20_000, a_second: float = 100.0) -> dict[str, float]:
    """Shares of `calls` by latency_aware, after a tenth of them to warm up; answer times vary by a fifth."""
    draw, load = random.Random(11), Simulated()
    field = field_of(*[a_candidate(f"doc/{n}") for n in takes_s])
    picked = Counter[str]()
    for call in range(calls):
        load.go_to(load.now + draw.expovariate(a_second))
        key = pick("latency_aware", field, load, draw.random).node.key
        load.start(key, takes_s[key[1]] * draw.uniform(0.8, 1.2))
        if call >= calls // 10:
            picked[key[1]] += 1
    return {name: picked[name] / picked.total() for name in takes_s}


def test_latency_aware_gives_a_node_ten_times_slower_under_five_percent():
    found = simulated_shares({"a": QUICK_S, "b": QUICK_S, "slow": SLOW_S})
    assert found["slow"] < 0.05
    assert min(found["a"], found["b"]) > 0.4


@pytest.mark.parametrize("a_second", [5.0, 100.0, 400.0])
def test_latency_aware_parts_calls_among_equals(a_second):
    found = simulated_shares({"a": QUICK_S, "b": QUICK_S, "c": QUICK_S}, a_second=a_second)
    assert all(0.25 <= share <= 0.42 for share in found.values()), found
