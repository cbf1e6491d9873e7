"""How much a node may have: calls at a time, and calls a second.

A pick is made first and looked at afterwards: only where the picked node is at a limit are all the others looked at. So
in the ordinary case a call costs the same in a pool of any size.
"""

from dataclasses import dataclass, replace

from routing.core.balancing import Chance, Load, RateKey, pick
from routing.core.pool import Candidate, Field


def rate_key(candidate: Candidate) -> RateKey:
    """What a declared rate is counted by: a capability of a node."""
    return (*candidate.node.key, candidate.offer.capability)


def limit_refusal(candidate: Candidate, load: Load) -> str | None:
    """Which of its limits the node is at; None: it can take a call more."""
    most, rate_per_s = candidate.node.max_concurrency, candidate.offer.rate_per_s
    if most is not None and load.in_flight(candidate.node.key) >= most:
        return f"at its max_concurrency ({most})"
    if rate_per_s is not None and load.tokens(rate_key(candidate), rate_per_s) < 1:
        return f"at its rate_limit ({rate_per_s:g} a second)"
    return None


def is_near(candidate: Candidate, load: Load, near_limit: float) -> bool:
    """Whether the node has `near_limit` (0 to 1) of what it can take at a time, or in a second, or more."""
    most, rate_per_s = candidate.node.max_concurrency, candidate.offer.rate_per_s
    if most is not None and load.in_flight(candidate.node.key) >= near_limit * most:
        return True
    if rate_per_s is None:
        return False
    most_at_once = burst(rate_per_s)
    return most_at_once - load.tokens(rate_key(candidate), rate_per_s) >= near_limit * most_at_once


def pick_within_limits(
    strategy: str, found: Field, load: Load, chance: Chance, key: str | None, *, near_limit: float | None
) -> tuple[Field, Candidate | None]:
    """One of the able (there is at least one) below its limits, and the field as it then stands; None: all are at one.

    With `near_limit` a node that is so near one of its limits is taken only where nobody else can.
    """
    chosen = pick(strategy, found, load, chance, key)
    if limit_refusal(chosen, load) is None and (near_limit is None or not is_near(chosen, load, near_limit)):
        return found, chosen

    def limited(candidate: Candidate) -> Candidate:
        if refusal := limit_refusal(candidate, load):
            return replace(candidate, refusal=refusal)
        if near_limit is not None and is_near(candidate, load, near_limit):
            return replace(candidate, near_limit=True)
        return candidate

    left = found.changed(limited)
    return left, pick(strategy, left, load, chance, key) if left.able else None


def next_room_s(found: Field, load: Load, *, guess_s: float) -> float:
    """Seconds until the first of the candidates can take a call again, all of them being at a limit.

    When a call in flight will end is a guess, when a token comes back is known.
    """
    waits_s = []
    for candidate in found.candidates:
        if candidate.refusal is None:
            most, rate_per_s = candidate.node.max_concurrency, candidate.offer.rate_per_s
            full = most is not None and load.in_flight(candidate.node.key) >= most
            token_s = 0.0 if rate_per_s is None else load.next_token_s(rate_key(candidate), rate_per_s)
            waits_s.append(max(guess_s if full else 0.0, token_s))
    return min(waits_s, default=guess_s)


# --- A declared rate -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens left at a moment; they come back at the rate, up to one second's worth and at least one."""

    tokens: float
    at_s: float


def burst(rate_per_s: float) -> float:
    """How many calls may come at once: one second's worth, at least 1 (CONTRACT §3)."""
    return max(1.0, rate_per_s)


def full(rate_per_s: float, now_s: float) -> Bucket:
    return Bucket(burst(rate_per_s), now_s)


def tokens_left(bucket: Bucket, rate_per_s: float, now_s: float) -> float:
    """Tokens at `now_s`; a clock that went back gives none."""
    return min(burst(rate_per_s), bucket.tokens + max(0.0, now_s - bucket.at_s) * rate_per_s)


def taken(bucket: Bucket, rate_per_s: float, now_s: float, count: int = 1) -> Bucket:
    """The bucket with `count` tokens less, whether it had them or not; a negative count gives them back."""
    left = min(burst(rate_per_s), tokens_left(bucket, rate_per_s, now_s) - count)
    return Bucket(left, max(now_s, bucket.at_s))


def next_token_s(bucket: Bucket, rate_per_s: float, now_s: float) -> float:
    """Seconds until a token can be taken; 0 when one can now."""
    return max(0.0, 1 - tokens_left(bucket, rate_per_s, now_s)) / rate_per_s
