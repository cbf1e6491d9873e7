"""Replaying the calls of the last day through a change's two tables, in pieces, with progress."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import F, Func

from receipts.core.journey import Journey
from receipts.journal import connect
from receipts.models import Call
from receipts.partitions import lowest_id
from registry import clock
from registry.core.sensitive import sensitive_paths
from registry.database import conninfo
from registry.models import Capability, Declaration
from routing import impact
from routing.core.edits import Document
from routing.core.impact import NO_PATHS, Paths, Replay
from routing.core.matching import RouteTable
from routing.core.tables import Tables
from routing.engine import envelope_of
from routing.live import policy_from_settings
from routing.models import RouteChange
from routing.querysets import table_of
from routing.rules import build_table, parse_document
from routing.snapshot import Snapshot

WINDOW = timedelta(days=1)
SLICES = 96
"""Calls are counted and chosen by quarters of an hour, so that no question to the database runs for long."""
PATIENCE = "30s"
PIECE = 200
"""Calls read and replayed at a time."""
TOLD_EVERY_S = 0.5
"""Progress is written so often at most."""
COUNT = """
SELECT (SELECT count(*) FROM (SELECT FROM calls WHERE id >= slice.since AND id < slice.before LIMIT %s) AS counted)
FROM unnest(%s::uuid[], %s::uuid[]) WITH ORDINALITY AS slice(since, before, place) ORDER BY slice.place
"""
CHOOSE = """
SELECT numbered.id FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[]) AS slice(since, before, passed), LATERAL (
    SELECT id, slice.passed + row_number() OVER (ORDER BY id) AS place FROM (
        SELECT id FROM calls WHERE id >= slice.since AND id < slice.before ORDER BY id LIMIT %s
    ) AS oldest
) AS numbered WHERE numbered.place %% %s = 0
"""
FIELDS = (
    "id", "trace_id", "caller", "origin_caller", "capability", "accepted_at", "request", "labels", "idempotency_key",
    "session_id", "parent_call_id", "depth", "async_rank", "callback_url",
)  # fmt: skip

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """Ids of calls, evenly chosen among all of the last day; each stands for so many."""

    ids: Sequence[UUID]
    stands_for: float
    since: datetime
    until: datetime


def analyse_due(tables: Callable[[], Tables | None]) -> int:
    """Analyse what is due, one after another; how many there were."""
    count = 0
    while (taken := impact.take_due()) is not None:
        if (now := tables()) is None:
            return count
        analyse(taken, now, rest=time.sleep)
        count += 1
    return count


def analyse(change: RouteChange, tables: Tables, *, rest: Callable[[float], None] = lambda _s: None) -> None:
    """Replay recent calls through the change's base and its proposal, and keep the report.

    `rest` is called with the seconds of CPU that each piece took: in the all-in-one calls are carried beside this.
    """
    content = change.content_digest
    told_at = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > TOLD_EVERY_S:
            told_at = time.monotonic()
            impact.tell_progress(change.pk, content, done, total)

    base = table_of(change.base_revision)
    impact.keep(change.pk, content, replayed(base, change.document, change.base_revision, tables, tell=tell, rest=rest))


def replayed(
    before: Document,
    after: Document,
    base_revision: int,
    tables: Tables,
    *,
    tell: Progress = lambda _done, _total: None,
    rest: Callable[[float], None] = lambda _s: None,
) -> dict[str, Any]:
    """What the move from one document to another does to the calls of the last day."""
    started = time.thread_time()
    sample = choose_sample(clock.now())
    texts, masked = declared_words()
    replay = Replay(
        tables,
        table_from(before, base_revision, texts),
        table_from(after, base_revision + 1, texts),
        policy_from_settings(),
        masked=masked,
        stands_for=sample.stands_for,
        span_s=60.0 * sample.stands_for,  # so that a span holds as many sampled calls as a minute has real ones
    )
    tell(0, len(sample.ids))
    read = 0
    for piece in pieces(sample):
        began = time.thread_time()
        for journey in piece:
            read += 1
            replay.add(journey)
        tell(read, len(sample.ids))
        rest(time.thread_time() - began)
    return replay.report() | {
        "left_out_calls": len(sample.ids) - read,
        "stands_for": round(sample.stands_for, 3),
        "window": {"since": sample.since.isoformat(), "until": sample.until.isoformat()},
        "took_s": round(time.thread_time() - started, 3),
    }


# --- What is replayed ------------------------------------------------------------------------------------------------


def choose_sample(now: datetime) -> Sample:
    """Every n-th call of the last day, so that at most REACH_IMPACT_SAMPLE are left."""
    edges = [lowest_id(now - WINDOW * n / SLICES) for n in range(SLICES, -1, -1)]
    since, before = edges[:-1], edges[1:]
    at_most = max(1, settings.REACH_IMPACT_COUNTED // SLICES)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [PATIENCE])
        cursor.execute(COUNT, [at_most, since, before])
        counts = [row[0] for row in cursor.fetchall()]
        total = sum(counts)
        step = max(1, -(-total // max(1, settings.REACH_IMPACT_SAMPLE)))
        passed = [sum(counts[:n]) for n in range(SLICES)]
        cursor.execute(CHOOSE, [since, before, passed, at_most, step])
        ids = [row[0] for row in cursor.fetchall()]
    return Sample(ids, step, now - WINDOW, now)


def pieces(sample: Sample) -> Iterator[list[Journey]]:
    """The sampled calls as journeys that begin, some at a time. Copies are left out, and what is too large to hold."""
    size = Func(F("request"), function="octet_length", output_field=models.IntegerField())
    for start in range(0, len(sample.ids), PIECE):
        ids = sample.ids[start : start + PIECE]
        calls = Call.objects.filter(pk__in=ids, pk__gte=min(ids), pk__lte=max(ids), mirror_of=None)
        rows = calls.alias(size=size).filter(size__lte=settings.REACH_IMPACT_MAX_REQUEST_BYTES).values(*FIELDS)
        yield [journey for row in rows if (journey := journey_of(row)) is not None]


def journey_of(row: dict[str, Any]) -> Journey | None:
    """The call as it began; None where what is kept of it cannot be read, as another version may have left it."""
    try:
        envelope = envelope_of(row)
    except (KeyError, TypeError, ValueError):
        return None
    return Journey(envelope, row["id"], row["trace_id"], row["origin_caller"], depth=row["depth"])


def declared_words() -> tuple[dict[str, str], dict[str, Paths]]:
    """What each known capability says of itself, as the snapshot reads it, and which of its values are masked."""
    said: dict[str, set[str]] = {name: set() for name in Capability.objects.values_list("name", flat=True)}
    masked: dict[str, Paths] = {}
    rows = Declaration.objects.filter(node__deleted_at=None)
    for name, description, tags, schema in rows.values_list("capability_id", "description", "tags", "input_schema"):
        said.setdefault(name, set()).add(" ".join([description, *sorted(tags)]))
        if paths := masked_paths(msgspec.json.encode(schema)):
            masked[name] = masked.get(name, NO_PATHS) | paths
    return {name: " ".join(sorted(texts)) for name, texts in said.items()}, masked


@lru_cache(maxsize=4096)
def masked_paths(schema: bytes) -> Paths:
    return sensitive_paths(msgspec.json.decode(schema))


def table_from(document: Document, revision: int, texts: dict[str, str]) -> RouteTable:
    return build_table(revision, parse_document(document, max_routes=settings.REACH_MAX_ROUTES)[0], texts)


def load_tables() -> Tables:
    """The tables as dispatchers hold them, for a process that holds none."""

    async def load() -> Tables:
        snapshot = Snapshot(conninfo("reach impact"), poll_s=1, retry_s=1, shown_at_most=1, use_keys=lambda _keys: None)
        async with await connect(snapshot.conninfo, "reach impact") as session:
            await snapshot.load(session)
        assert snapshot.tables is not None
        return snapshot.tables

    return asyncio.run(load())
