"""How long each kind of data is kept: one table, read by the task that deletes and by the pages that show it.

Calls and receipts go with their partitions. Everything else goes in batches, each its own short transaction.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection, transaction
from django.db.models import Exists, Min, OuterRef, QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from receipts.core.counting import Source
from receipts.models import Callback, CallCount, CountedMinute, IdempotencyKey, Maintenance, ProcessLease
from receipts.partitions import TABLES, drop_partitions, moment_of, partition_bounds, rescue_default_rows
from registry import retention as registry_retention
from registry.health import forget_old_changes
from registry.models import ApiKey, AuditEvent, Node, RefusalCount, StatusChange

BATCH = 2000
RUN_S = 60.0
"""A run that has taken so long leaves the rest to the next one."""
LOOK_PATIENCE = "2s"
COUNTED_AT_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of data: where it lies, how long it is kept, and how a batch of what is older is let go."""

    name: str
    label: Promise
    tables: tuple[str, ...]
    kept: timedelta | None = None
    """Counted from `due`; None: for ever."""
    setting: str = ""
    let_go: Callable[[datetime, int], int] | None = None
    """Deletes at most so many of what is older than a moment; how many it deleted."""
    oldest: Callable[[], datetime | None] = lambda: None
    """How old the oldest row is, where it has an age."""
    due: Callable[[], datetime | None] | None = None
    """From when on the first that goes is kept, where that is not its age."""
    note: str | Promise = ""


more_kinds: list[Callable[[], Kind]] = []
"""Apps above this one put theirs here when they are loaded."""


def kinds() -> list[Kind]:
    """Every kind of data that grows, in the order in which it is looked at."""
    calls_kept, audit_kept = timedelta(days=settings.REACH_RETENTION_DAYS), timedelta(days=settings.REACH_AUDIT_DAYS)
    lockout = timedelta(seconds=settings.REACH_LOGIN_LOCKOUT_S)
    removed = Node.objects.exclude(deleted_at=None)
    silent = Node.objects.present().filter(lease__expired=True)
    by_the_minute = CallCount.objects.filter(span_s=Source.MINUTES)
    by_the_hour = CallCount.objects.filter(span_s=Source.HOURS)
    later_change = StatusChange.objects.filter(node=OuterRef("node"), pk__gt=OuterRef("pk"))
    return [
        Kind(
            "calls",
            _("Calls and their receipts"),
            ("calls", "receipts"),
            calls_kept,
            "REACH_RETENTION_DAYS",
            lambda before, _limit: len(drop_partitions(before)),
            oldest_call,
            oldest_partition_end,
            note=_("dropped by whole partitions"),
        ),
        Kind(
            "idempotency_keys",
            _("Idempotency keys"),
            ("idempotency",),
            timedelta(),
            "REACH_IDEMPOTENCY_TTL_S",
            batch_of(IdempotencyKey.objects.all(), "expires_at"),
            due=oldest_of(IdempotencyKey.objects.all(), "expires_at"),
            note=_("from the end of each key's own time"),
        ),
        Kind(
            "callbacks",
            _("Callbacks"),
            ("callbacks",),
            calls_kept,
            "REACH_RETENTION_DAYS",
            batch_of(Callback.objects.all(), "made_at"),
            oldest_of(Callback.objects.all(), "made_at"),
            note=_("from the end of each call"),
        ),
        Kind(
            "waiting_calls",
            _("Calls that wait for a node"),
            ("waiting_calls",),
            note=_("until they are placed, or their deadline"),
        ),
        Kind(
            "processes",
            _("Leases of processes"),
            ("process_leases",),
            timedelta(hours=settings.REACH_GONE_PROCESS_HOURS),
            "REACH_GONE_PROCESS_HOURS",
            batch_of(ProcessLease.objects.all(), "lease_expires_at"),
            due=oldest_of(ProcessLease.objects.all(), "lease_expires_at"),
        ),
        Kind(
            "minute_statistics",
            _("Statistics by the minute"),
            ("receipts_callcount",),
            timedelta(days=settings.REACH_MINUTE_STATISTICS_DAYS),
            "REACH_MINUTE_STATISTICS_DAYS",
            batch_of(by_the_minute, "since"),
            oldest_of(by_the_minute, "since"),
        ),
        Kind(
            "statistics",
            _("Statistics by the hour"),
            (),
            calls_kept,
            "REACH_RETENTION_DAYS",
            batch_of(by_the_hour, "since"),
            oldest_of(by_the_hour, "since"),
        ),
        Kind(
            "counted_minutes",
            _("Minutes that are counted"),
            ("receipts_countedminute",),
            calls_kept,
            "REACH_RETENTION_DAYS",
            batch_of(CountedMinute.objects.all(), "minute"),
            oldest_of(CountedMinute.objects.all(), "minute"),
        ),
        Kind(
            "refusals",
            _("Counts of refused requests"),
            ("registry_refusalcount",),
            calls_kept,
            "REACH_RETENTION_DAYS",
            batch_of(RefusalCount.objects.all(), "minute"),
            oldest_of(RefusalCount.objects.all(), "minute"),
        ),
        Kind(
            "silent_nodes",
            _("Nodes"),
            ("registry_node", "registry_nodelease", "registry_nodeprobe", "registry_declaration"),
            timedelta(days=settings.REACH_EXPIRED_NODE_DAYS),
            "REACH_EXPIRED_NODE_DAYS",
            take_off_silent_nodes,
            oldest_of(silent, "lease__expired_since"),
            note=_("after their last sign of life; then off the lists, operators' choices stay"),
        ),
        Kind(
            "removed_nodes",
            _("Nodes off the lists"),
            (),
            calls_kept,
            "REACH_RETENTION_DAYS",
            registry_retention.forget_removed_nodes,
            oldest_of(removed, "deleted_at"),
            note=_("kept on where an operator chose something for their return"),
        ),
        Kind(
            "ended_keys",
            _("API keys"),
            ("registry_apikey",),
            timedelta(days=settings.REACH_ENDED_KEY_DAYS),
            "REACH_ENDED_KEY_DAYS",
            registry_retention.forget_ended_keys,
            oldest_of(ApiKey.objects.exclude(revoked_at=None), "revoked_at"),
            note=_("after they were revoked or ran out"),
        ),
        Kind(
            "audit",
            _("Audit log"),
            ("registry_auditevent",),
            audit_kept,
            "REACH_AUDIT_DAYS",
            registry_retention.forget_audit_events,
            oldest_of(AuditEvent.objects.all(), "at"),
        ),
        Kind(
            "admin_log",
            _("Edits of users and groups"),
            ("django_admin_log",),
            audit_kept,
            "REACH_AUDIT_DAYS",
            batch_of(LogEntry.objects.all(), "action_time"),
            oldest_of(LogEntry.objects.all(), "action_time"),
        ),
        Kind(
            "sessions",
            _("Logins"),
            ("django_session",),
            timedelta(),
            "",
            batch_of(Session.objects.all(), "expire_date"),
            due=oldest_of(Session.objects.all(), "expire_date"),
            note=_("until each runs out, two weeks after the login"),
        ),
        Kind(
            "failed_logins",
            _("Failed logins"),
            ("axes_accessattempt",),
            lockout,
            "REACH_LOGIN_LOCKOUT_S",
            forget_login_attempts,
            oldest_of(AccessAttempt.objects.all(), "attempt_time"),
        ),
        Kind(
            "status_changes",
            _("History of nodes"),
            ("registry_statuschange",),
            calls_kept,
            "REACH_RETENTION_DAYS",
            lambda before, limit: forget_old_changes(before, batch=limit),
            oldest_of(StatusChange.objects.all(), "at"),
            oldest_of(StatusChange.objects.filter(Exists(later_change)), "at"),
            note=_("the last change of each node stays"),
        ),
        Kind(
            "routes",
            _("Route table revisions and changes"),
            (
                *("routing_tablerevision", "routing_route", "routing_routechange", "routing_approval"),
                *("routing_impact", "routing_watch"),
            ),
            note=_("grow by people's work only"),
        ),
        *(kind() for kind in more_kinds),
    ]


def batch_of(rows: QuerySet, field: str) -> Callable[[datetime, int], int]:
    return lambda before, limit: registry_retention.delete_leaves(rows.filter(**{f"{field}__lt": before}), field, limit)


def oldest_of(rows: QuerySet, field: str) -> Callable[[], datetime | None]:
    return lambda: rows.aggregate(oldest=Min(field))["oldest"]


def oldest_call() -> datetime | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM calls ORDER BY id LIMIT 1")
        row = cursor.fetchone()
    return None if row is None else moment_of(row[0])


def oldest_partition_end() -> datetime | None:
    """A partition is dropped when all of it is past retention: its end counts."""
    return min((bounds[0][2] for table in TABLES if (bounds := partition_bounds(table))), default=None)


def forget_login_attempts(before: datetime, limit: int) -> int:
    return registry_retention.delete_batch(AccessAttempt.objects.filter(attempt_time__lt=before), limit)


def take_off_silent_nodes(before: datetime, limit: int) -> int:
    kept = timedelta(days=settings.REACH_EXPIRED_NODE_DAYS)
    return registry_retention.take_off_expired_nodes(before, before + kept, limit)


# --- Deleting --------------------------------------------------------------------------------------------------------


def forget(now: datetime, *, batch: int = BATCH, run_s: float = RUN_S) -> Maintenance:
    """Let go of all that is past its time at `now`, for at most `run_s` seconds; what was done, also kept as a row.

    Several may run at once: rows that another one holds are skipped.
    """
    started = time.monotonic()
    deleted: Counter[str] = Counter()
    rescue_default_rows(hours=settings.REACH_PARTITION_HOURS)
    left = [kind for kind in kinds() if kind.let_go is not None]
    while left:  # a batch of each in turn: a backlog of one kind does not make the others wait for days
        left = [kind for kind in left if let_go(kind, now, batch, deleted) >= batch]
        if time.monotonic() - started >= run_s:
            break
    took_ms = round((time.monotonic() - started) * 1000)
    facts = {"ran_at": now, "took_ms": took_ms, "deleted": dict(+deleted), "finished": not left}
    return Maintenance.objects.update_or_create(pk=1, defaults=facts)[0]


def let_go(kind: Kind, now: datetime, batch: int, deleted: Counter[str]) -> int:
    """Let go of one batch, and count it."""
    assert kind.let_go is not None and kind.kept is not None
    taken = kind.let_go(now - kind.kept, batch)
    deleted[kind.name] += taken
    return taken


# --- Showing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """How much there is of one kind of data, and what becomes of it."""

    kind: Kind
    rows: int | None
    """As the planner estimates, or counted where that costs nothing; None where neither is to be had."""
    size_bytes: int
    oldest: datetime | None
    next_deletion: datetime | None


def stored(now: datetime) -> list[Stored]:
    """What the database holds, at the cost of a glance: estimates, never counts."""
    found = []
    for kind in kinds():
        rows, size = estimate(kind.tables)
        oldest = glance(kind.oldest)
        first = glance(kind.due) if kind.due else oldest
        next_deletion = max(first + kind.kept, now) if first is not None and kind.kept is not None else None
        found.append(Stored(kind, rows, size, oldest, next_deletion))
    return found


def last_run() -> Maintenance | None:
    return Maintenance.objects.filter(pk=1).first()


def estimate(tables: Sequence[str]) -> tuple[int | None, int]:
    """Rows and bytes of tables with all their partitions, as PostgreSQL's catalogue knows; see `Stored.rows`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE part(oid) AS ("
            " SELECT c.oid FROM unnest(%s::text[]) AS name JOIN pg_class c ON c.oid = to_regclass(name)"
            " UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN part ON i.inhparent = part.oid)"
            " SELECT sum(c.reltuples) FILTER (WHERE c.reltuples >= 0), coalesce(sum(pg_total_relation_size(c.oid)), 0)"
            " FROM part JOIN pg_class c USING (oid) WHERE c.relkind = 'r'",
            [list(tables)],
        )
        rows, size = cursor.fetchone()
        return (counted(cursor, tables) if rows is None else int(rows)), int(size)


def counted(cursor: Any, tables: Sequence[str]) -> int | None:
    """Rows of tables that nobody has analyzed yet: those are new and small, so counting stops early."""
    total = 0
    for table in tables:
        cursor.execute(f"SELECT count(*) FROM (SELECT FROM {table} LIMIT %s) AS first", [COUNTED_AT_MOST])
        (rows,) = cursor.fetchone()
        if rows == COUNTED_AT_MOST:
            return None
        total += rows
    return total if tables else None


def glance(question: Callable[[], datetime | None]) -> datetime | None:
    """An answer that costs little, or none: a page must not wait for a search through millions of rows."""
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [LOOK_PATIENCE])
            return question()
    except DatabaseError:
        return None
