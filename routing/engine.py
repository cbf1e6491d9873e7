"""The engine: an event loop in the worker that carries calls nobody waits for, with the same `dispatch`.

A Celery task only hands over; it never sits on a call.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from datetime import datetime
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
from receipts.reading import millis
from receipts.recovery import claim_orphans, seen_receipts
from registry.clock import now_millis, now_ns
from registry.core.node import Health, Node, Offer
from registry.errors import Unavailable
from registry.log_context import enter_call
from registry.schemas import compile_schema
from registry.tasks import probe_due
from routing import observing
from routing.core.plan import Attempt, Why, after_fallback
from routing.core.pool import Candidate
from routing.core.tables import Tables
from routing.dispatch import (
    OpenCall,
    Result,
    close,
    dispatch,
    failure_document,
    go_on,
    reported_failure,
    reported_fallback,
    write,
)
from routing.live import LiveParts, start_parts

log = logging.getLogger(__name__)


class Engine:
    """One event loop in a thread of the worker, with live parts of its own."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="reach engine", daemon=True)
        self.thread.start()
        self.parts: LiveParts = self.call(start_parts("engine"), timeout_s=30)
        self.parts.snapshot.when_loaded.append(self.probe_doubted)
        self.tasks: set[asyncio.Task[None]] = set()

    def call(self, work: Coroutine[Any, Any, Any], *, timeout_s: float) -> Any:
        """Run a short coroutine on the loop and wait for it. Raises TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def probe_doubted(self, tables: Tables) -> None:
        """The tables have moved: where a node has just come or is suspected, look at it now, not at the next beat."""
        if any(node.health in (Health.STARTING, Health.SUSPECT) for node in tables.nodes.values()):
            self.keep(asyncio.to_thread(probe_in_thread))

    async def sweep(self) -> int:
        """Take over orphaned calls and carry them on; returns how many."""
        try:
            rows = await claim_orphans(self.parts.journal, settings.REACH_SWEEP_BATCH)
        except Unavailable:
            return 0
        for row in rows:
            self.keep(self.carry_on(row))
        return len(rows)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it on the loop, and hold it until it has ended."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def carry_on(self, row: dict[str, Any]) -> None:
        self.parts.under_way += 1
        enter_call(str(row["id"]), row["trace_id"])
        try:
            result = await resume(row, self.parts)
            if row["mirror_of"] is None:
                observing.ended(envelope_of(row), result)
            log.info("call %s recovered: %s", row["id"], result.ending.code or "succeeded")
        except Unavailable:
            log.warning("call %s could not be recovered now: the database is away", row["id"])
        finally:
            self.parts.under_way -= 1

    def stop(self) -> None:
        """Leave what is open to the next sweep and end the loop."""
        self.call(self.end(), timeout_s=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.parts.stop()


def probe_in_thread() -> None:
    """`probe_due` outside of Celery, which would give the thread's database session back by itself."""
    try:
        probe_due()
    except OperationalError:
        log.warning("nodes wait for their probe: the database is away")
    finally:
        connections.close_all()


engine: Engine | None = None
starting = threading.Lock()


def running_engine() -> Engine:
    """The worker's engine, started by the first task that needs it."""
    global engine
    with starting:
        if engine is None:
            engine = Engine()
        return engine


def stop_engine() -> None:
    """Stop the worker's engine if it runs."""
    global engine
    with starting:
        if engine is not None:
            engine.stop()
            engine = None


# --- Taking a call over ----------------------------------------------------------------------------------------------


async def resume(row: dict[str, Any], parts: LiveParts) -> Result:
    """Carry an orphaned call, claimed by us, to its end."""
    progress = progress_of(await seen_receipts(parts.journal, row["id"]))
    call = OpenCall(str(row["id"]), str(parts.owner), epoch=row["epoch"])
    journey = journey_of(row, progress)
    action = takeover(
        progress, idempotent=row["idempotent"], deadline_millis=millis(row["deadline"]), now_millis=now_millis()
    )
    call.note(Kind.RECOVERED, {"action": action, "epoch": row["epoch"]})
    why = Why(row["route_id"] or "auto", row["table_revision"], "recovery")
    if row["mirror_of"] is not None:
        end = Ending("upstream_error", "the process that carried this copy is gone", outcome_unknown=True)
        return await close(call, journey, end, why, (row["service_id"], row["node_id"]), row["attempts"], parts)
    match action:
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
            return await dispatch(call, journey, attempt, parts, send=False)
        case Takeover.REPEAT:
            assert progress.open is not None
            outcome = Outcome(Ended.BROKEN, "the reach's process that had forwarded it is gone", ours=True)
            tried = tried_of(progress.open, row, outcome)
            call.note(Kind.ATTEMPT_FAILED, failure_document(outcome), attempt=tried.number, node=tried.node)
            began_ms = journey.first_forwarded_at_millis
            began_ns = now_ns() if began_ms is None else began_ms * 1_000_000
            observing.attempted(journey, open_attempt(progress.open, row, why), tried.number, outcome, began_ns)
            journey = journey.after(tried)
    onward = await go_on(call, journey, parts)
    if isinstance(onward, Result):
        return onward
    journey, next_attempt = onward
    return await dispatch(call, journey, next_attempt, parts)


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
    )
