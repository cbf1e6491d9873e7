"""The live parts that carry calls on one event loop: made at start, handed to whoever dispatches, stopped in order."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import uuid_utils.compat as uuids
from channels.layers import get_channel_layer
from django.conf import settings

from receipts.cancelling import note_not_told
from receipts.core.journey import Outcome
from receipts.following import Following
from receipts.journal import RELAXED_OPTIONS, WRITER_OPTIONS, Journal, PostgreSQL, written
from receipts.trace import Publisher
from registry import heartbeats
from registry.addresses import allowed_addresses
from registry.auth import Key, find_key_sql, key_of_row, keyring
from registry.clock import now_ns
from registry.core.node import Node, Tier
from registry.database import conninfo
from registry.errors import Unavailable
from registry.health import EJECT, READMIT, SUSPECT
from routing.core.breaker import Breaker, BreakerRules, is_error
from routing.core.plan import Policy
from routing.core.retry import BudgetRules
from routing.core.shedding import Bounds, overload
from routing.core.tables import Tables
from routing.errors import Overloaded
from routing.forwarder import Forwarder, Session, pooled_session
from routing.health import NodeLoad
from routing.snapshot import Snapshot
from routing.waiting import Waiting

if TYPE_CHECKING:
    from routing.sharing import Sharing

log = logging.getLogger(__name__)

TELL_TURNS_S = 0.1
"""Breakers that turn within so long (s) are told to the database in one statement."""


loads: list[NodeLoad] = []
"""Of this process: the server's, and in the all-in-one the engine's beside it."""


@dataclass(slots=True)
class LiveParts:
    """Everything a call needs on its way, of one process (or one engine thread)."""

    owner: UUID
    journal: Journal
    snapshot: Snapshot
    load: NodeLoad
    forwarder: Forwarder
    policy: Policy
    following: Following
    waiting: Waiting
    idle_timeout_s: float
    stream_receipts_per_s: int
    cancel_timeout_s: float
    bounds: Bounds
    most_mirrored: int
    """Copies in flight at the most."""
    breaker_timeout_s: float
    """A deadline that left a node less (s) says nothing of it."""
    in_flight: int = 0
    """Calls that somebody waits for here, those included that join another or wait for their first commit."""
    bytes_in_flight: int = 0
    """Of their bodies, as they came."""
    under_way: int = 0
    """Calls that are carried here now."""
    chance: random.Random = field(default_factory=random.Random)
    new_call_id: Callable[[], UUID] = uuids.uuid7
    telling: set[asyncio.Task[None]] = field(default_factory=set)
    sharing: "Sharing | None" = None
    publisher: Publisher | None = None
    """Who tells watchers; None where another loop of this process does."""
    turned: dict[tuple[str, str], Breaker] = field(default_factory=dict)
    """Nodes' breakers that have opened or closed, on their way into the database."""

    @property
    def tables(self) -> Tables:
        """The current tables. Raises Unavailable before the first load."""
        if (tables := self.snapshot.tables) is None:
            raise Unavailable("the reach is starting: its tables are not loaded yet")
        return tables

    def overload(self, urgency: str) -> str | None:
        """Why there is no room for one more call of this urgency; None: there is."""
        waiting_rows = len(self.journal.new_calls.waiting) + len(self.journal.moves.waiting)
        return overload(
            urgency,
            self.bounds,
            in_flight=self.in_flight,
            waiting_rows=waiting_rows,
            bytes_in_flight=self.bytes_in_flight,
        )

    def admit(self, urgency: str, size: int) -> None:
        """Count one more call in flight, with a body of so many bytes, until whoever asked calls `dismiss`.

        Raises Overloaded when there is no room for one of this urgency.
        """
        if why := self.overload(urgency):
            raise Overloaded(why, self.policy.retry_after_ms)
        self.in_flight += 1
        self.bytes_in_flight += size

    def dismiss(self, size: int) -> None:
        self.in_flight -= 1
        self.bytes_in_flight -= size

    def suspect(self, node: tuple[str, str], reason: str) -> None:
        """The way to a node has failed: take it last from now on, and have it probed. Costs the call nothing."""
        if self.load.suspect(node):
            self.tell(self.tell_suspicion(node, reason))

    def judge(self, node: tuple[str, str], outcome: Outcome | None, started_ns: int) -> None:
        """An attempt that started then has ended: what its breakers make of it. None: its call was cancelled."""
        elapsed_s = (now_ns() - started_ns) / 1e9
        failed = None if outcome is None else is_error(outcome, elapsed_s, least_timeout_s=self.breaker_timeout_s)
        self.load.judge(node, failed=failed, began_s=started_ns / 1e9)

    def note_turn(self, key: tuple[str, str], breaker: Breaker) -> None:
        """A breaker has opened or closed: show a node as ejected, or no more. Many at once are one statement."""
        service_id, node_id = key
        by = f" after {breaker.opened_by[1]} errors of {breaker.opened_by[0]}" if breaker.opened_by[0] > 1 else ""
        name = f"{service_id}/{node_id}" if node_id else f"service {service_id}"
        log.warning("the breaker of %s is %s", name, f"open{by}" if breaker.opened_at_s else "closed")
        if node_id:
            if not self.turned:
                self.tell(self.tell_turns())
            self.turned[key] = breaker

    async def tell_turns(self) -> None:
        await asyncio.sleep(TELL_TURNS_S)
        turned, self.turned = self.turned, {}
        opened = [
            (service_id, node_id, breaker.since_s, *breaker.opened_by)
            for (service_id, node_id), breaker in turned.items()
            if breaker.opened_at_s is not None
        ]
        closed = [key for key, breaker in turned.items() if breaker.opened_at_s is None]
        try:
            if opened:
                await self.journal.read(EJECT, *(list(column) for column in zip(*opened, strict=True)))
            if closed:
                await self.journal.read(READMIT, *(list(column) for column in zip(*closed, strict=True)))
        except Unavailable:
            log.warning("breakers of %d nodes have turned here alone: the database is away", len(turned))

    async def tell_suspicion(self, node: tuple[str, str], reason: str) -> None:
        try:
            await self.journal.read(SUSPECT, [node[0]], [node[1]], [reason])
        except Unavailable:
            log.warning("%s/%s is suspected here alone: the database is away", *node)

    def tell_cancelled(self, node: tuple[str, str], call_id: str, attempt: int) -> None:
        """A call was cancelled while a node worked on it: tell the node, where it wants to know. Nobody waits."""
        known = self.tables.nodes.get(node)
        if known is not None and known.cancel_url is not None:
            self.tell(self.told_cancelled(known, known.cancel_url, call_id, attempt))

    async def told_cancelled(self, node: Node, url: str, call_id: str, attempt: int) -> None:
        wrong: str | None = f"did not answer within {self.cancel_timeout_s:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(self.cancel_timeout_s):
                secret = self.tables.secrets.get(node.service_id)
                wrong = await self.forwarder.tell_cancelled(url, call_id, attempt, secret)
        if wrong is None:
            return
        log.warning("call %s is cancelled and %s/%s could not be told: %s", call_id, *node.key, wrong)
        with suppress(Unavailable):  # the log has it
            await note_not_told(self.journal, call_id, attempt, node.key, wrong)

    def tell(self, telling: Coroutine[Any, Any, None]) -> None:
        """Say something to somebody while calls go on."""
        task = asyncio.get_running_loop().create_task(telling)
        self.telling.add(task)
        task.add_done_callback(self.telling.discard)

    async def stop(self) -> None:
        if self.sharing is not None:
            await self.sharing.stop()
        if self.load in loads:
            loads.remove(self.load)
        if self.publisher is not None:
            written.remove(self.publisher.note)
            await self.publisher.stop()
        if heartbeats.read == self.journal.read:
            heartbeats.read = keyring.fetch = None
        await self.snapshot.stop()
        await self.forwarder.close()
        await self.following.stop()
        keyring.fetch = None  # it asks the journal
        await self.journal.stop()


def policy_from_settings() -> Policy:
    return Policy(
        default_route=settings.REACH_DEFAULT_ROUTE,
        max_retries=settings.REACH_MAX_RETRIES,
        retry_base_delay_ms=settings.REACH_RETRY_BASE_DELAY_MS,
        retry_total_ms=settings.REACH_RETRY_TOTAL_MS,
        retry_after_ms=settings.REACH_RETRY_AFTER_MS,
        max_timeout_ms=settings.REACH_MAX_TIMEOUT_MS,
        max_hops=settings.REACH_MAX_HOPS,
        intent_min_score=settings.REACH_INTENT_MIN_SCORE,
        near_limit=settings.REACH_NEAR_LIMIT,
        tier_ms={
            Tier.LIGHT: int(settings.REACH_TIER_LIGHT_S * 1000),
            Tier.MEDIUM: int(settings.REACH_TIER_MEDIUM_S * 1000),
            Tier.HEAVY: int(settings.REACH_TIER_HEAVY_S * 1000),
        },
    )


def breaker_rules(min_calls: int) -> BreakerRules:
    return BreakerRules(
        min_calls,
        window_s=settings.REACH_BREAKER_WINDOW_S,
        error_share=settings.REACH_BREAKER_ERROR_SHARE,
        open_s=settings.REACH_BREAKER_OPEN_S,
    )


async def start_parts(role: str, *, hears_due: bool = False) -> LiveParts:
    """Start journal, snapshot and client on the running loop; they reach for the database until it is there.

    `hears_due`: whether the journal listens for what is due (`receipts.journal.DUE`).
    """
    database = await asyncio.to_thread(partial(conninfo, "reach"))
    owner = uuid4()
    journal = journal_of(role, owner, PostgreSQL(database), hears_due=hears_due)
    snapshot = Snapshot(
        database,
        poll_s=settings.REACH_SNAPSHOT_POLL_S,
        retry_s=settings.REACH_DATABASE_RETRY_S,
        shown_at_most=settings.REACH_MAX_CANDIDATES_SHOWN,
        use_keys=keyring.replace,
    )
    session = pooled_session(
        connect_timeout_s=settings.REACH_CONNECT_TIMEOUT_S,
        keepalive_s=settings.REACH_NODE_KEEPALIVE_S,
        allowed=allowed_addresses(),
    )
    parts = put_together(owner, journal, snapshot, session, beside=loads)
    loads.append(parts.load)
    await journal.start()
    await snapshot.start()
    if role != "engine":  # its loop is not the one that requests come to
        keyring.fetch = partial(fetch_key, journal)
        heartbeats.read = journal.read
    parts.following.start()
    if settings.REDIS_URL or role != "engine":  # an in-memory layer wakes nobody on another loop
        parts.publisher = Publisher(
            get_channel_layer(),
            journal.read,
            interval_s=settings.REACH_LIVE_INTERVAL_S,
            calls_at_most=settings.REACH_LIVE_CALLS,
            retry_s=settings.REACH_DATABASE_RETRY_S,
        )
        parts.publisher.start()
        written.append(parts.publisher.note)
    if settings.REDIS_URL:
        from routing.sharing import Sharing, connected  # a tenth of a start, and most installations need no Redis

        parts.sharing = Sharing(
            partial(connected, settings.REDIS_URL),
            str(owner),
            parts.load,
            interval_s=settings.REACH_SHARING_INTERVAL_S,
            retry_s=settings.REACH_DATABASE_RETRY_S,
        )
        parts.sharing.start()
    return parts


def journal_of(role: str, owner: UUID, sessions: PostgreSQL, *, hears_due: bool = False) -> Journal:
    """The journal of a process, by the settings."""
    return Journal(
        sessions,
        owner,
        role=role,
        max_rows=settings.REACH_FLUSH_MAX_ROWS,
        retry_s=settings.REACH_DATABASE_RETRY_S,
        answer_s=settings.REACH_DATABASE_TIMEOUT_S,
        lease_s=settings.REACH_PROCESS_LEASE_S,
        key_ttl_s=settings.REACH_IDEMPOTENCY_TTL_S,
        hears_due=hears_due,
        writer_options=RELAXED_OPTIONS if settings.REACH_DURABILITY == "relaxed" else WRITER_OPTIONS,
    )


def put_together(
    owner: UUID, journal: Journal, snapshot: Snapshot, session: Session, *, beside: Sequence[NodeLoad] = ()
) -> LiveParts:
    """The parts of a process over its ways to database and nodes, by the settings. Starts nothing.

    `beside`: the loads of the other parts in this process.
    """
    forwarder = Forwarder(
        session,
        max_response_bytes=settings.REACH_MAX_RESPONSE_BYTES,
        lines_per_s=settings.REACH_STREAM_LINES_PER_S,
        trace_sample=settings.REACH_TRACE_SAMPLE,
    )
    load = NodeLoad(
        decay_s=settings.REACH_LATENCY_DECAY_S,
        suspicion_s=settings.REACH_SUSPICION_S,
        node_rules=breaker_rules(settings.REACH_BREAKER_NODE_MIN_CALLS),
        service_rules=breaker_rules(settings.REACH_BREAKER_MIN_CALLS),
        budget_rules=BudgetRules(
            settings.REACH_RETRY_BUDGET_SHARE, settings.REACH_RETRY_BUDGET_FLOOR, settings.REACH_RETRY_BUDGET_WINDOW_S
        ),
        beside=beside,
    )
    parts = LiveParts(
        owner,
        journal,
        snapshot,
        load,
        forwarder,
        policy_from_settings(),
        Following(journal, poll_s=settings.REACH_WAIT_POLL_S, answer_s=settings.REACH_DATABASE_TIMEOUT_S),
        Waiting(
            most=settings.REACH_MAX_WAITING_CLIENTS,
            most_of_key=settings.REACH_MAX_WAITING_CLIENTS_PER_KEY,
            retry_after_ms=settings.REACH_RETRY_AFTER_MS,
        ),
        settings.REACH_IDLE_TIMEOUT_S,
        settings.REACH_STREAM_RECEIPTS_PER_S,
        settings.REACH_CANCEL_TIMEOUT_S,
        Bounds(settings.REACH_MAX_IN_FLIGHT, settings.REACH_MAX_WAITING_ROWS, settings.REACH_MAX_BYTES_IN_FLIGHT),
        settings.REACH_MAX_MIRRORED,
        settings.REACH_BREAKER_TIMEOUT_S,
    )
    snapshot.when_loaded.append(load.heed)
    load.when_turned.append(parts.note_turn)
    return parts


async def fetch_key(journal: Journal, digest: str) -> Key | None:
    """A key made a moment ago, which the snapshot does not hold yet."""
    rows = await journal.read(find_key_sql, digest)
    return key_of_row(tuple(rows[0].values()))[1] if rows else None


current: LiveParts | None = None
"""The parts of the ASGI process, set by its lifespan."""


def parts() -> LiveParts:
    """The ASGI process's parts. Raises Unavailable while they are starting or stopping."""
    if current is None:
        raise Unavailable("the reach is starting or stopping")
    return current


def let_go() -> None:
    """Send those who only wait elsewhere, for the process stops: they come back with what they had last."""
    if current is not None:
        current.following.let_go()
