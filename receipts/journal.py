"""Accept, record, close: the only writers of calls and receipts. Concurrent calls share their commits.

Each of the two lanes (new calls; changes of open calls) has one connection and one prepared statement. While one
group is being committed, the next gathers: an idle reach commits a call at once, a busy one commits hundreds together.
A lane's statement is one transaction, so a group is on disk wholly or not at all.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from receipts.prepared import Prepared
from receipts.rows import CallRow, KeyRow, MoveRow, ReceiptRow, columns, json_of
from registry.errors import Unavailable

log = logging.getLogger(__name__)

# The rows come in by JSON and meet the tables by primary key: without statistics the planner would scan partitions.
WRITER_OPTIONS = (
    "-c enable_hashjoin=off -c enable_mergejoin=off -c enable_seqscan=off -c plan_cache_mode=force_generic_plan"
)
RELAXED_OPTIONS = f"{WRITER_OPTIONS} -c synchronous_commit=off"
"""PostgreSQL answers before a commit is on disk, and writes it within about 0.6 s (3 × wal_writer_delay)."""
GROUP_BYTES = 8 * 1024 * 1024
"""A group's JSON at the most (bytes), so that large payloads do not add up to a statement PostgreSQL refuses."""

CALL_COLUMNS = (
    "id, trace_id, parent_call_id, depth, caller, origin_caller, capability, status, route_id, table_revision,"
    " service_id, node_id, attempts, seq, accepted_at, first_forwarded_at, ended_at, deadline, idempotent, request,"
    " request_digest, payload_digest, error, labels, idempotency_key, session_id, mirror_of, async_rank, callback_url,"
    " redispatch_of, owner, epoch, step"
)
DUE = "reach_due"
"""The channel of what is due: calls that wait for an engine (no payload), callbacks (`callbacks`)."""
NOBODY = UUID(int=0)
"""The owner of a call that waits for an engine."""


def moment(column: str) -> str:
    return f"to_timestamp({column} / 1000.0::float8)"


ACCEPT = f"""
WITH taken AS (
    INSERT INTO idempotency (caller, key, call_id, request_digest, expires_at)
    SELECT caller, key, call_id, request_digest, {moment("expires_ms")}
    FROM json_to_recordset($1::json) AS k({columns(KeyRow)}) ORDER BY caller, key
    ON CONFLICT (caller, key) DO UPDATE SET call_id = EXCLUDED.call_id, request_digest = EXCLUDED.request_digest,
        expires_at = EXCLUDED.expires_at WHERE idempotency.expires_at <= now()
    RETURNING call_id
), new AS (
    INSERT INTO calls ({CALL_COLUMNS})
    SELECT id, trace_id, parent_call_id, coalesce(depth, 0), caller, origin_caller, capability, status, route_id,
        table_revision, service_id, node_id, coalesce(attempts, 0), coalesce(seq, 0), {moment("accepted_ms")},
        {moment("first_forwarded_ms")}, {moment("ended_ms")}, {moment("deadline_ms")}, coalesce(idempotent, false),
        request, request_digest, payload_digest, error, labels, idempotency_key, session_id, mirror_of, async_rank,
        callback_url, redispatch_of, owner, 1, 0
    FROM json_to_recordset($2::json) AS c({columns(CallRow)})
    WHERE keyed IS NOT TRUE OR id IN (SELECT call_id FROM taken)
    RETURNING id, capability, async_rank, deadline, ended_at
), queued AS (
    INSERT INTO waiting_calls (call_id, capability, async_rank, due_at, deadline)
    SELECT id, capability, async_rank, now(), deadline FROM new WHERE async_rank IS NOT NULL AND ended_at IS NULL
    RETURNING call_id
), written AS (
    INSERT INTO receipts (call_id, seq, kind, attempt, service_id, node_id, at, detail)
    SELECT call_id, n, kind, attempt, service_id, node_id, {moment("at_ms")}, detail
    FROM json_to_recordset($3::json) AS r({columns(ReceiptRow)}) WHERE call_id IN (SELECT id FROM new)
)
SELECT id, (SELECT count(pg_notify('{DUE}', '')) FROM queued) FROM new
"""

NO_CALL = str(UUID(int=0))
# `MOVE` finds its calls by their primary key whatever the planner believes: a partition that has been empty until now
# it believes to be small, and prefers to read all its open calls, at midnight as on the first day. `$3` and `$4`, the
# lowest and the highest of the ids, leave the other partitions out; whether a call is open is asked of its status, of
# which no index knows.
MOVE = f"""
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS m({columns(MoveRow)})
), moved AS (
    UPDATE calls c SET
        seq = c.seq + m.count, step = coalesce(m.step, c.step), status = coalesce(m.status, c.status),
        ended_at = {moment("m.ended_ms")}, output = coalesce(m.output, c.output), error = coalesce(m.error, c.error),
        capability = coalesce(m.capability, c.capability),
        route_id = coalesce(m.route_id, c.route_id), table_revision = coalesce(m.table_revision, c.table_revision),
        service_id = coalesce(m.service_id, c.service_id), node_id = coalesce(m.node_id, c.node_id),
        attempts = coalesce(m.attempts, c.attempts), idempotent = coalesce(m.idempotent, c.idempotent),
        first_forwarded_at = coalesce(c.first_forwarded_at, {moment("m.first_forwarded_ms")}),
        due_at = {moment("m.due_ms")}
    FROM asked m
    WHERE c.id BETWEEN $3::uuid AND $4::uuid AND c.id = ANY(ARRAY(SELECT id FROM asked)) AND c.id = m.id
        AND c.status IN ('accepted', 'running')
        AND (m.owner IS NULL OR (c.owner = m.owner AND c.epoch = m.epoch AND c.step = m.step - 1))
        AND (m.fence_attempt IS NULL OR c.attempts = m.fence_attempt)
        AND (m.fence_seq IS NULL OR c.seq = m.fence_seq)
    RETURNING c.id, c.seq - m.count AS base, c.owner, c.watchers, c.ended_at, m.tell_owner
), written AS (
    INSERT INTO receipts (call_id, seq, kind, attempt, service_id, node_id, at, detail)
    SELECT r.call_id, moved.base + r.n, r.kind, r.attempt, r.service_id, r.node_id, {moment("r.at_ms")}, r.detail
    FROM json_to_recordset($2::json) AS r({columns(ReceiptRow)}) JOIN moved ON moved.id = r.call_id
), told AS (
    SELECT pg_notify('reach_' || replace(watcher::text, '-', ''), moved.id::text)
    FROM moved, unnest(
        CASE WHEN ended_at IS NOT NULL THEN watchers END || CASE WHEN tell_owner THEN ARRAY[owner] END) AS watcher
)
SELECT moved.id, (SELECT count(*) FROM told) FROM moved
"""


def parameters_of_move(rows: Sequence[MoveRow], receipts: Sequence[ReceiptRow]) -> tuple[bytes, bytes, bytes, bytes]:
    ids = [row.id for row in rows]
    lowest, highest = min(ids, default=NO_CALL), max(ids, default=NO_CALL)
    return json_of(rows), json_of(receipts), lowest.encode(), highest.encode()


Row = TypeVar("Row", CallRow, MoveRow)


@dataclass(slots=True)
class Item(Generic[Row]):
    """One row, its receipts, and who waits for them to be on disk."""

    row: Row
    receipts: list[ReceiptRow]
    written: asyncio.Future[bool]
    give_up_at: float | None = None
    """Loop time after which nobody waits any longer; the row is written all the same."""
    in_doubt: bool = False

    @property
    def size(self) -> int:
        request = self.row.request if isinstance(self.row, CallRow) else self.row.output
        return len(request or "") + 1024


Flush = Callable[[psycopg.AsyncConnection, Prepared, Sequence[Item[Row]]], Awaitable[None]]
"""Writes a group by the lane's statement and resolves its futures."""
committed: list[Callable[[str, int, float], None]] = []
"""Told of each group on disk: the lane's name, its rows, its seconds. Who watches commits signs up here."""
written: list[Callable[[Sequence[Item[Any]]], None]] = []
"""Told of each group on disk: its rows. Of any thread that has a journal."""
Lost = Callable[[list[Item[Row]], psycopg.AsyncConnection | None], Awaitable[None]]
"""Told of a lost connection (None, with what waits) and of every new one."""


class Lane(Generic[Row]):
    """Group commit of one kind of row on one connection."""

    def __init__(
        self,
        name: str,
        sessions: "PostgreSQL",
        statement: str,
        flush: Flush[Row],
        lost: Lost[Row],
        *,
        max_rows: int,
        retry_s: float,
        answer_s: float,
        options: str,
    ):
        self.answer_s = answer_s
        self.name, self.sessions, self.statement, self.options = name, sessions, statement, options
        self.flush: Flush[Row] = flush
        self.lost: Lost[Row] = lost
        self.max_rows, self.retry_s = max_rows, retry_s
        self.waiting: deque[Item[Row]] = deque()
        self.arrived = asyncio.Event()
        self.connection: psycopg.AsyncConnection | None = None
        self.prepared: Prepared | None = None
        self.flushing_since: float | None = None

    def put(self, row: Row, receipts: list[ReceiptRow], give_up_at: float | None = None) -> asyncio.Future[bool]:
        """Queue a row for the next group; the future says whether it was written (False: somebody else was first)."""
        item = Item(row, receipts, asyncio.get_running_loop().create_future(), give_up_at)
        self.waiting.append(item)
        self.arrived.set()
        return item.written

    async def run(self) -> None:
        """Write groups for ever; a lost database is reached for again and again."""
        while True:
            try:
                if self.connection is None or self.prepared is None or self.connection.closed:
                    self.connection = await self.sessions.open(f"reach {self.name}", self.options)
                    self.prepared = self.sessions.prepared(self.connection, self.statement)
                    await self.lost([], self.connection)
                await self.arrived.wait()
                await self.write_group(self.connection, self.prepared)
            except psycopg.OperationalError as exc:
                log.warning("%s: the database is away: %s", self.name, str(exc).splitlines()[0])
                await self.drop_connection()
                await self.lost(list(self.waiting), None)
                await asyncio.sleep(self.retry_s)

    async def write_group(self, connection: psycopg.AsyncConnection, prepared: Prepared) -> None:
        group = self.take()
        if not group:
            self.arrived.clear()
            return
        loop = asyncio.get_running_loop()
        self.flushing_since = began = loop.time()
        try:
            await self.flush(connection, prepared, group)
            for told in committed:
                told(self.name, len(group), loop.time() - began)
            for shown in written:
                shown(group)
        except psycopg.OperationalError:
            for item in group:
                item.in_doubt = True
            self.waiting.extendleft(reversed(group))
            raise
        except psycopg.Error as exc:
            await self.write_singly(connection, prepared, group, exc)
        except Exception as exc:  # a bug: whoever waits for this group must hear of it
            for item in group:
                if not item.written.done():
                    item.written.set_exception(exc)
            await self.drop_connection()
            raise
        finally:
            self.flushing_since = None

    async def write_singly(
        self, connection: psycopg.AsyncConnection, prepared: Prepared, group: list[Item[Row]], exc: psycopg.Error
    ) -> None:
        """One bad row must not fail the calls it shares a group with."""
        if len(group) == 1:
            log_refused(self.name, group[0].row.id, exc)
            group[0].written.set_exception(exc)
            return
        for item in group:
            try:
                await self.flush(connection, prepared, [item])
            except psycopg.OperationalError:
                self.waiting.extendleft(i for i in reversed(group) if not i.written.done())
                raise
            except psycopg.Error as single:
                log_refused(self.name, item.row.id, single)
                item.written.set_exception(single)

    def look_after(self, now: float) -> None:
        """Once a second: give up a database that does not answer, and let go of those who have waited long enough.

        One look for all is cheaper than a timer for each.
        """
        if self.flushing_since is not None and now - self.flushing_since > self.answer_s and self.prepared is not None:
            self.prepared.give_up(f"no answer within {self.answer_s:g} s")
        for item in self.waiting:
            if item.give_up_at is not None and now > item.give_up_at and not item.written.done():
                item.written.set_exception(
                    Unavailable("the database is away: how the call ended is not written yet", call_id=item.row.id)
                )

    def take(self) -> list[Item[Row]]:
        """The next group: at most one row a call, so that rows of one call are written in their order."""
        group: list[Item[Row]] = []
        deferred: list[Item[Row]] = []
        seen: set[str] = set()
        size = 0
        while self.waiting and len(group) < self.max_rows and size < GROUP_BYTES:
            item = self.waiting.popleft()
            if item.row.id in seen:
                deferred.append(item)
                continue
            seen.add(item.row.id)
            group.append(item)
            size += item.size
        self.waiting.extendleft(reversed(deferred))
        return group

    async def drop_connection(self) -> None:
        if self.connection is not None:
            await self.connection.close()
            self.connection = self.prepared = None


def log_refused(lane: str, call_id: str, exc: psycopg.Error) -> None:
    """The kind of the error alone: its words quote what was to be written, which may be anybody's payload."""
    log.error("%s: the database refuses a row of call %s: %s", lane, call_id, type(exc).__name__)


async def keep_running(work: Callable[[], Awaitable[None]], retry_s: float) -> None:
    """The outermost loop of a background task: a bug is logged and the work begun anew, never silently over."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed; it starts again in %s s", work.__qualname__, retry_s)
            await asyncio.sleep(retry_s)


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: before Python 3.12 `wait_for` (the pool uses it) may lose a cancel."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.5)


async def connect(conninfo: str, name: str, options: str = "") -> psycopg.AsyncConnection:
    """An autocommit connection of its own, named in pg_stat_activity."""
    return await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True, application_name=name, options=options, connect_timeout=5, prepare_threshold=0
    )


class PostgreSQL:
    """The sessions of one process: a lane's with its statement, the listener's, and the readers'."""

    def __init__(self, conninfo: str):
        self.conninfo = conninfo

    async def open(self, name: str, options: str = "") -> psycopg.AsyncConnection:
        return await connect(self.conninfo, name, options)

    def prepared(self, connection: psycopg.AsyncConnection, statement: str) -> Prepared:
        return Prepared(connection, "write", statement)

    def readers(self) -> AsyncConnectionPool[psycopg.AsyncConnection[dict[str, Any]]]:
        return AsyncConnectionPool(
            self.conninfo,
            min_size=1,
            max_size=2,
            open=False,
            timeout=5,
            kwargs={"autocommit": True, "row_factory": dict_row, "application_name": "reach read"},
        )


@dataclass(frozen=True, slots=True)
class Existing:
    """The call that already stands for an idempotency key."""

    call_id: UUID
    request_digest: str


class Journal:
    """The lanes of one process, its lease, and the calls it is told about. Start and stop it on one event loop."""

    def __init__(
        self,
        sessions: PostgreSQL,
        owner: UUID,
        *,
        role: str,
        max_rows: int,
        retry_s: float,
        answer_s: float,
        lease_s: float,
        key_ttl_s: float,
        hears_due: bool = False,
        writer_options: str = WRITER_OPTIONS,
    ):
        self.sessions, self.owner, self.hears_due = sessions, owner, hears_due
        self.retry_s, self.lease_s, self.key_ttl_s = retry_s, lease_s, key_ttl_s
        self.new_calls: Lane[CallRow] = Lane(
            "journal accept",
            sessions,
            ACCEPT,
            self.flush_new,
            self.lose_new,
            max_rows=max_rows,
            retry_s=retry_s,
            answer_s=answer_s,
            options=writer_options,
        )
        self.moves: Lane[MoveRow] = Lane(
            "journal move",
            sessions,
            MOVE,
            self.flush_moves,
            self.lose_moves,
            max_rows=max_rows,
            retry_s=retry_s,
            answer_s=answer_s,
            options=writer_options,
        )
        self.lease = (owner, role, socket.gethostname(), os.getpid(), lease_s)
        self.doubtful: list[str] = []
        self.reader = sessions.readers()
        self.followers: dict[str, list[Callable[[], None]]] = {}
        self.heard: list[Callable[[Iterable[str]], None]] = []
        """Told of calls that have moved, by a write of this process or as another one says."""
        self.when_due: list[Callable[[str], None]] = []
        """Told of what is due, by the payload of `DUE`, where this process hears of it."""
        self.listens: list[Callable[[], None]] = []
        """Told whenever this process begins to listen, and anew after an absence: what was said before is lost."""
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.reader.open()
        self.tasks = [
            asyncio.create_task(keep_running(work, self.retry_s), name=f"journal {work.__name__}")
            for work in (self.new_calls.run, self.moves.run, self.look_after, self.keep_lease, self.listen)
        ]

    async def stop(self) -> None:
        """End the lanes and give the lease back, so that what is still open is taken over at once."""
        await end(self.tasks)
        try:
            await self.read(GIVE_LEASE_BACK, self.owner)
        except Unavailable:
            log.warning("the lease could not be given back; it runs out by itself")
        await self.reader.close()
        for lane in (self.new_calls, self.moves):
            await lane.drop_connection()

    # --- New calls ---------------------------------------------------------------------------------------------------

    async def accept(self, row: CallRow, receipts: list[ReceiptRow]) -> Existing | None:
        """Make a call durable. None: it is new and on disk. Existing: its idempotency key stands for another call.

        Raises Unavailable when the database is away: then nothing was accepted.
        """
        while True:
            if await self.new_calls.put(row, receipts):
                return None
            if existing := await self.find_key(row.caller, row.idempotency_key):
                return existing

    async def find_key(self, caller: str, key: str | None) -> Existing | None:
        """The call an unexpired idempotency key stands for. Raises Unavailable."""
        rows = await self.read(FIND_KEY, caller, key)
        return Existing(rows[0]["call_id"], rows[0]["request_digest"]) if rows else None

    async def flush_new(
        self, _connection: psycopg.AsyncConnection, prepared: Prepared, group: Sequence[Item[CallRow]]
    ) -> None:
        leaders: dict[tuple[str, str | None], Item[CallRow]] = {}
        for item in group:
            if item.row.keyed:
                leaders.setdefault((item.row.caller, item.row.idempotency_key), item)
        keys = [
            KeyRow(
                caller,
                str(key),
                item.row.id,
                item.row.request_digest,
                item.row.accepted_ms + int(self.key_ttl_s * 1000),
            )
            for (caller, key), item in leaders.items()
        ]
        written = [i for i in group if not i.row.keyed or leaders[(i.row.caller, i.row.idempotency_key)] is i]
        rows = await prepared.run(
            json_of(keys),
            json_of([item.row for item in written]),
            json_of([receipt for item in written for receipt in item.receipts]),
        )
        new = {row[0] for row in rows}
        for item in group:
            if not item.written.done():
                item.written.set_result(item.row.id in new)

    async def lose_new(self, waiting: list[Item[CallRow]], connection: psycopg.AsyncConnection | None) -> None:
        """Refuse what waits while the database is away; on its return end what may have been committed unseen."""
        if connection is None:
            self.new_calls.waiting.clear()
            self.new_calls.arrived.clear()
            self.doubtful += [item.row.id for item in waiting if item.in_doubt]
            for item in waiting:
                if not item.written.done():
                    item.written.set_exception(Unavailable())
            return
        await connection.execute(RENEW_LEASE, self.lease)  # no call is accepted without a lease
        if self.doubtful:
            await connection.execute(END_DOUBTFUL, (self.doubtful,))
            self.doubtful.clear()

    # --- Changes of open calls ---------------------------------------------------------------------------------------

    def move(self, row: MoveRow, receipts: list[ReceiptRow], give_up_at: float | None = None) -> asyncio.Future[bool]:
        """Write a change and its receipts. False: the call has ended, or is no longer this owner's or this attempt's.

        While the database is away this waits: an ending is never told before it is written. Whoever stops waiting
        does not take the write back. From `give_up_at` (loop time) on the future raises Unavailable instead.
        """
        return self.moves.put(row, receipts, give_up_at)

    async def flush_moves(
        self, connection: psycopg.AsyncConnection, prepared: Prepared, group: Sequence[Item[MoveRow]]
    ) -> None:
        applied = await self.already_applied(connection, [i.row for i in group if i.in_doubt and i.row.owner])
        fresh = [item for item in group if item.row.id not in applied]
        noted = [receipt for item in fresh for receipt in item.receipts]
        rows = await prepared.run(*parameters_of_move([item.row for item in fresh], noted))
        moved: set[Any] = {call_id for call_id, _told in rows}
        for item in group:
            if not item.written.done():
                item.written.set_result(item.row.id in moved or item.row.id in applied)
        for told in self.heard:
            told(moved)

    async def already_applied(self, connection: psycopg.AsyncConnection, rows: Sequence[MoveRow]) -> set[str]:
        """Which of an owner's doubtful writes had been committed before the connection broke (their step is there)."""
        if not rows:
            return set()
        result = await connection.execute(ALREADY_APPLIED, (json_of(list(rows)).decode(),))
        return {str(call_id) for (call_id,) in await result.fetchall()}

    async def lose_moves(self, _waiting: list[Item[MoveRow]], _connection: psycopg.AsyncConnection | None) -> None:
        """Nothing is given up: what waits is written when the database is back."""

    # --- Reading, leases, waking -------------------------------------------------------------------------------------

    async def read(self, sql: str, *parameters: Any, **named: Any) -> list[dict[str, Any]]:
        """Rows of one statement on a connection apart from the lanes. Raises Unavailable when the database is away."""
        try:
            async with self.reader.connection() as connection:
                result = await connection.execute(sql, named or parameters)
                rows: list[dict[str, Any]] = await result.fetchall() if result.description else []
                return rows
        except (psycopg.OperationalError, PoolTimeout) as exc:
            raise Unavailable() from exc

    async def look_after(self) -> None:
        while True:
            await asyncio.sleep(1)
            now = asyncio.get_running_loop().time()
            for lane in (self.new_calls, self.moves):
                lane.look_after(now)

    async def keep_lease(self) -> None:
        """Renew this process's right to its open calls, thrice a lease."""
        while True:
            try:
                await self.read(RENEW_LEASE, *self.lease)
            except Unavailable:
                log.warning("the lease of this process could not be renewed")
            await asyncio.sleep(self.lease_s / 3)

    async def listen(self) -> None:
        """Wake whoever waits for a call that another process has moved."""
        while True:
            try:
                async with await self.sessions.open("reach listen") as connection:
                    await connection.execute(f"LISTEN reach_{self.owner.hex}")
                    if self.hears_due:
                        await connection.execute(f"LISTEN {DUE}")
                    for begun in self.listens:
                        begun()
                    async for notice in connection.notifies():
                        if notice.channel != DUE:
                            self.wake(notice.payload)
                            continue
                        for told in self.when_due:
                            told(notice.payload)
            except psycopg.OperationalError:
                await asyncio.sleep(self.retry_s)

    def wake(self, call_id: str) -> None:
        """Call whoever of this process follows a call that has moved."""
        for told in self.heard:
            told((call_id,))
        for moved in list(self.followers.get(call_id, ())):
            moved()

    @contextmanager
    def following(self, call_id: str, moved: Callable[[], None]) -> Iterator[None]:
        """Have `moved` called whenever this or another process has written to the call."""
        followers = self.followers.setdefault(call_id, [])
        followers.append(moved)
        try:
            yield
        finally:
            followers.remove(moved)
            if not followers:
                self.followers.pop(call_id, None)


FIND_KEY = "SELECT call_id, request_digest FROM idempotency WHERE caller = %s AND key = %s AND expires_at > now()"
ALREADY_APPLIED = (
    "SELECT c.id FROM json_to_recordset(%s::json) AS m(id uuid, owner uuid, epoch int, step int)"
    " JOIN calls c ON c.id = m.id AND c.owner = m.owner AND c.epoch = m.epoch AND c.step >= m.step"
)
GIVE_LEASE_BACK = "DELETE FROM process_leases WHERE owner = %s"
RENEW_LEASE = """
INSERT INTO process_leases AS held (owner, role, host, pid, started_at, held_since, lease_expires_at)
VALUES (%s, %s, %s, %s, now(), now(), now() + make_interval(secs => %s))
ON CONFLICT (owner) DO UPDATE SET lease_expires_at = EXCLUDED.lease_expires_at,
    held_since = CASE WHEN held.lease_expires_at < now() THEN now() ELSE held.held_since END
"""

END_DOUBTFUL = """
WITH ended AS (
    UPDATE calls SET status = 'rejected', ended_at = now(), seq = seq + 1,
        error = '{"code":"unavailable","detail":"the database was away while the call was being accepted"}'
    WHERE id = ANY(%s::uuid[]) AND attempts <= CASE WHEN async_rank IS NULL THEN 1 ELSE 0 END AND ended_at IS NULL
    RETURNING id, seq
), freed AS (
    DELETE FROM idempotency WHERE call_id IN (SELECT id FROM ended)
)
INSERT INTO receipts (call_id, seq, kind, at, detail)
SELECT id, seq, 'rejected', now(), '{"code":"unavailable"}' FROM ended
"""
"""Calls that were committed unseen: their callers were told that nothing was accepted, and nothing was sent. While the
database was away another process may have taken them over and wait for a node that knows nothing of them; only where
it has made an attempt of its own they are left to it. `step` stays: it counts the writes of whoever holds the call, who
may ask by it whether his last one was done."""
