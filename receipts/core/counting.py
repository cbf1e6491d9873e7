"""Ended calls counted by the minute: into which bucket a duration falls, what a percentile is, what answers a span."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum

BUCKETS_PER_OCTAVE = 8
"""Of durations in ms: two neighbours differ by 9 %, and so may a percentile."""
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def bounds_ms(bucket: int) -> tuple[float, float]:
    """From where to where a bucket goes; 0 holds all below one millisecond."""
    if bucket == 0:
        return 0.0, 1.0
    return 2.0 ** ((bucket - 1) / BUCKETS_PER_OCTAVE), 2.0 ** (bucket / BUCKETS_PER_OCTAVE)


def percentile_ms(counts: Mapping[int, int], share: float) -> float:
    """The duration that so large a share of the calls stays below, by the count of each bucket; 0 without any."""
    rank = share * sum(counts.values())
    passed = 0
    for bucket in sorted(counts):
        if counts[bucket] and passed + counts[bucket] >= rank:
            low, high = bounds_ms(bucket)
            return low + (high - low) * max(0.0, rank - passed) / counts[bucket]
        passed += counts[bucket]
    return 0.0


class Source(IntEnum):
    """What can tell of a span: calls themselves, or the counts of minutes or hours. In seconds."""

    CALLS = 0
    MINUTES = 60
    HOURS = 3600


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a span and what tells of it."""

    source: Source
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Rolled:
    """Which minutes have been counted (whole hours among them as such, too), and from when on minutes are kept."""

    since: datetime
    until: datetime
    minutes_since: datetime


def pieces(since: datetime, until: datetime, rolled: Rolled | None) -> list[Piece]:
    """The parts of a span, each told by the coarsest source that can: all of it once, in order."""
    low, high = (since, since) if rolled is None else (max(since, rolled.since), min(until, rolled.until))
    low, high = later_start(low, MINUTE), start_of(high, MINUTE)
    if rolled is None or low >= high:
        return list(parts(Piece(Source.CALLS, since, until)))
    first, last = later_start(low, HOUR), start_of(high, HOUR)
    if first >= last:
        first = last = high
    return list(
        parts(
            Piece(Source.CALLS, since, low),
            by_minutes(low, first, rolled),
            Piece(Source.HOURS, first, last),
            by_minutes(last, high, rolled),
            Piece(Source.CALLS, high, until),
        )
    )


def by_minutes(since: datetime, until: datetime, rolled: Rolled) -> Piece:
    return Piece(Source.MINUTES if since >= rolled.minutes_since else Source.CALLS, since, until)


def parts(*found: Piece) -> Iterator[Piece]:
    return (piece for piece in found if piece.since < piece.until)


def start_of(moment: datetime, span: timedelta) -> datetime:
    """The start of the minute or hour that a moment lies in."""
    seconds = moment.timestamp() // span.total_seconds() * span.total_seconds()
    return datetime.fromtimestamp(seconds, UTC)


def later_start(moment: datetime, span: timedelta) -> datetime:
    """The first start of a minute or hour that is not before a moment."""
    start = start_of(moment, span)
    return start if start == moment else start + span
