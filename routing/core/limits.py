"""How much a node may have at a time, by this process's own count of calls in flight.

A pick is made first and looked at afterwards: only where the picked node is at its limit are all the others looked
at. So in the ordinary case a call costs the same in a pool of any size.
"""

from dataclasses import replace

from routing.core.balancing import Chance, Load, pick
from routing.core.pool import Candidate, Field


def is_full(candidate: Candidate, load: Load) -> bool:
    """Whether the node has as many calls in flight as it has said it can take."""
    most = candidate.node.max_concurrency
    return most is not None and load.in_flight(candidate.node.key) >= most


def is_near(candidate: Candidate, load: Load, near_limit: float) -> bool:
    """Whether the node has `near_limit` (0 to 1) of what it can take in flight, or more."""
    most = candidate.node.max_concurrency
    return most is not None and load.in_flight(candidate.node.key) >= near_limit * most


def pick_within_limits(
    strategy: str, found: Field, load: Load, chance: Chance, key: str | None, *, near_limit: float | None
) -> tuple[Field, Candidate | None]:
    """One of the able (there is at least one) that is not full, and the field as it then stands; None: all are full.

    With `near_limit` a node that has so much of its `max_concurrency` in flight is taken only where nobody else can.
    """
    chosen = pick(strategy, found, load, chance, key)
    if not is_full(chosen, load) and (near_limit is None or not is_near(chosen, load, near_limit)):
        return found, chosen

    def limited(candidate: Candidate) -> Candidate:
        if is_full(candidate, load):
            return replace(candidate, refusal=f"at its max_concurrency ({candidate.node.max_concurrency})")
        if near_limit is not None and is_near(candidate, load, near_limit):
            return replace(candidate, near_limit=True)
        return candidate

    left = found.changed(limited)
    return left, pick(strategy, left, load, chance, key) if left.able else None
