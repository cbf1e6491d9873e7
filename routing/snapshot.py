"""The three tables in memory: read in one transaction, and brought up to date when the database says they have moved.

Each version says what it has changed (`registry.changes`); only that is read again. Where one says nothing, or the
connection was lost meanwhile, everything is.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from time import monotonic, thread_time
from typing import Any

import psycopg
from django.conf import settings
from psycopg.rows import dict_row

from receipts.journal import connect, end, keep_running
from registry import changes, clock, signing
from registry.auth import Key, key_of_row, load_keys_sql
from registry.core.node import Node, Offer
from routing.core.matching import EMPTY_TABLE, Route, RouteTable
from routing.core.tables import Tables, said_of
from routing.rows import CAPABILITIES, NODES, OF_THESE, OFFERS, ROUTES, SERVICES, node_of, offer_of
from routing.rules import build_table, parse_document

log = logging.getLogger(__name__)

REST_AFTER_LOAD, REST_AT_MOST_S = 4, 0.2
"""Times the CPU that the last load took: a table that moves all the time takes a fifth of the loop at most. The bound
keeps the promise of the route table, on every process within two seconds, on a busy machine, too.
"""
AT_A_TIME = 250
"""So many rows are made into values before calls have their turn: a load of ten thousand nodes must not stop them."""

COUNTER = "SELECT version, extract(epoch FROM clock_timestamp()) FROM registry_snapshotversion"
CHANGES = "SELECT version, nodes, parts FROM registry_snapshotchange WHERE version > %s ORDER BY version LIMIT %s"
Cursor = psycopg.AsyncCursor[dict[str, Any]]


@dataclass(slots=True)
class Moved:
    """What has changed since the version in memory."""

    nodes: set[int] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)


def moved_since(held: int, now: int, rows: Sequence[dict[str, Any]]) -> Moved | None:
    """What the versions after `held` up to `now` have changed, by their rows; None where one of them says nothing."""
    if now < held or [row["version"] for row in rows] != list(range(held + 1, now + 1)):
        return None
    moved = Moved()
    for row in rows:
        moved.nodes.update(row["nodes"])
        moved.parts.update(row["parts"])
    return moved


class Snapshot:
    """Keeps `tables` and the keys current on one event loop. `tables` is None until the first load."""

    def __init__(
        self, conninfo: str, *, poll_s: float, retry_s: float, shown_at_most: int, use_keys: Callable[..., None]
    ):
        self.conninfo, self.poll_s, self.retry_s, self.shown_at_most = conninfo, poll_s, retry_s, shown_at_most
        self.use_keys = use_keys
        self.tables: Tables | None = None
        self.checked_at = 0.0
        self.load_took_s = 0.0
        self.when_loaded: list[Callable[[Tables], None]] = []
        self.parsed: tuple[int, tuple[Route, ...]] = (0, ())
        self.built: tuple[int, dict[str, str], RouteTable] = (0, {}, EMPTY_TABLE)
        self.texts: dict[str, str] = {}
        """What each known capability says of itself."""
        self.node_keys: dict[int, tuple[str, str]] = {}
        """Of the nodes in the tables, by primary key."""
        self.must_read_all = True
        self.moved = threading.Condition()
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load once, then follow. Raises psycopg.OperationalError when the database is away."""
        self.task = asyncio.create_task(keep_running(self.follow, self.retry_s), name="snapshot")
        changes.followers.append(self.wait_for)

    async def stop(self) -> None:
        changes.followers.remove(self.wait_for)
        if self.task is not None:
            await end([self.task])

    def age_s(self) -> float:
        """Seconds since the tables were last known to be current."""
        return monotonic() - self.checked_at

    def wait_for(self, version: int, timeout_s: float) -> bool:
        """Block the calling thread until `version` is loaded; False when it was not in time."""
        with self.moved:
            return self.moved.wait_for(lambda: self.tables is not None and self.tables.version >= version, timeout_s)

    async def follow(self) -> None:
        """Listen first, then read: a change between the two is heard. Each second the counter is read as a net."""
        while True:
            try:
                async with await connect(self.conninfo, "reach snapshot") as connection:
                    self.must_read_all = True  # after an absence it may be another database, or an older one
                    await connection.execute(f"LISTEN {changes.CHANNEL}")
                    while True:
                        if await self.load_if_moved(connection):
                            await asyncio.sleep(min(REST_AT_MOST_S, REST_AFTER_LOAD * self.load_took_s))
                        async for _notice in connection.notifies(timeout=self.poll_s, stop_after=1):
                            pass
            except psycopg.OperationalError as exc:
                log.warning("snapshot: the database is away: %s", str(exc).splitlines()[0])
                await asyncio.sleep(self.retry_s)

    async def load_if_moved(self, connection: psycopg.AsyncConnection) -> bool:
        """Look at the counter, and at the database's clock with it; load when it has moved. Whether it had."""
        asked_s = clock.now_s()
        row = await (await connection.execute(COUNTER)).fetchone()
        if row is not None:
            clock.set_right(float(row[1]), asked_s=asked_s, answered_s=clock.now_s())
        moved = self.tables is None or self.must_read_all or row is None or row[0] != self.tables.version
        if moved:
            await self.load(connection)
        self.checked_at = monotonic()
        return moved

    async def load(self, connection: psycopg.AsyncConnection) -> None:
        """Read what has moved in one REPEATABLE READ transaction, and put it in place."""
        started = thread_time()
        async with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            [row] = await read(cursor, "SELECT version FROM registry_snapshotversion")
            version = row["version"]
            moved = await self.moved_until(cursor, version)
            keys = None
            if moved is None or changes.Part.KEYS in moved.parts:
                keys = dict(key_of_row(tuple(row.values())) for row in await read(cursor, load_keys_sql))
            if moved is None or self.tables is None:
                tables = await self.all_tables(cursor, version)
            else:
                owners = {key.service_id for key in keys.values() if key.service_id} if keys else set()
                tables = await self.moved_tables(cursor, version, self.tables, moved, owners)
        self.put_in_place(tables, keys)
        self.must_read_all = False
        self.load_took_s = thread_time() - started

    async def moved_until(self, cursor: Cursor, version: int) -> Moved | None:
        if self.tables is None or self.must_read_all:
            return None
        held = self.tables.version
        return moved_since(held, version, await read(cursor, CHANGES, held, changes.KEPT))

    def put_in_place(self, tables: Tables, keys: dict[str, Key] | None) -> None:
        with self.moved:
            self.tables = tables
            if keys is not None:
                self.use_keys(keys)
            self.moved.notify_all()
        for told in self.when_loaded:
            told(tables)

    async def all_tables(self, cursor: Cursor, version: int) -> Tables:
        known = [row["name"] for row in await read(cursor, CAPABILITIES)]
        secrets = await self.secrets_of(cursor, SERVICES)
        self.node_keys = {}
        nodes = await self.nodes_of(cursor, NODES, OFFERS)
        bare = Tables(version, nodes, frozenset(known), secrets=secrets, shown_at_most=self.shown_at_most)
        self.texts = {name: said_of(bare.providers.get(name, ())) for name in sorted(known)}
        routes = self.make_route_table(await read(cursor, ROUTES), self.texts)
        return bare.moved(version, routes=routes)

    async def moved_tables(
        self, cursor: Cursor, version: int, tables: Tables, moved: Moved, owners: AbstractSet[str]
    ) -> Tables:
        """The tables that are held, with what has moved read anew. `owners`: of the keys, where these have moved."""
        before = {self.node_keys.pop(pk) for pk in moved.nodes if pk in self.node_keys}
        nodes: list[Node] = []
        if moved.nodes:
            nodes = await self.nodes_of(cursor, NODES + OF_THESE, OFFERS + OF_THESE, list(moved.nodes))
        secrets: dict[str, bytes] = {}
        if strangers := sorted(({node.service_id for node in nodes} | owners) - tables.secrets.keys()):
            secrets = await self.secrets_of(cursor, f"{SERVICES} WHERE service_id = ANY(%s)", strangers)
        after = tables.moved(version, changed=nodes, gone=before - {node.key for node in nodes}, secrets=secrets)
        touched = tables.capabilities_of(before) | after.capabilities_of(node.key for node in nodes)
        texts = {name: said_of(after.providers.get(name, ())) for name in touched}
        routes = tables.routes
        if any(self.texts.get(name) != said for name, said in texts.items()) or changes.Part.ROUTES in moved.parts:
            self.texts = self.texts | texts
            routes = self.make_route_table(await read(cursor, ROUTES), self.texts)
        return after if routes is tables.routes else after.moved(version, routes=routes)

    async def nodes_of(self, cursor: Cursor, nodes_sql: str, offers_sql: str, *parameters: Any) -> list[Node]:
        offers: dict[int, dict[str, Offer]] = {}
        async for rows in by_and_by(cursor, offers_sql, *parameters):
            for row in rows:
                offers.setdefault(row["node_id"], {})[row["capability"]] = offer_of(row)
        nodes = []
        async for rows in by_and_by(cursor, nodes_sql, *parameters):
            for row in rows:
                node = node_of(row, offers.get(row["id"], {}))
                self.node_keys[row["id"]] = node.key
                nodes.append(node)
        return nodes

    async def secrets_of(self, cursor: Cursor, sql: str, *parameters: Any) -> dict[str, bytes]:
        """Service → its signing secret in clear."""
        found = await read(cursor, "SELECT value FROM registry_installationkey")
        cipher = signing.cipher(settings.GIVEN_SECRET_KEY, found[0]["value"] if found else "")
        secrets = {}
        async for rows in by_and_by(cursor, sql, *parameters):
            for row in rows:
                stored = row["signing_secret"].encode()
                secrets[row["service_id"]] = signing.secret_bytes(cipher.decrypt(stored).decode())
        return secrets

    def make_route_table(self, rows: list[dict[str, Any]], texts: dict[str, str]) -> RouteTable:
        """The live revision's table. Revisions never change: each is parsed once, and rebuilt for new capabilities."""
        if not rows:
            return EMPTY_TABLE
        number = rows[0]["number"]
        if self.parsed[0] != number:
            document = {"routes": rows[0]["routes"], "fallback_rules": rows[0]["fallback_rules"]}
            self.parsed = (number, parse_document(document, max_routes=settings.REACH_MAX_ROUTES)[0])
        if self.built[:2] != (number, texts):
            self.built = (number, texts, build_table(number, self.parsed[1], texts))
        return self.built[2]


async def read(cursor: Cursor, sql: str, *parameters: Any) -> list[dict[str, Any]]:
    await cursor.execute(sql.encode(), parameters or None)
    return await cursor.fetchall()


async def by_and_by(cursor: Cursor, sql: str, *parameters: Any) -> AsyncIterator[list[dict[str, Any]]]:
    """The rows, `AT_A_TIME` at once; in between calls have their turn."""
    await cursor.execute(sql.encode(), parameters or None)
    while rows := await cursor.fetchmany(AT_A_TIME):
        yield rows
        await asyncio.sleep(0)
