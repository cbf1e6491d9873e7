"""One of the able: weighted, two choices by load, two choices by latency."""

import math
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from routing.core.breaker import Shuts
from routing.core.pool import Candidate, Field
from routing.core.sticking import draw_of

Chance = Callable[[], float]
"""Draws a number uniform in [0, 1)."""
RateKey = tuple[str, str, str]
"""Service, node and capability: what a declared rate is counted by."""
WINNERS_KEPT = 4096


class Load(Protocol):
    """What a process knows of its nodes."""

    def in_flight(self, key: tuple[str, str]) -> int: ...

    def latency_s(self, key: tuple[str, str]) -> float: ...

    def tokens(self, key: RateKey, rate_per_s: float) -> float:
        """How many calls the rate allows now."""
        ...

    def next_token_s(self, key: RateKey, rate_per_s: float) -> float:
        """Seconds until it allows one."""
        ...

    def suspects(self) -> Container[tuple[str, str]]:
        """Nodes that this process's own calls have just failed to reach."""
        ...

    def shut(self) -> Shuts:
        """Breakers through which nothing may go now."""
        ...

    def retry_refusal(self, service_id: str) -> str | None:
        """Why the failure of an attempt at this service may make no further one now; None: it may."""
        ...


CHOICE = {
    "weighted_random": "of the able by chance, each as likely as its share",
    "latency_aware": "of the able the quicker of two drawn at random (latency times calls in flight)",
    "sticky": "of the able the one that its key belongs to",
}
LESS_BUSY = "of the able the less busy of two drawn at random (calls in flight by weight)"


def choice_sentence(strategy: str) -> str:
    """How `pick` chooses where several are able: what there is to say of those that it did not choose."""
    return CHOICE.get(strategy, LESS_BUSY)


def pick(strategy: str, field: Field, load: Load, chance: Chance, key: str | None = None) -> Candidate:
    """Choose one of the field's able candidates (there is at least one). `key` is what the sticky strategy goes by."""
    if len(field.able) == 1:
        return field.able[0]
    match strategy:
        case "weighted_random":
            return field.at(chance())
        case "latency_aware":
            return better_of_two(field.able, chance, cost=lambda c: peak_cost(c, load))
        case "sticky" if key is not None:
            return stuck_to(field, key)
        case _:  # least_loaded, sticky without its key; exact and cost_aware among those they leave able
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


def stuck_to(field: Field, key: str) -> Candidate:
    """The able candidate that this key belongs to, each in proportion to its node's weight.

    A node that goes takes only its own keys with it, one that comes takes its share from all. The winner is
    remembered, so that a key that comes again costs nothing in a large pool.
    Source: J. Schindelhauer and G. Schomaker, "Weighted Distributed Hash Tables", SPAA 2005 (weighted rendezvous).
    """
    if (known := field.stuck.get(key)) is None:
        known = min(field.able, key=lambda c: -math.log(draw_of(key, *c.node.key)) / c.node.weight)
        if len(field.stuck) >= WINNERS_KEPT:
            field.stuck.clear()
        field.stuck[key] = known
    return known


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
