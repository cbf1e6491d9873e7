"""A trace as a waterfall: what filled the time of each call, and where a failure began. Values in, values out.

Moments are epoch milliseconds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from receipts.core.lifecycle import TERMINAL, CallStatus, Kind


class Filled(StrEnum):
    """What filled a piece of a call's time."""

    ATTEMPT = "attempt"
    WAIT = "wait"
    """Backoff, or a fallback rule's or a parked call's rest."""


OPEN = "open"
"""How a piece goes that has not ended."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A receipt, as far as it moves the time on."""

    kind: str
    at_ms: float
    attempt: int | None = None
    node: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a call's time."""

    filled: Filled
    since_ms: float
    until_ms: float
    went: str = OPEN
    """A terminal kind, `attempt_failed`, or `OPEN`."""
    attempt: int | None = None
    node: str | None = None
    reason: str = ""


WAITS = frozenset({Kind.RETRY_SCHEDULED, Kind.FALLBACK})
ENDS_AN_ATTEMPT = TERMINAL | {Kind.ATTEMPT_FAILED}


def pieces_of(receipts: Iterable[Moved], *, until_ms: float) -> list[Piece]:
    """The attempts of a call and its waits, in order. What has not ended yet goes on until `until_ms`."""
    found: list[Piece] = []
    attempt: Piece | None = None
    waits: Piece | None = None
    for moved in receipts:
        if waits is not None and (moved.kind == Kind.FORWARDED or moved.kind in TERMINAL):
            found.append(replace(waits, until_ms=moved.at_ms, went="waited"))
            waits = None
        if moved.kind == Kind.FORWARDED:
            if attempt is not None:  # its process is gone, and another has taken the call over
                found.append(replace(attempt, until_ms=moved.at_ms, went=Kind.ATTEMPT_FAILED))
            attempt = Piece(Filled.ATTEMPT, moved.at_ms, until_ms, attempt=moved.attempt, node=moved.node)
        elif moved.kind in ENDS_AN_ATTEMPT and attempt is not None:
            found.append(replace(attempt, until_ms=moved.at_ms, went=moved.kind, reason=moved.reason))
            attempt = None
        elif moved.kind in WAITS and waits is None and attempt is None:
            waits = Piece(Filled.WAIT, moved.at_ms, until_ms, attempt=moved.attempt, reason=moved.reason)
    return found + [piece for piece in (attempt, waits) if piece is not None]


@dataclass(frozen=True, slots=True)
class Hop:
    """One call of a trace, as far as its place in the tree and its end matter."""

    id: UUID
    parent_id: UUID | None
    status: str
    since_ms: float
    until_ms: float | None
    is_copy: bool = False

    @property
    def is_failed(self) -> bool:
        """Whether it ended otherwise than well. What a person has cancelled did not fail."""
        return self.until_ms is not None and self.status not in (CallStatus.SUCCEEDED, CallStatus.CANCELLED)


def in_tree(hops: Sequence[Hop]) -> Iterator[tuple[Hop, int]]:
    """Each call after the one that made it, with its depth; one whose parent is not there is a root."""
    below = children(hops)
    waiting = [(hop, 0) for hop in reversed(below.get(None, []))]
    while waiting:
        hop, depth = waiting.pop()
        yield hop, depth
        waiting += [(child, depth + 1) for child in reversed(below.get(hop.id, []))]


def children(hops: Sequence[Hop]) -> Mapping[UUID | None, list[Hop]]:
    known = {hop.id for hop in hops}
    below: dict[UUID | None, list[Hop]] = {}
    for hop in hops:
        below.setdefault(hop.parent_id if hop.parent_id in known else None, []).append(hop)
    return below


def where_it_began(hops: Sequence[Hop], root: Hop) -> Hop:
    """The call below a failed one whose failure came before the others': most likely the cause.

    Of the failed children of a failed call that is the one that ended last before it did: a caller who has survived one
    failure may stumble over the next.
    """
    below = children(hops)
    at, seen = root, {root.id}
    while True:
        failed = [
            child
            for child in below.get(at.id, [])
            if child.is_failed and not child.is_copy and child.id not in seen and ended_before(child, at)
        ]
        if not failed:
            return at
        at = max(failed, key=lambda child: child.until_ms or 0.0)
        seen.add(at.id)


def ended_before(child: Hop, parent: Hop) -> bool:
    return parent.until_ms is None or (child.until_ms or 0.0) <= parent.until_ms


def failed_root(hops: Sequence[Hop]) -> Hop | None:
    """The first failed call that no failed call has made; roots of the trace before calls within it."""
    failed = [(depth, hop) for hop, depth in in_tree(hops) if hop.is_failed and not hop.is_copy]
    return min(failed, key=lambda found: (found[0], found[1].since_ms))[1] if failed else None


def percent(moment_ms: float, *, since_ms: float, span_ms: float) -> float:
    """Where a moment lies in a span, 0 to 100."""
    return min(100.0, max(0.0, 100 * (moment_ms - since_ms) / span_ms))
