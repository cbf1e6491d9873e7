"""One of the able: weighted, two choices by load, two choices by latency."""

import math
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from routing.core.pool import Candidate, Field

Chance = Callable[[], float]
"""Draws a number uniform in [0, 1)."""


class Load(Protocol):
    """What a process knows of its nodes."""

    def in_flight(self, key: tuple[str, str]) -> int: ...

    def latency_s(self, key: tuple[str, str]) -> float: ...

    def suspects(self) -> Container[tuple[str, str]]:
        """Nodes that this process's own calls have just failed to reach."""
        ...


def pick(strategy: str, field: Field, load: Load, chance: Chance) -> Candidate:
    """Choose one of the field's able candidates (there is at least one)."""
    if len(field.able) == 1:
        return field.able[0]
    match strategy:
        case "weighted_random":
            return field.at(chance())
        case "latency_aware":
            return better_of_two(field.able, chance, cost=lambda c: peak_cost(c, load))
        case _:  # least_loaded, exact among the nodes of its one service, cost_aware among the cheapest
            return better_of_two(field.able, chance, cost=lambda c: load_cost(c, load))


def better_of_two(able: Sequence[Candidate], chance: Chance, *, cost: Callable[[Candidate], float]) -> Candidate:
    """The cheaper of two different candidates drawn at random; equal ones as they were drawn.

    Source: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001.
    """
    first = int(chance() * len(able))
    second = int(chance() * (len(able) - 1))
    if second >= first:
        second += 1
    one, other = able[first], able[second]
    return one if cost(one) <= cost(other) else other


def load_cost(candidate: Candidate, load: Load) -> float:
    """Calls in flight per unit of weight, this one included."""
    return (load.in_flight(candidate.node.key) + 1) / candidate.node.weight


def peak_cost(candidate: Candidate, load: Load) -> float:
    """Peak-EWMA latency times calls in flight, this one included, per unit of weight.

    Source: Finagle's `PeakEwma` load metric (Twitter, 2013).
    """
    key = candidate.node.key
    return (load.latency_s(key) + 1e-4) * (load.in_flight(key) + 1) / candidate.node.weight


def peak_ewma(average_s: float, sample_s: float, elapsed_s: float, *, decay_s: float) -> float:
    """The next peak-sensitive moving average (s): a worse sample counts at once, a better one by and by.

    `elapsed_s` is the time since the last sample, `decay_s` the time constant. Source: as `peak_cost`.
    """
    if sample_s > average_s:
        return sample_s
    kept = math.exp(-elapsed_s / decay_s)
    return average_s * kept + sample_s * (1 - kept)
