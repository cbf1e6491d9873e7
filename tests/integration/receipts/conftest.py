"""Journals on a real database, and calls as they lie in it."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import uuid_utils.compat as uuids
from django.utils import timezone
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from receipts.journal import Journal, PostgreSQL
from receipts.rows import CallRow, MoveRow, ReceiptRow
from tests.bed.proxy import Proxy

LEASE_S = 0.4
MakeJournal = Callable[..., Any]
Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def database(transactional_db: None) -> Iterator[str]:
    """The connection string of the test database; what is written there is committed.

    Django empties the tables that it manages after such a test; these two are not among them.
    """
    from registry.database import conninfo

    where = conninfo("tests")
    yield where
    with psycopg.connect(where) as session:
        session.execute("TRUNCATE calls, receipts")


@pytest.fixture
def sql(database: str) -> Iterator[Sql]:
    """Looks into the database on a connection of the test's own."""
    with psycopg.connect(database, autocommit=True) as session:

        def run(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
            result = session.execute(statement, parameters)
            return result.fetchall() if result.description else []

        yield run


@pytest.fixture
def line(database: str) -> Iterator[Proxy]:
    given = conninfo_to_dict(database)
    line = Proxy(int(given.get("port", 5432)), str(given["host"]))
    yield line
    line.close()


@pytest.fixture
async def new_journal(database: str, line: Proxy) -> AsyncIterator[MakeJournal]:
    """Started journals, each a process of its own as far as the database can tell; `line`: by way of it.

    That line stays until they have stopped.
    """
    made: list[Journal] = []

    async def make(*, line: Proxy | None = None, **facts: Any) -> Journal:
        where = (
            database if line is None else make_conninfo(database, host="127.0.0.1", port=line.port, sslmode="disable")
        )
        settings = {
            "role": "test",
            "max_rows": 256,
            "retry_s": 0.02,
            "lease_s": LEASE_S,
            "key_ttl_s": 60.0,
            "answer_s": 5.0,
        } | facts
        made.append(Journal(PostgreSQL(where), uuid4(), **settings))
        await made[-1].start()
        return made[-1]

    yield make
    for journal in made:
        await journal.stop()


@pytest.fixture
async def journal(new_journal: MakeJournal) -> Journal:
    return await new_journal()


def a_call(journal: Journal, **facts: Any) -> CallRow:
    """A call under way at `summarizer/n1`, as `dispatch` accepts it."""
    now = int(timezone.now().timestamp() * 1000)
    return CallRow(
        **{
            "id": str(uuids.uuid7()),
            "trace_id": "a" * 32,
            "caller": "report-agent",
            "origin_caller": "report-agent",
            "capability": "file_summary",
            "status": "running",
            "table_revision": 0,
            "accepted_ms": now,
            "deadline_ms": now + 60_000,
            "request": '{"payload":{}}',
            "request_digest": "r",
            "payload_digest": "p",
            "owner": str(journal.owner),
            "service_id": "summarizer",
            "node_id": "n1",
            "attempts": 1,
            "seq": 2,
            **facts,
        }
    )


def receipts(call_id: str, *kinds: str, attempt: int | None = None) -> list[ReceiptRow]:
    return [ReceiptRow(call_id, n, kind, 0, attempt=attempt) for n, kind in enumerate(kinds, start=1)]


def opening(row: CallRow) -> tuple[CallRow, list[ReceiptRow]]:
    """A new call with the receipts it is accepted with."""
    return row, receipts(row.id, "accepted", "forwarded")


def a_move(row: CallRow, *kinds: str, step: int = 1, **facts: Any) -> tuple[MoveRow, list[ReceiptRow]]:
    """The owner's change number `step` of an open call, with receipts of these kinds."""
    given = {"owner": row.owner, "epoch": 1, "step": step, **facts}
    return MoveRow(row.id, len(kinds), **given), receipts(row.id, *kinds)


def an_end(row: CallRow, *, step: int = 1, **facts: Any) -> tuple[MoveRow, list[ReceiptRow]]:
    return a_move(row, "succeeded", step=step, status="succeeded", ended_ms=row.accepted_ms + 5, output="{}", **facts)


@pytest.fixture
def stored_call(db: None) -> Callable[..., Any]:
    """Calls as rows, without a journal: `stored_call(status="failed", accepted_at=…)`."""
    from receipts.models import Call, Receipt

    def store(*, ms: float = 10.0, at: datetime | None = None, **facts: Any) -> Any:
        accepted_at = at or timezone.now()
        first = uuids.uuid7().int & ((1 << 80) - 1)
        call_id = UUID(int=(int(accepted_at.timestamp() * 1000) << 80) | first)
        status = facts.get("status", "succeeded")
        ended_at = None if status in ("accepted", "running") else accepted_at + timedelta(milliseconds=ms)
        call = Call.objects.create(
            **{
                "id": call_id,
                "trace_id": call_id.hex,
                "caller": "report-agent",
                "origin_caller": "report-agent",
                "capability": "file_summary",
                "status": status,
                "table_revision": 0,
                "route_id": "auto",
                "service_id": "summarizer",
                "node_id": "n1",
                "accepted_at": accepted_at,
                "ended_at": ended_at,
                "deadline": accepted_at + timedelta(minutes=1),
                "request": "{}",
                "request_digest": "r",
                "payload_digest": "p",
                "owner": uuid4(),
                "output": "{}" if status == "succeeded" else None,
                **facts,
            }
        )
        for seq, kind in enumerate(("accepted", status), start=1):
            Receipt.objects.create(call_id=call_id, seq=seq, kind=kind, at=accepted_at)
        return call

    return store
