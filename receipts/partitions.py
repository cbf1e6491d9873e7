"""Partitions of `calls` and `receipts`: by the UUIDv7 of the call, whose first 48 bits are its epoch milliseconds."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from django.db import OperationalError, connection, transaction

TABLES = {"calls": "id", "receipts": "call_id"}
ADVISORY_LOCK = 0x5EAC_0001
LOCK_PATIENCE = "2s"
"""Whoever waits for a table's lock makes all later comers wait behind him: better to try again in ten minutes."""
BUILD_PATIENCE = "60s"
"""Building an index concurrently waits for who reads already, and keeps nobody waiting meanwhile."""

log = logging.getLogger(__name__)


def lowest_id(at: datetime) -> UUID:
    """The smallest UUIDv7 of a moment: a bound for `id >=` and for partitions."""
    return UUID(int=int(at.timestamp() * 1000) << 80)


def moment_of(call_id: UUID) -> datetime:
    """When a UUIDv7 was made, to the millisecond."""
    return datetime.fromtimestamp((call_id.int >> 80) / 1000, UTC)


def ensure_partitions(now: datetime, *, hours: int, ahead: int) -> list[str]:
    """Make the partitions from `now` to `ahead` spans later that do not exist yet; returns the names made.

    Rows that fell into the default partition meanwhile are moved.
    """
    span = timedelta(hours=hours)
    first = span_start(now, span)
    made = []
    for table, key in TABLES.items():
        for step in range(ahead + 1):
            low, high = first + span * step, first + span * (step + 1)
            if make_partition(table, key, low, high):
                made.append(partition_name(table, low))
    return made


def span_start(at: datetime, span: timedelta) -> datetime:
    """The start of the span that a moment lies in; spans are counted from 1970."""
    return datetime.fromtimestamp(at.timestamp() // span.total_seconds() * span.total_seconds(), UTC)


def rescue_default_rows(*, hours: int, at_most: int = 100) -> list[str]:
    """Make the partitions that rows of the default one belong into, and move them there; the names made.

    They fell there because nobody made partitions ahead: there they would never be dropped, and slow every search.
    """
    span = timedelta(hours=hours)
    made: list[str] = []
    for table, key in TABLES.items():
        while len(made) < at_most and (oldest := oldest_default_row(table, key)) is not None:
            bounds = gap_around(oldest, span, partition_bounds(table))
            if not make_partition(table, key, *bounds):
                break
            made.append(partition_name(table, bounds[0]))
    return made


def oldest_default_row(table: str, key: str) -> datetime | None:
    """When the oldest row that fell into the default partition was made."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {key} FROM {table}_default ORDER BY {key} LIMIT 1")
        row = cursor.fetchone()
    return None if row is None else moment_of(row[0])


def gap_around(at: datetime, span: timedelta, taken: list[tuple[str, datetime, datetime]]) -> tuple[datetime, datetime]:
    """The part of the span around `at` that no partition has taken; spans of another length may lie beside it."""
    low = span_start(at, span)
    before = [high for _name, _low, high in taken if high <= at]
    after = [low for _name, low, _high in taken if low > at]
    return max([low, *before]), min([low + span, *after])


def partition_name(table: str, low: datetime) -> str:
    return f"{table}_p{low:%Y%m%d%H}"


def make_partition(table: str, key: str, low: datetime, high: datetime) -> bool:
    """Make one partition, unless it is there or overlaps one of another span. True when it was made.

    False also when somebody has the table locked: rows without a partition are kept in the default one meanwhile.
    """
    try:
        return _make_partition(table, key, low, high)
    except OperationalError as exc:
        if not isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
            raise
        log.warning("%s is in use: its partition from %s is made next time", table, low)
        return False


@transaction.atomic
def _make_partition(table: str, key: str, low: datetime, high: datetime) -> bool:
    name = partition_name(table, low)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADVISORY_LOCK])
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_PATIENCE])
        cursor.execute("SELECT to_regclass(%s)", [name])
        if cursor.fetchone()[0] is not None or overlaps(table, low, high):
            return False
        bounds = [str(lowest_id(low)), str(lowest_id(high))]
        cursor.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)")
        cursor.execute(
            f"WITH moved AS (DELETE FROM {table}_default WHERE {key} >= %s AND {key} < %s RETURNING *)"
            f" INSERT INTO {name} SELECT * FROM moved",
            bounds,
        )
        cursor.execute(
            f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{bounds[0]}') TO ('{bounds[1]}')"
        )
    return True


def index_concurrently(table: str, name: str, columns: str) -> None:
    """Give a partitioned table an index while calls are written; outside any transaction. Done before, it does nothing.

    PostgreSQL builds none concurrently on all partitions at once: each gets its own, and they are joined. New
    partitions have it from the start, for they are made like the table.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE INDEX IF NOT EXISTS {name} ON ONLY {table} {columns}")
        for partition in partitions_without(cursor, table, name):
            with patience(cursor, BUILD_PATIENCE):
                cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {partition}_{name}")  # of an earlier, broken try
                cursor.execute(f"CREATE INDEX CONCURRENTLY {partition}_{name} ON {partition} {columns}")
            cursor.execute(f"ALTER INDEX {name} ATTACH PARTITION {partition}_{name}")


@contextmanager
def patience(cursor: Any, lock_timeout: str) -> Iterator[None]:
    """Another lock_timeout for a while."""
    cursor.execute("SHOW lock_timeout")
    usual = cursor.fetchone()[0]
    cursor.execute("SELECT set_config('lock_timeout', %s, false)", [lock_timeout])
    try:
        yield
    finally:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [usual])


def partitions_without(cursor: Any, table: str, index: str) -> list[str]:
    """The partitions that have no part of a partitioned index yet."""
    cursor.execute(
        "SELECT p.inhrelid::regclass::text FROM pg_inherits p WHERE p.inhparent = %s::regclass AND NOT EXISTS ("
        " SELECT FROM pg_inherits i JOIN pg_index x ON x.indexrelid = i.inhrelid"
        " WHERE i.inhparent = %s::regclass AND x.indrelid = p.inhrelid) ORDER BY 1",
        [table, index],
    )
    return [name for (name,) in cursor.fetchall()]


def partition_bounds(table: str) -> list[tuple[str, datetime, datetime]]:
    """Name, lower and upper moment of each partition but the default one, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, (regexp_matches(pg_get_expr(c.relpartbound, c.oid), "
            "'FROM \\(''(.+)''\\) TO \\(''(.+)''\\)'))[1:2]"
            " FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'",
            [table],
        )
        rows = [(name, moment_of(UUID(low)), moment_of(UUID(high))) for name, (low, high) in cursor.fetchall()]
    return sorted(rows, key=lambda row: row[1])


def overlaps(table: str, low: datetime, high: datetime) -> bool:
    return any(low < other_high and other_low < high for _name, other_low, other_high in partition_bounds(table))


def drop_partitions(before: datetime) -> list[str]:
    """Drop every partition that ends before `before`; returns their names. Retention: no row is deleted singly.

    One that somebody reads (a backup, say) is left to the next time.
    """
    return [
        name
        for table in TABLES
        for name, _low, high in partition_bounds(table)
        if high <= before and drop_partition(name)
    ]


def drop_partition(name: str) -> bool:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_PATIENCE])
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
    except OperationalError as exc:
        if not isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
            raise
        log.warning("%s is in use: it is dropped next time", name)
        return False
    return True
