"""Durations in buckets, and what tells of a span."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.counting import HOUR, MINUTE, Piece, Rolled, Source, bounds_ms, percentile_ms, pieces

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def test_buckets_follow_each_other() -> None:
    assert bounds_ms(0) == (0.0, 1.0)
    for bucket in range(1, 200):
        assert math.isclose(bounds_ms(bucket)[1], bounds_ms(bucket + 1)[0])
    assert bounds_ms(81)[0] == 1024


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        pytest.param({}, 0.5, 0.0, id="nothing"),
        pytest.param({0: 10}, 0.5, 0.5, id="in the middle of the only bucket"),
        pytest.param({0: 50, 81: 50}, 0.5, 1.0, id="at the end of the first"),
        pytest.param({0: 50, 81: 50}, 1.0, bounds_ms(81)[1], id="the slowest"),
        pytest.param({81: 99, 0: 1}, 0.01, 1.0, id="in any order"),
    ],
)
def test_percentiles(counts: dict[int, int], share: float, expected: float) -> None:
    assert math.isclose(percentile_ms(counts, share), expected)


ROLLED = Rolled(since=at(-600), until=at(0), minutes_since=at(-180))


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        pytest.param(at(-5), at(0), [(Source.MINUTES, -5, 0)], id="whole minutes"),
        pytest.param(
            at(-5.5), at(1), [(Source.CALLS, -5.5, -5), (Source.MINUTES, -5, 0), (Source.CALLS, 0, 1)], id="edges"
        ),
        pytest.param(
            at(-130),
            at(0.5),
            [(Source.MINUTES, -130, -120), (Source.HOURS, -120, 0), (Source.CALLS, 0, 0.5)],
            id="hours in between",
        ),
        pytest.param(
            at(-310), at(-230), [(Source.CALLS, -310, -300), (Source.HOURS, -300, -240), (Source.CALLS, -240, -230)],
            id="minutes that are gone",
        ),
        pytest.param(at(1), at(2), [(Source.CALLS, 1, 2)], id="not counted yet"),
        pytest.param(at(-700), at(-650), [(Source.CALLS, -700, -650)], id="before counting began"),
        pytest.param(at(2), at(1), [], id="nothing"),
    ],
)  # fmt: skip
def test_a_span_is_told_by_the_coarsest_source(since, until, expected) -> None:
    told = [(piece.source, piece.since, piece.until) for piece in pieces(since, until, ROLLED)]
    assert told == [(source, at(low), at(high)) for source, low, high in expected]


def test_without_counts_calls_tell() -> None:
    assert pieces(at(-5), at(0), None) == [Piece(Source.CALLS, at(-5), at(0))]


moments = st.floats(-1000, 1000, allow_nan=False).map(at)


@given(moments, moments, st.integers(-900, 0), st.integers(0, 900), st.integers(-900, 900))
def test_every_moment_is_told_once(since, until, first, length, kept) -> None:
    rolled = Rolled(at(first), at(first + length), at(kept))
    found = pieces(since, until, rolled)
    assert [piece.since for piece in found[1:]] == [piece.until for piece in found[:-1]]
    if since < until:
        assert (found[0].since, found[-1].until) == (since, until)
    for piece in found:
        if piece.source is not Source.CALLS:
            span = HOUR if piece.source is Source.HOURS else MINUTE
            assert rolled.since <= piece.since and piece.until <= rolled.until
            assert all(moment.timestamp() % span.total_seconds() == 0 for moment in (piece.since, piece.until))
