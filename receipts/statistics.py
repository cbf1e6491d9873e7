"""Ended calls in numbers: counted once, by the minute, so that a million of them cost no page a second.

`roll_up` counts the minutes that are over; who asks adds what is newer from the calls themselves. A minute in which
calls are still open is counted again when they have ended. Mirrored copies do not count.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from receipts.core.counting import (
    BUCKETS_PER_OCTAVE,
    HOUR,
    MINUTE,
    Piece,
    Rolled,
    Source,
    later_start,
    percentile_ms,
    pieces,
    start_of,
)
from receipts.partitions import lowest_id, moment_of

DIMENSIONS = ("service_id", "capability", "route_id", "caller", "node_id")
ALL = ""
"""The dimension of all calls together; it has the one key ''."""
NODE = "node"
"""The dimension of nodes by their whole name, service/node; without one: calls that never reached a node."""
PAIR, USE, CAUSE = "pair", "use", "cause"
"""Dimensions of several parts, one after the other in the key: who took calls of whom (service, caller), what was asked
for by whom (capability, caller), and why calls failed (problem code, capability, service): of those that failed only.

Each is small by itself. One of all parts would have as many groups as the product of theirs.
"""
STORED = (*DIMENSIONS, NODE, PAIR, USE, CAUSE)
BETWEEN = "\t"
"""Stands between the parts of a key; no name can hold it."""
GRACE = timedelta(seconds=10)
"""A minute is counted so long after its end: what was accepted in it has been committed, or refused."""
SKEW = timedelta(minutes=1)
"""An id was made within this of its call's acceptance."""
AT_ONCE = timedelta(hours=1)
RUN_S = 10.0
"""Of one run, when there is much to catch up with; the next goes on."""
LOCK = 0x5EAC_0003
GROUPS_SHOWN = 500

BUCKET = f"""
CASE WHEN ended_at - accepted_at < interval '1 ms' THEN 0
    ELSE 1 + floor(ln(extract(epoch FROM ended_at - accepted_at)::float8 * 1000) / ln(2) * {BUCKETS_PER_OCTAVE})::int
END
"""
HEADS = {NODE: ("service_id", "/"), PAIR: ("service_id", BETWEEN), USE: ("capability", BETWEEN)}
"""With what column of a call the keys of a dimension begin, and what follows it there: by that column an index finds
the calls of the last minute, which nobody has counted yet."""
CALLS = f"""
SELECT accepted_at, service_id, capability, route_id, caller, node_id, status <> 'succeeded' AS failed,
    {BUCKET} AS bucket, service_id || '/' || node_id AS node,
    concat(service_id, E'\\t', caller) AS pair, concat(capability, E'\\t', caller) AS use,
    CASE WHEN status <> 'succeeded'
        THEN concat(coalesce(error::json ->> 'code', status), E'\\t', capability, E'\\t', service_id) END AS cause
FROM calls
WHERE ended_at IS NOT NULL AND mirror_of IS NULL AND id >= %(low)s AND id < %(high)s
    AND accepted_at >= %(since)s AND accepted_at < %(until)s
"""
COUNT_MINUTES = f"""
WITH ended AS ({CALLS}), parted AS (
    SELECT date_trunc('minute', accepted_at) AS since, d.dimension, coalesce(d.key, '') AS key, bucket, count(*) AS n,
        count(*) FILTER (WHERE failed) AS failed
    FROM ended, LATERAL (VALUES ('', ''), {", ".join(f"('{name}', {name})" for name in STORED)}) d(dimension, key)
    WHERE d.dimension <> '{CAUSE}' OR failed
    GROUP BY 1, 2, 3, 4
)
INSERT INTO receipts_callcount (span_s, dimension, since, key, buckets, counts, failures)
SELECT {Source.MINUTES.value}, dimension, since, key, array_agg(bucket), array_agg(n), array_agg(failed)
FROM parted GROUP BY since, dimension, key
"""
COUNT_HOURS = f"""
WITH parted AS (
    SELECT dimension, date_trunc('hour', since) AS since, key, bucket, sum(n) AS n, sum(failed) AS failed
    FROM receipts_callcount, unnest(buckets, counts, failures) AS b(bucket, n, failed)
    WHERE span_s = {Source.MINUTES.value} AND since >= %(since)s AND since < %(until)s
    GROUP BY 1, 2, 3, 4
)
INSERT INTO receipts_callcount (span_s, dimension, since, key, buckets, counts, failures)
SELECT {Source.HOURS.value}, dimension, since, key, array_agg(bucket), array_agg(n), array_agg(failed)
FROM parted GROUP BY since, dimension, key
"""
FORGET = "DELETE FROM receipts_callcount WHERE span_s = %(span_s)s AND since >= %(since)s AND since < %(until)s"
NOTE_MINUTES = """
INSERT INTO receipts_countedminute (minute, open)
SELECT minute, coalesce(o.open, 0)
FROM generate_series(%(since)s::timestamptz, %(last)s::timestamptz, interval '1 minute') AS minute
    LEFT JOIN ({open}) o USING (minute)
ON CONFLICT (minute) DO UPDATE SET open = EXCLUDED.open
"""
OPEN = """
SELECT date_trunc('minute', accepted_at) AS minute, count(*) AS open
FROM calls WHERE ended_at IS NULL AND mirror_of IS NULL GROUP BY 1
"""
REOPENED = f"""
SELECT m.minute FROM receipts_countedminute m LEFT JOIN ({OPEN}) o USING (minute)
WHERE m.open > 0 AND m.open <> coalesce(o.open, 0) ORDER BY m.minute LIMIT 60
"""


# --- Counting --------------------------------------------------------------------------------------------------------


def roll_up(now: datetime, *, run_s: float = RUN_S) -> int:
    """Count the minutes that are over and not counted yet, and those anew whose open calls have ended; how many.

    `now` is the database's. One worker at a time does it, others return at once.
    """
    started, counted = time.monotonic(), 0
    while True:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
            if not cursor.fetchone()[0]:
                return counted
            if not counted:
                for minute in reopened(cursor):
                    count(cursor, minute, minute + MINUTE)
                    counted += 1
            since, until = next_span(cursor, now)
            if since >= until:
                return counted
            count(cursor, since, until)
            counted += int((until - since) / MINUTE)
        if time.monotonic() - started > run_s:
            return counted


def reopened(cursor: Any) -> list[datetime]:
    cursor.execute(REOPENED)
    return [minute for (minute,) in cursor.fetchall()]


def next_span(cursor: Any, now: datetime) -> tuple[datetime, datetime]:
    """The minutes to be counted next, at most an hour of them and none beyond the hour's end."""
    over = start_of(now - GRACE, MINUTE)
    cursor.execute("SELECT max(minute) FROM receipts_countedminute")
    last = cursor.fetchone()[0]
    since = first_minute(cursor, now, over) if last is None else last + MINUTE
    return since, min(over, start_of(since, AT_ONCE) + AT_ONCE)


def first_minute(cursor: Any, now: datetime, over: datetime) -> datetime:
    """Where counting begins: at the oldest call that is kept, else now."""
    kept_since = start_of(now - timedelta(days=settings.REACH_RETENTION_DAYS), HOUR)
    cursor.execute("SELECT id FROM calls WHERE id >= %s ORDER BY id LIMIT 1", [lowest_id(kept_since)])
    row = cursor.fetchone()
    return over if row is None else min(over, start_of(moment_of(row[0]) - SKEW, MINUTE))


def count(cursor: Any, since: datetime, until: datetime) -> None:
    """Count these minutes of one hour (again), and the hour with them once it is over."""
    span = span_of(since, until)
    cursor.execute(FORGET, span | {"span_s": Source.MINUTES.value})
    cursor.execute(COUNT_MINUTES, span)
    cursor.execute(NOTE_MINUTES.format(open=OPEN), span | {"last": until - MINUTE})
    hour = start_of(since, HOUR)
    cursor.execute(
        "SELECT count(*) FROM receipts_countedminute WHERE minute >= %s AND minute < %s", [hour, hour + HOUR]
    )
    if cursor.fetchone()[0] == HOUR / MINUTE:
        whole = span_of(hour, hour + HOUR)
        cursor.execute(FORGET, whole | {"span_s": Source.HOURS.value})
        cursor.execute(COUNT_HOURS, whole)


def span_of(since: datetime, until: datetime) -> dict[str, Any]:
    """A span as the statements name it, with the ids that calls accepted in it may have."""
    return {"since": since, "until": until, "low": lowest_id(since - SKEW), "high": lowest_id(until + SKEW)}


# --- Asking ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counted:
    """Ended calls of one group."""

    calls: int = 0
    failures: int = 0
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, bucket: int, calls: int, failures: int) -> None:
        self.calls += calls
        self.failures += failures
        self.buckets[bucket] += calls

    def percentile_ms(self, share: float) -> float:
        return percentile_ms(self.buckets, share)


def counted(
    dimension: str, since: datetime, until: datetime, now: datetime, *, keys: Collection[str] | None = None
) -> dict[str | None, Counted]:
    """Calls accepted in a span and ended since, by what one of `STORED` (or `ALL`) says of them: most first.

    With `keys` those groups alone.
    """
    found: dict[str | None, Counted] = {}
    for key, bucket, calls, failures in rows_of(dimension, pieces(since, until, rolled(now)), keys=keys):
        found.setdefault(key or None, Counted()).add(bucket, calls, failures)
    ordered = sorted(found.items(), key=lambda row: (-row[1].calls, row[0] or ""))
    return dict(ordered[:GROUPS_SHOWN])


def over_time(
    since: datetime, until: datetime, now: datetime, step: timedelta, *, dimension: str = ALL, key: str = ""
) -> dict[datetime, Counted]:
    """Calls of a span by the step they were accepted in, as steps lie from midnight; those without are left out.

    A step is a number of minutes, or of hours. All calls, or those of one group.
    """
    asked = pieces(since, until, rolled(now))
    if step < HOUR:
        asked = [
            piece if piece.source is not Source.HOURS else Piece(Source.MINUTES, piece.since, piece.until)
            for piece in asked
        ]
    found: dict[datetime, Counted] = {}
    for moment, bucket, calls, failures in rows_of(
        dimension, asked, step=step, keys=None if dimension == ALL else [key]
    ):
        found.setdefault(moment, Counted()).add(bucket, calls, failures)
    return dict(sorted(found.items()))


@dataclass(slots=True)
class Told:
    """The calls of one group, and when the newest began: at the latest, where it is known to the hour."""

    calls: int
    failures: int
    newest: datetime


def told(
    dimension: str, since: datetime, until: datetime, now: datetime, *, first: str | None = None
) -> dict[tuple[str, ...], Told]:
    """All groups of a dimension of several parts, by these, without regard to durations; or those with this first part.

    The cost goes by the groups of each hour, not by the calls.
    """
    only: dict[str, Any] = {"beginning": None if first is None else first + BETWEEN, "first": first}
    chosen = "" if first is None else " AND starts_with({}, %(beginning)s)"
    of_calls = chosen.format(dimension)
    if first and dimension in HEADS:
        of_calls = f" AND {HEADS[dimension][0]} = %(first)s"
    found: dict[str, Told] = {}
    for piece in pieces(since, until, rolled(now)):
        with connection.cursor() as cursor:
            if piece.source is Source.CALLS:
                cursor.execute(
                    f"SELECT {dimension}, count(*), count(*) FILTER (WHERE failed), max(accepted_at)"
                    f" FROM ({CALLS}) AS ended WHERE {dimension} IS NOT NULL{of_calls} GROUP BY 1",
                    span_of(piece.since, piece.until) | only,
                )
            else:
                span: dict[str, Any] = {"span_s": piece.source.value, "since": piece.since, "until": piece.until}
                cursor.execute(
                    "SELECT key, sum((SELECT sum(n) FROM unnest(counts) AS n)),"
                    " sum((SELECT sum(n) FROM unnest(failures) AS n)), max(since) + make_interval(secs => %(span_s)s)"
                    " FROM receipts_callcount WHERE span_s = %(span_s)s AND dimension = %(dimension)s"
                    f" AND since >= %(since)s AND since < %(until)s{chosen.format('key')} GROUP BY 1",
                    span | {"dimension": dimension} | only,
                )
            for key, calls, failures, newest in cursor.fetchall():
                group = found.setdefault(key, Told(0, 0, newest))
                group.calls += int(calls)
                group.failures += int(failures)
                group.newest = max(group.newest, newest)
    return {tuple(key.split(BETWEEN)): group for key, group in found.items()}


def rolled(now: datetime) -> Rolled | None:
    """Which minutes have been counted."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT min(minute), max(minute) FROM receipts_countedminute")
        first, last = cursor.fetchone()
    if first is None:
        return None
    kept = timedelta(days=settings.REACH_MINUTE_STATISTICS_DAYS)
    return Rolled(first, last + MINUTE, later_start(now - kept + HOUR, HOUR))  # a run of retention may be under way


def rows_of(
    dimension: str, asked: Iterable[Piece], *, step: timedelta | None = None, keys: Collection[str] | None = None
) -> list[tuple[Any, int, int, int]]:
    """Group, bucket, calls and failures of every piece. The group is what the dimension says, or the `step`.

    With `keys` those groups of the dimension alone.
    """
    rows: list[tuple[Any, int, int, int]] = []
    binned = f"date_bin('{step.total_seconds():.0f} s', {{}}, 'epoch'::timestamptz)" if step is not None else None
    only: dict[str, Any] = {"keys": None if keys is None else list(keys)}
    for piece in asked:
        with connection.cursor() as cursor:
            if piece.source is Source.CALLS:
                group = binned.format("accepted_at") if binned else dimension or "''"
                chosen = "" if keys is None else f" WHERE {dimension} = ANY(%(keys)s)"
                if keys is not None and dimension in HEADS:
                    head, follows = HEADS[dimension]
                    chosen += f" AND {head} = ANY(%(heads)s)"
                    only["heads"] = sorted({key.split(follows)[0] for key in keys})
                cursor.execute(
                    f"SELECT {group}, bucket, count(*), count(*) FILTER (WHERE failed) FROM ({CALLS}) AS ended"
                    f"{chosen} GROUP BY 1, 2",
                    span_of(piece.since, piece.until) | only,
                )
            else:
                group = binned.format("since") if binned else "key"
                chosen = "" if keys is None else " AND key = ANY(%(keys)s)"
                span: dict[str, Any] = {"span_s": piece.source.value, "since": piece.since, "until": piece.until}
                cursor.execute(
                    f"SELECT {group}, bucket, sum(n), sum(failed) FROM receipts_callcount,"
                    " unnest(buckets, counts, failures) AS b(bucket, n, failed)"
                    " WHERE span_s = %(span_s)s AND dimension = %(dimension)s"
                    f" AND since >= %(since)s AND since < %(until)s{chosen} GROUP BY 1, 2",
                    span | {"dimension": dimension} | only,
                )
            rows += cursor.fetchall()
    return rows


# --- Failures --------------------------------------------------------------------------------------------------------

UNSUCCESSFUL = ("failed", "timed_out", "rejected", "cancelled")
FAILURES_LOOKED_AT = 1000
"""The newest of each status: an index finds them, however many there are."""
FAILURES = " UNION ALL ".join(
    f"(SELECT id, trace_id, status, error, service_id, capability FROM calls"
    f" WHERE status = '{status}' AND id >= %(low)s AND mirror_of IS NULL ORDER BY id DESC LIMIT {FAILURES_LOOKED_AT})"
    for status in UNSUCCESSFUL
)
CAUSES = f"""
SELECT status, coalesce(error::json->>'code', ''), service_id, capability, count(*),
    (array_agg(id ORDER BY id DESC))[1], (array_agg(trace_id ORDER BY id DESC))[1]
FROM ({FAILURES}) AS failed GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 6 DESC LIMIT %(shown)s
"""


@dataclass(frozen=True, slots=True)
class Cause:
    """Calls that did not succeed for one reason at one place, among the newest of a span."""

    status: str
    code: str
    service_id: str | None
    """None: no node had taken them."""
    capability: str
    calls: int
    last_call_id: UUID
    last_trace_id: str

    @property
    def are_more(self) -> bool:
        """Whether there may be more than were looked at."""
        return self.calls >= FAILURES_LOOKED_AT


def causes(since: datetime, *, shown: int) -> list[Cause]:
    """Why calls accepted since then did not succeed, the most frequent first."""
    with connection.cursor() as cursor:
        cursor.execute(CAUSES, {"low": lowest_id(since), "shown": shown})
        return [Cause(*row) for row in cursor.fetchall()]
