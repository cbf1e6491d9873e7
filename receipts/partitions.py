"""Partitions of `calls` and `receipts`: by the UUIDv7 of the call, whose first 48 bits are its epoch milliseconds."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import connection, transaction

TABLES = {"calls": "id", "receipts": "call_id"}
ADVISORY_LOCK = 0x5EAC_0001


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
    first = datetime.fromtimestamp(now.timestamp() // span.total_seconds() * span.total_seconds(), UTC)
    made = []
    for table, key in TABLES.items():
        for step in range(ahead + 1):
            low, high = first + span * step, first + span * (step + 1)
            if make_partition(table, key, low, high):
                made.append(partition_name(table, low))
    return made


def partition_name(table: str, low: datetime) -> str:
    return f"{table}_p{low:%Y%m%d%H}"


@transaction.atomic
def make_partition(table: str, key: str, low: datetime, high: datetime) -> bool:
    """Make one partition, unless it is there or overlaps one of another span. True when it was made."""
    name = partition_name(table, low)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADVISORY_LOCK])
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
    """Drop every partition that ends before `before`; returns their names. Retention: no row is deleted singly."""
    dropped = []
    for table in TABLES:
        for name, _low, high in partition_bounds(table):
            if high <= before:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(f"DROP TABLE {name}")
                dropped.append(name)
    return dropped
