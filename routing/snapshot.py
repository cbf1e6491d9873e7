"""The three tables in memory: loaded in one read, replaced whole when the database says that they have moved."""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from time import monotonic, thread_time
from typing import Any

import psycopg
from django.conf import settings
from psycopg.rows import dict_row

from receipts.journal import connect, end, keep_running
from registry import changes, clock, signing
from registry.addresses import allowed_addresses, spelled_refusal
from registry.auth import Key, key_of_row, load_keys_sql
from registry.core.node import AdminState, Health, Node, Offer, Tier
from registry.schemas import compile_schema, narrowness
from routing.core.matching import EMPTY_TABLE, Route, RouteTable
from routing.core.tables import Tables
from routing.rules import build_table, parse_document

log = logging.getLogger(__name__)

REST_AFTER_LOAD, REST_AT_MOST_S = 4, 0.2
"""Times the CPU that the last load took: a table that moves all the time takes a fifth of the loop at most. The bound
keeps the promise of the route table, on every process within two seconds, on a busy machine, too.
"""

COUNTER = "SELECT version, extract(epoch FROM clock_timestamp()) FROM registry_snapshotversion"
NODES = """
SELECT n.id, n.service_id, n.node_id, n.address, coalesce(n.operator_weight, n.declared_weight) AS weight, n.health,
    n.admin_state, n.tags, n.version, n.endpoints, n.max_concurrency, l.expired
FROM registry_node n JOIN registry_nodelease l ON l.node_id = n.id WHERE n.deleted_at IS NULL
"""
OFFERS = """
SELECT d.node_id, d.capability_id AS capability, d.version, d.description, d.input_schema, d.output_schema,
    d.cost_level, d.rate_per_s, d.timeout_tier, d.idempotent, d.tags, d.allow_callers
FROM registry_declaration d JOIN registry_node n ON n.id = d.node_id WHERE n.deleted_at IS NULL
"""
ROUTES = """
SELECT r.number, r.fallback_rules, coalesce((
    SELECT json_agg(t.document ORDER BY t.position) FROM routing_route t WHERE t.revision_id = r.number
), '[]') AS routes
FROM routing_tablerevision r ORDER BY r.number DESC LIMIT 1
"""


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
        moved = self.tables is None or row is None or row[0] != self.tables.version
        if moved:
            await self.load(connection)
        self.checked_at = monotonic()
        return moved

    async def load(self, connection: psycopg.AsyncConnection) -> None:
        """Read everything in one REPEATABLE READ transaction and put it in place."""
        started = thread_time()
        async with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            rows: dict[str, list[dict[str, Any]]] = {}
            for name, sql in {
                "version": "SELECT version FROM registry_snapshotversion",
                "installation": "SELECT value FROM registry_installationkey",
                "services": "SELECT service_id, signing_secret FROM registry_service",
                "nodes": NODES,
                "offers": OFFERS,
                "known": "SELECT name FROM registry_capability",
                "routes": ROUTES,
                "keys": load_keys_sql,
            }.items():
                rows[name] = await (await cursor.execute(sql)).fetchall()
        keys: dict[str, Key] = dict(key_of_row(tuple(row.values())) for row in rows["keys"])
        tables = self.make_tables(rows)
        with self.moved:
            self.tables = tables
            self.use_keys(keys)
            self.moved.notify_all()
        self.load_took_s = thread_time() - started
        for told in self.when_loaded:
            told(tables)

    def make_tables(self, rows: dict[str, list[dict[str, Any]]]) -> Tables:
        offers: dict[int, dict[str, Offer]] = {}
        texts: dict[str, str] = {row["name"]: "" for row in rows["known"]}
        for row in rows["offers"]:
            offers.setdefault(row["node_id"], {})[row["capability"]] = offer_of(row)
            texts[row["capability"]] = " ".join([row["description"], *row["tags"]])
        nodes = [node_of(row, offers.get(row["id"], {})) for row in rows["nodes"]]
        table = self.make_route_table(rows["routes"], texts)
        installation = rows["installation"][0]["value"] if rows["installation"] else ""
        cipher = signing.cipher(settings.GIVEN_SECRET_KEY, installation)
        secrets = {
            row["service_id"]: signing.secret_bytes(cipher.decrypt(row["signing_secret"].encode()).decode())
            for row in rows["services"]
        }
        version = rows["version"][0]["version"]
        return Tables(version, nodes, frozenset(texts), table, secrets, shown_at_most=self.shown_at_most)

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


def offer_of(row: dict[str, Any]) -> Offer:
    return Offer(
        capability=row["capability"],
        input=compile_schema(row["input_schema"]),
        output=compile_schema(row["output_schema"]),
        version=row["version"],
        cost_level=row["cost_level"],
        rate_per_s=row["rate_per_s"],
        tier=Tier(row["timeout_tier"]),
        idempotent=row["idempotent"],
        tags=frozenset(row["tags"]),
        allow_callers=frozenset(row["allow_callers"]),
        description=row["description"],
        narrowness=narrowness(row["input_schema"]),
    )


@lru_cache(maxsize=16_384)
def address_bar(address: str, allowed: tuple[str, ...]) -> str | None:
    """`spelled_refusal`, remembered: the tables are loaded often, addresses seldom change."""
    return spelled_refusal(address, allowed=allowed)


def node_of(row: dict[str, Any], offers: dict[str, Offer]) -> Node:
    endpoints = row["endpoints"]
    return Node(
        service_id=row["service_id"],
        node_id=row["node_id"],
        address=row["address"],
        weight=row["weight"],
        health=Health(row["health"]),
        admin_state=AdminState(row["admin_state"]),
        expired=row["expired"],
        barred=address_bar(row["address"], allowed_addresses()),
        tags=frozenset(row["tags"]),
        version=row["version"],
        invoke_url=row["address"].rstrip("/") + endpoints["invoke"],
        cancel_url=row["address"].rstrip("/") + endpoints["cancel"] if endpoints.get("cancel") else None,
        max_concurrency=row["max_concurrency"],
        offers=offers,
    )
