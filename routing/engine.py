"""The engine: an event loop in the worker that carries calls nobody waits for, with the same `dispatch`.

It takes asynchronous calls for which it has room, and calls whose process is gone; and it sends callbacks. A NOTIFY
makes it prompt; Celery's sweep makes it certain, and a look of its own where beat or broker is away.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import thread_time
from typing import Any
from uuid import UUID

import msgspec
import uvloop
from django.conf import settings
from django.db import OperationalError, connections

from receipts.core.ending import Ending
from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Ended, Journey, Outcome, Tried
from receipts.core.lifecycle import Kind
from receipts.core.recovery import Progress, Seen, Takeover, progress_of, takeover
from receipts.core.trace_context import ParentSpan
from receipts.errors import UnknownParent
from receipts.journal import end, keep_running
from receipts.reading import find_lineage, millis
from receipts.recovery import claim_forgotten, claim_orphans, seen_receipts
from receipts.waiting import are_waiting, give_back, is_any_waiting, take_due, what_is_due
from registry.clock import now_millis, now_ns
from registry.core.node import Health, Node, Offer
from registry.errors import Unavailable
from registry.log_context import enter_call
from registry.schemas import compile_schema
from registry.tasks import probe_due
from routing import observing
from routing.callbacks import CallbackSender
from routing.core.plan import Attempt, Why, after_fallback, latest_start_millis, max_retries
from routing.core.pool import Candidate
from routing.core.tables import Tables
from routing.dispatch import (
    OpenCall,
    Parked,
    Result,
    begin_attempt,
    close,
    close_at_last,
    dispatch,
    failure_document,
    go_on,
    note_fallback,
    reported_failure,
    reported_fallback,
    told_by_the_database,
    write,
)
from routing.errors import TakenOver
from routing.live import LiveParts, start_parts
from routing.mirroring import mirror
from routing.waiting_room import Left, Placed, WaitingRoom

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
TAKEN_AT_ONCE = 100
"""Calls that wait are taken in shards of so many at most."""
GATHER_S = 0.005
"""Notices that come within so long make one look."""
AGAIN_S = 1.0
"""Pause before what has found the database away is done again."""


class Engine:
    """Make it on the event loop of its parts, which owns it.

    `probe_nodes` looks at the nodes whose turn it is, without holding up the loop; `cpu_s` tells how much CPU the
    loop's thread has used.
    """

    def __init__(
        self, parts: LiveParts, *, probe_nodes: Callable[[], Coroutine[Any, Any, None]], cpu_s: Callable[[], float]
    ) -> None:
        self.parts, self.loop, self.probe_nodes = parts, asyncio.get_running_loop(), probe_nodes
        self.room = WaitingRoom(
            parts,
            places=settings.REACH_ENGINE_MAX_IN_FLIGHT,
            held_at_most=settings.REACH_ENGINE_HELD,
            held_of_kind=settings.REACH_ENGINE_HELD_PER_CAPABILITY,
            poll_s=settings.REACH_WAIT_POLL_S,
            cpu_s=cpu_s,
        )
        self.callbacks = CallbackSender(parts)
        self.due = asyncio.Event()
        self.tasks: dict[asyncio.Task[None], None] = {}
        """In the order in which they began."""
        self.loops: list[asyncio.Task[None]] = []
        self.given_back: list[tuple[str, int]] = []
        """Calls (id and epoch) that others may take, not written yet."""
        self.sending: dict[tuple[str, int], OpenCall] = {}
        """Calls (by id and epoch) whose attempts are made here."""
        self.carried: set[tuple[str, int]] = set()
        """Calls (by id and epoch) that have a task here. One that was claimed twice has two: the later one holds it."""
        self.has_doubts = False
        """A claim has got no answer: there may be calls that are ours and that nobody carries."""
        self.swept_at = 0.0
        self.is_stopping = False

    def start(self) -> None:
        """Begin to look for work."""
        self.parts.journal.when_due.append(self.notice)
        self.parts.snapshot.when_loaded += [self.probe_doubted, self.tables_moved]
        self.loops = [
            self.loop.create_task(keep_running(work, AGAIN_S), name=f"engine {work.__name__}")
            for work in (self.room.run, self.take_calls, self.callbacks.run, self.look_each_second)
        ]

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it on the loop, and hold it until it has ended."""
        task = self.loop.create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)

    # --- What is heard -----------------------------------------------------------------------------------------------

    def notice(self, payload: str) -> None:
        """Something is due: calls that wait, or callbacks."""
        if payload == "callbacks":
            self.callbacks.due.set()
        else:
            self.due.set()

    def tables_moved(self, _tables: Tables) -> None:
        """A node may have come for whom somebody waits."""
        self.room.moved.set()

    def probe_doubted(self, tables: Tables) -> None:
        """The tables have moved: where a node has just come or is suspected, look at it now, not at the next beat."""
        if any(node.health in (Health.STARTING, Health.SUSPECT) for node in tables.nodes.values()):
            self.keep(self.probe_nodes())

    # --- Taking calls ------------------------------------------------------------------------------------------------

    async def look_each_second(self) -> None:
        """The net behind NOTIFY; and where beat or broker is away, the engine sweeps by itself."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.loop.time() - self.swept_at > 2 * settings.REACH_SWEEP_INTERVAL_S:
                await self.sweep()
            with suppress(Unavailable):  # the next look tells
                if self.has_doubts:
                    await self.remember_forgotten()
                due = await what_is_due(self.parts.journal)
                if due["calls"] or self.given_back:
                    self.due.set()
                if due["callbacks"]:
                    self.callbacks.due.set()

    async def remember_forgotten(self) -> None:
        """Carry what a claim has made ours without our hearing of it. Raises Unavailable."""
        for row in await claim_forgotten(self.parts.journal, self.carried):
            self.keep(self.carry(row, take_over))
        self.has_doubts = False

    async def take_calls(self) -> None:
        """Hold as many of the calls that wait as there is room for, whenever some are due."""
        while True:
            await self.due.wait()
            await asyncio.sleep(GATHER_S)
            self.due.clear()
            try:
                while await self.take_some():
                    pass
            except Unavailable:
                self.has_doubts = True

    async def take_some(self) -> bool:
        """Take a shard of the calls that wait; whether more may. Raises Unavailable."""
        await self.give_turns()
        if self.parts.snapshot.tables is None:
            return False
        room = min(self.room.room(), TAKEN_AT_ONCE)
        rows = await take_due(
            self.parts.journal,
            rooms=self.room.rooms(),
            window=self.room.window,
            at_most=room,
            overdue=TAKEN_AT_ONCE,
        )
        for row in rows:
            self.keep(self.carry(row, go_on_waiting))
        await asyncio.sleep(0)  # they enter the room: what is left of it is known
        return len(rows) >= max(room, 1)

    async def give_turns(self) -> None:
        """Let go of calls that find no place while others of their capability wait to be looked at."""
        if stuck := self.room.stuck():
            kept_waiting = await self.kept_waiting(list(stuck))
            for kind, calls in stuck.items():
                if kind in kept_waiting:
                    self.room.let_go(calls)
            await asyncio.sleep(0)  # they note here that they were let go
        if self.given_back:
            given, self.given_back = self.given_back, []
            try:
                await give_back(self.parts.journal, given)
            except Unavailable:
                self.given_back += given
                raise

    async def kept_waiting(self, kinds: Collection[str]) -> Collection[str]:
        """Those of the capabilities whose calls keep others out of the room: of their kind, or any where it is full."""
        if self.room.is_crowded:
            return kinds if await is_any_waiting(self.parts.journal) else ()
        return await are_waiting(self.parts.journal, kinds)

    async def sweep(self) -> int:
        """Take over orphaned calls and carry them on; returns how many."""
        self.swept_at = self.loop.time()
        taken = 0
        while self.parts.snapshot.tables is not None and not self.is_stopping:
            try:
                rows = await claim_orphans(self.parts.journal, settings.REACH_SWEEP_BATCH)
            except Unavailable:
                self.has_doubts = True
                break
            for row in rows:
                self.keep(self.carry(row, take_over))
            taken += len(rows)
            if len(rows) < settings.REACH_SWEEP_BATCH:
                break
        return taken

    # --- Carrying them -----------------------------------------------------------------------------------------------

    def carry(self, row: dict[str, Any], begin: "Begin") -> Coroutine[Any, Any, None]:
        """Carry a call that is ours to its end, or to where it is given back."""
        self.carried.add((str(row["id"]), row["epoch"]))
        return self.carried_on(row, begin)

    async def carried_on(self, row: dict[str, Any], begin: "Begin") -> None:
        enter_call(str(row["id"]), row["trace_id"])
        call = OpenCall(str(row["id"]), str(self.parts.owner), epoch=row["epoch"], is_awaited=False)
        try:
            progress, journey = await self.remembered(row)
            size = len(row.pop("request"))  # it may be large and is held for long; the journey has all of it
            onward = await begin(row, progress, journey, call, self)
            while isinstance(onward, Parked):
                onward = await self.place(call, onward, size=size)
        except TakenOver:
            log.info("call %s is carried by somebody else by now", call.call_id)
            return
        except Unavailable:
            log.warning("call %s ends here as far as it is written: the database is away", call.call_id)
            return
        except Exception:  # the outermost loop of a call: it is taken from us when its deadline is over
            log.exception("call %s is carried no further", call.call_id)
            return
        finally:
            self.carried.discard((call.call_id, call.epoch))
        if onward is None:
            return
        if row["mirror_of"] is None:
            observing.ended(journey.envelope, onward)
        if begin is take_over:
            log.info("call %s recovered: %s", call.call_id, onward.ending.code or "succeeded")

    async def remembered(self, row: dict[str, Any]) -> tuple[Progress, Journey]:
        """What the row and its receipts tell; waits for a database that is away."""
        while True:
            try:
                is_fresh = row["async_rank"] is not None and not row["attempts"]
                progress = progress_of([] if is_fresh else await seen_receipts(self.parts.journal, row["id"]))
                return progress, await with_ancestors(journey_of(row, progress), self.parts)
            except Unavailable:
                await asyncio.sleep(AGAIN_S)

    async def place(self, call: OpenCall, parked: Parked, *, size: int) -> Result | Parked | None:
        """Wait for a place and make the next attempt; None: the call was given back."""
        placed = await self.room.place(parked, size=size)
        if placed is Left.GIVEN_BACK:
            self.given_back.append((call.call_id, call.epoch))
            self.due.set()
            return None
        if placed is Left.ENDED:
            return await told_by_the_database(call, self.parts)
        journey = parked.journey
        if not isinstance(placed, Placed):
            for fallback in placed.why.fallbacks:
                journey = note_fallback(call, journey, fallback)
            return await close_at_last(call, journey, placed, self.parts)
        self.sending[call.call_id, call.epoch] = call
        try:
            return await self.attempt(call, journey, placed.attempt)
        finally:
            del self.sending[call.call_id, call.epoch]
            self.room.leave(placed)

    async def attempt(self, call: OpenCall, journey: Journey, step: Attempt) -> Result | Parked:
        """Write the attempt, whose node is claimed, and make it."""
        for fallback in step.why.fallbacks:
            journey = note_fallback(call, journey, fallback)
        if not await begin_attempt(call, journey, step, self.parts):
            return await told_by_the_database(call, self.parts)
        is_first = not journey.attempts
        journey = replace(
            journey,
            idempotent=step.chosen.offer.idempotent,
            first_forwarded_at_millis=journey.first_forwarded_at_millis or now_millis(),
        )
        if is_first:
            self.parts.load.count_call(step.chosen.node.service_id)
            mirror(journey, step, self.parts)
        self.parts.under_way += 1
        try:
            return await dispatch(call, journey, step, self.parts)
        finally:
            self.parts.under_way -= 1

    # --- Stopping ----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Take nothing more, let attempts at work finish for a while, and leave the rest to others."""
        self.is_stopping = True
        await end(self.loops)
        self.room.close()
        await asyncio.sleep(0)
        with suppress(Unavailable):  # then they are found by our lease, which is given back or runs out
            await self.give_turns()
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.REACH_DRAIN_S):
                while any(not call.is_followed for call in self.sending.values()):
                    await asyncio.sleep(0.05)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.callbacks.stop()
        await self.parts.stop()


Begin = Callable[[dict[str, Any], Progress, Journey, OpenCall, Engine], Coroutine[Any, Any, Result | Parked | None]]
"""How the carrying of a call begins that is ours since a moment: its row, what the receipts tell, and our hold."""


def probe_in_thread() -> None:
    """`probe_due` outside of Celery, which would give the thread's database session back by itself."""
    try:
        probe_due()
    except OperationalError:
        log.warning("nodes wait for their probe: the database is away")
    finally:
        connections.close_all()


class EngineThread:
    """The engine of a worker: one event loop in a thread, with live parts of its own."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="reach engine", daemon=True)
        self.thread.start()
        self.engine: Engine = self.call(started_engine(), timeout_s=30)

    def call(self, work: Coroutine[Any, Any, Any], *, timeout_s: float) -> Any:
        """Run a coroutine on the loop and wait for it. Raises TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def stop(self) -> None:
        self.call(self.engine.stop(), timeout_s=settings.REACH_DRAIN_S + 15)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


async def started_engine() -> Engine:
    parts = await start_parts("engine", hears_due=True)
    engine = Engine(parts, probe_nodes=partial(asyncio.to_thread, probe_in_thread), cpu_s=thread_time)
    engine.start()
    return engine


running: EngineThread | None = None
starting = threading.Lock()


def running_engine() -> EngineThread:
    """The worker's engine, started by whoever needs it first."""
    global running
    with starting:
        if running is None:
            running = EngineThread()
        return running


def stop_engine() -> None:
    """Stop the worker's engine if it runs."""
    global running
    with starting:
        if running is not None:
            running.stop()
            running = None


# --- Taking a call over ----------------------------------------------------------------------------------------------


async def go_on_waiting(
    row: dict[str, Any], progress: Progress, journey: Journey, call: OpenCall, engine: Engine
) -> Result | Parked:
    """An asynchronous call that waited for an engine."""
    if not progress.failed:
        return Parked(journey)
    return await go_on_from(call, journey, engine)


async def take_over(
    row: dict[str, Any], progress: Progress, journey: Journey, call: OpenCall, engine: Engine
) -> Result | Parked:
    """A call whose process is gone (DESIGN §5)."""
    parts = engine.parts
    action = takeover(
        progress,
        idempotent=row["idempotent"],
        deadline_millis=millis(row["deadline"]),
        repeat_until_millis=repeat_until(journey, progress, row["route_id"], parts),
        now_millis=now_millis(),
    )
    call.note(Kind.RECOVERED, {"action": action, "epoch": row["epoch"]})
    why = Why(row["route_id"] or "auto", row["table_revision"], "recovery")
    if row["mirror_of"] is not None:
        end = Ending("upstream_error", "the process that carried this copy is gone", outcome_unknown=True)
        return await close(call, journey, end, why, (row["service_id"], row["node_id"]), row["attempts"], parts)
    match action:
        case Takeover.EXPIRE if journey.envelope.is_async and progress.open is None:
            return Parked(journey)  # it ends with what it is refused for
        case Takeover.EXPIRE:
            unknown = progress.open is not None
            end = Ending(
                "deadline_exceeded", "its deadline passed while no process carried it", outcome_unknown=unknown
            )
            node = (row["service_id"], row["node_id"]) if row["service_id"] else None
            return await close(call, journey, end, why, node, row["attempts"], parts)
        case Takeover.FOLLOW:
            assert progress.open is not None
            await write(call, parts)
            attempt = open_attempt(progress.open, row, why)
            parts.load.claim(attempt.chosen.node.key)
            parts.under_way += 1
            try:
                return await dispatch(call, journey, attempt, parts, send=False)
            finally:
                parts.under_way -= 1
        case Takeover.REPEAT:
            assert progress.open is not None
            outcome = Outcome(Ended.BROKEN, "the reach's process that had forwarded it is gone", ours=True)
            tried = tried_of(progress.open, row, outcome)
            call.note(Kind.ATTEMPT_FAILED, failure_document(outcome), attempt=tried.number, node=tried.node)
            began_ms = journey.first_forwarded_at_millis
            began_ns = now_ns() if began_ms is None else began_ms * 1_000_000
            observing.attempted(journey, open_attempt(progress.open, row, why), tried.number, outcome, began_ns)
            journey = journey.after(tried)
    if journey.envelope.is_async and not journey.attempts:
        written = await write(call, parts)
        return Parked(journey) if written else await told_by_the_database(call, parts)
    return await go_on_from(call, journey, engine)


def repeat_until(journey: Journey, progress: Progress, route_id: str | None, parts: LiveParts) -> int:
    """Epoch milliseconds until which another attempt may start, were the open one over."""
    if progress.open is None or journey.deadline_millis is None:
        return 0
    route = parts.tables.routes_by_id.get(route_id or "")
    if (progress.open.attempt or 1) > max_retries(journey.envelope, route, parts.policy):
        return 0
    return latest_start_millis(journey, route, parts.policy)


async def go_on_from(call: OpenCall, journey: Journey, engine: Engine) -> Result | Parked:
    """The next attempt after one that is over, or the end; an asynchronous call is parked, and placed in turn."""
    onward = await go_on(call, journey, engine.parts)
    if not isinstance(onward, tuple):
        return onward
    journey, attempt = onward
    engine.sending[call.call_id, call.epoch] = call
    engine.parts.under_way += 1
    try:
        return await dispatch(call, journey, attempt, engine.parts)
    finally:
        engine.parts.under_way -= 1
        del engine.sending[call.call_id, call.epoch]


async def with_ancestors(journey: Journey, parts: LiveParts) -> Journey:
    """The journey with the calls above it that are open: none of their services may get the same payload again."""
    parent = journey.envelope.parent_call_id
    if parent is None:
        return journey
    try:
        lineage = await find_lineage(parts.journal, parent, caller=journey.envelope.caller, any_parent=True)
    except UnknownParent:
        return journey  # its partition is gone
    return replace(journey, ancestors=lineage.ancestors)


def tried_of(seen: Seen, row: dict[str, Any], outcome: Outcome) -> Tried:
    node = (seen.service_id or "", seen.node_id or "")
    return Tried(seen.attempt or 1, node, row["route_id"] or "auto", outcome)


def open_attempt(seen: Seen, row: dict[str, Any], why: Why) -> Attempt:
    """The attempt that is out, as far as following it needs: its output is checked where its receipts come in."""
    anything = compile_schema(None)
    offer = Offer(row["capability"], anything, anything, idempotent=row["idempotent"])
    node = Node(seen.service_id or "", seen.node_id or "", address="")
    return Attempt(Candidate(node, offer), millis(row["deadline"]), why)


def journey_of(row: dict[str, Any], progress: Progress) -> Journey:
    """The journey that a call's row and receipts tell of."""
    journey = Journey(
        envelope_of(row),
        row["id"],
        row["trace_id"],
        row["origin_caller"],
        deadline_millis=millis(row["deadline"]),
        depth=row["depth"],
        tried=tuple(tried_of(seen, row, reported_failure(seen.detail or "{}")) for seen in progress.failed),
        idempotent=row["idempotent"],
        first_forwarded_at_millis=moment_millis(row["first_forwarded_at"]),
        reading=msgspec.json.decode(row["request"]).get("reading"),
    )
    for seen in progress.fallbacks:
        journey = after_fallback(journey, reported_fallback(seen.detail or "{}"))
    return journey


def moment_millis(moment: datetime | None) -> int | None:
    return None if moment is None else millis(moment)


def envelope_of(row: dict[str, Any]) -> CallEnvelope:
    """The envelope as it was accepted."""
    asked = msgspec.json.decode(row["request"])
    parent: UUID | None = row["parent_call_id"]
    return CallEnvelope(
        capability=row["capability"],
        payload=asked["payload"],
        caller=row["caller"],
        received_at_millis=millis(row["accepted_at"]),
        tags=frozenset(asked["tags"]),
        urgency=asked["urgency"],
        timeout_ms=asked["timeout_ms"],
        idempotency_key=row["idempotency_key"],
        trace_id=row["trace_id"],
        parent_call_id=parent,
        labels=row["labels"] or {},
        session_id=row["session_id"],
        context=asked["context"],
        max_retries=asked["max_retries"],
        retry_base_delay_ms=asked["retry_base_delay_ms"],
        intent=asked.get("intent"),
        parent_span=ParentSpan(**above) if (above := asked.get("parent_span")) else None,
        is_async=row["async_rank"] is not None,
        callback_url=row["callback_url"],
    )
