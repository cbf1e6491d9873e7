"""The loop: ask the plan, do what it says, tell it what happened. Read `submit` first, then `dispatch`.

Everything is written before it is done: the first attempt with the call itself, every further one by a change of the
open call, the end before the caller is told.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from receipts.core.ending import Ending
from receipts.core.envelope import UNREAD, CallEnvelope
from receipts.core.journey import Ended, Journey, Outcome, Tried
from receipts.core.lifecycle import CallStatus, Kind, ending
from receipts.core.trace_context import ParentSpan, attempt_span_id
from receipts.errors import IdempotencyConflict
from receipts.journal import Existing
from receipts.reading import Lineage, StoredCall, find_lineage, read_call
from receipts.rows import CallRow, MoveRow, ReceiptRow, json_of
from registry.clock import now_millis, now_ns
from registry.core.node import Offer
from registry.errors import Unavailable
from registry.log_context import enter_call
from routing import observing
from routing.core.intent import read_intent
from routing.core.patience import patience_millis, rest_ms
from routing.core.plan import (
    Attempt,
    Fallback,
    Step,
    Stop,
    Wait,
    Why,
    after_fallback,
    latest_start_millis,
    next_step,
    with_fallbacks,
)
from routing.core.pool import standing_refusal
from routing.core.reports import Report
from routing.errors import TakenOver
from routing.live import LiveParts
from routing.streaming import StreamedReceipts

END_GRACE_S = 2.0
"""Beyond its deadline a caller waits so long (s) for the end to be written."""
FREES_KEY = frozenset({"rate_limited", "no_available_node", "circuit_open"})
"""Codes that, before any attempt, leave the idempotency key free."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the caller is told."""

    call_id: UUID
    trace_id: str
    status: str
    ending: Ending
    service_id: str | None
    node_id: str | None
    route_id: str | None
    table_revision: int
    attempts: int
    duration_ms: int
    replayed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Parked:
    """An asynchronous call that rests, or waits for a node: whoever carries it has its place for another one."""

    journey: Journey
    not_before_millis: int = 0
    refused: Stop | None = None
    """What it was refused for last, if it was."""
    charged_to: str | None = None
    """The service whose retry budget its next attempt is charged to, and has not been yet."""


Begun = Callable[[Journey, Attempt, LiveParts], None]


@dataclass(slots=True)
class OpenCall:
    """This process's hold on an open call: its fence, and the number of the last write under it."""

    call_id: str
    owner: str
    epoch: int = 1
    step: int = 0
    receipts: list[ReceiptRow] = field(default_factory=list)
    is_awaited: bool = True
    """Whether somebody waits for its end here, whoever carries it there."""
    is_followed: bool = False
    """Its node tells by receipts how the attempt goes, so that anybody can follow it: no answer is lost with us."""

    def note(
        self, kind: str, detail: Any = None, *, attempt: int | None = None, node: tuple[str, str] | None = None
    ) -> None:
        """Add a receipt to what the next write takes along."""
        service_id, node_id = node or (None, None)
        self.receipts.append(
            ReceiptRow(
                self.call_id,
                len(self.receipts) + 1,
                kind,
                now_millis(),
                attempt,
                service_id,
                node_id,
                None if detail is None else json_of(detail).decode(),
            )
        )

    def taken(self) -> list[ReceiptRow]:
        noted, self.receipts = self.receipts, []
        return noted


async def submit(
    envelope: CallEnvelope, parts: LiveParts, *, any_parent: bool = False, begun: Begun | None = None
) -> Result:
    """Carry one envelope to a node that answers, or to the reason why none did. `begun` is told of a new call whose
    first attempt is on disk and about to leave.

    Raises UnknownParent, IdempotencyConflict, Unavailable (then nothing was accepted).
    """
    journey = await begin(envelope, parts, any_parent=any_parent)
    keyed = envelope.idempotency_key is not None
    step = decide(journey, parts)
    if isinstance(step, Wait):
        if keyed and (existing := await parts.journal.find_key(envelope.caller, envelope.idempotency_key)):
            return await join(existing, envelope, parts)
        step = await first_step(journey, step, parts)
    if keyed and isinstance(step, Stop) and step.ending.code in FREES_KEY:
        keyed = False
        if existing := await parts.journal.find_key(envelope.caller, envelope.idempotency_key):
            return await join(existing, envelope, parts)
    call = OpenCall(str(journey.call_id), str(parts.owner))
    enter_call(call.call_id, journey.trace_id)
    claimed = step.chosen if isinstance(step, Attempt) else None
    if claimed:
        parts.load.take(claimed)  # nothing is awaited between deciding and claiming
    try:
        row, journey = new_call(call, journey, step, keyed=keyed)
        existing = await parts.journal.accept(row, call.taken())
    except BaseException:
        if claimed:
            parts.load.give_back(claimed)
        raise
    if existing is not None:
        if claimed:
            parts.load.give_back(claimed)
        return await join(existing, envelope, parts)
    if isinstance(step, Stop):
        rejected = result_of(journey, row.status, step.ending, step.why, None, duration_ms=0)
        observing.ended(journey.envelope, rejected)
        return rejected
    parts.load.count_call(step.chosen.node.service_id)
    if begun is not None:
        begun(journey, step, parts)
    parts.under_way += 1
    try:
        result = await dispatch(call, journey, step, parts)
    except asyncio.CancelledError as exc:  # the drain is over: recovery carries the call on, its caller is told so
        raise Unavailable(
            "the reach is stopping; the call was accepted and goes on, ask for it later", call_id=call.call_id
        ) from exc
    finally:
        parts.under_way -= 1
    assert isinstance(result, Result), "a call that somebody waits for is never parked"
    observing.ended(journey.envelope, result)
    return result


async def begin(envelope: CallEnvelope, parts: LiveParts, *, any_parent: bool) -> Journey:
    """A journey with what is inherited from the parent, if there is one, and with its intent read."""
    call_id = parts.new_call_id()
    reading = None
    if envelope.intent is not None:
        found = read_intent(envelope, parts.tables, min_score=parts.policy.intent_min_score)
        reading = found.document(envelope.intent)
        envelope = replace(envelope, capability=found.capability or UNREAD)
    if envelope.parent_call_id is None:
        trace_id = envelope.trace_id or new_trace_id(parts.chance)
        return Journey(envelope, call_id, trace_id, envelope.caller, reading=reading)
    lineage = await find_lineage(parts.journal, envelope.parent_call_id, caller=envelope.caller, any_parent=any_parent)
    return Journey(
        below_parent(envelope, lineage),
        call_id,
        lineage.trace_id,
        lineage.origin_caller,
        parent_deadline_millis=lineage.deadline_millis,
        depth=lineage.depth,
        ancestors=lineage.ancestors,
        reading=reading,
    )


def below_parent(envelope: CallEnvelope, lineage: Lineage) -> CallEnvelope:
    """The envelope with the span it hangs below: what its `traceparent` names, else the parent's last attempt."""
    told = envelope.parent_span
    if told is not None and told.trace_id == lineage.trace_id:
        return envelope
    span_id = attempt_span_id(str(envelope.parent_call_id), lineage.attempts)
    return replace(envelope, parent_span=ParentSpan(lineage.trace_id, span_id))


def new_trace_id(chance: Random) -> str:
    """32 lower-case hex digits; a name, no secret."""
    return f"{chance.getrandbits(128) or 1:032x}"


async def first_step(journey: Journey, step: Step, parts: LiveParts) -> Attempt | Stop:
    """The first decision from `step` on that is no rest. A fallback rule's rest comes before the call is accepted: its
    caller waits, nothing was promised yet, and a call that finds nobody in the end leaves its idempotency key free.

    Raises Unavailable when the process stops meanwhile.
    """
    taken: tuple[Fallback, ...] = ()
    while isinstance(step, Wait):
        taken += step.fallbacks
        for fallback in step.fallbacks:
            journey = after_fallback(journey, fallback)
        parts.under_way += 1
        try:
            await asyncio.sleep(step.wait_ms / 1000)
        except asyncio.CancelledError as exc:
            raise Unavailable("the reach is stopping; the call was not accepted") from exc
        finally:
            parts.under_way -= 1
        step = decide(journey, parts)
    return with_fallbacks(taken, step)


def decide(journey: Journey, parts: LiveParts) -> Step:
    return next_step(
        journey, parts.tables, parts.load, parts.policy, now_millis=now_millis(), chance=parts.chance.random
    )


def new_call(call: OpenCall, journey: Journey, step: Attempt | Stop, *, keyed: bool) -> tuple[CallRow, Journey]:
    """The row of a new call with its first decision, and the journey that has made it."""
    asked = journey.envelope
    now = now_millis()
    if isinstance(step, Attempt):
        deadline = step.deadline_millis
        journey = replace(
            journey,
            idempotent=step.chosen.offer.idempotent,
            first_forwarded_at_millis=now,
            deadline_millis=deadline,
        )
    else:
        deadline = asked.received_at_millis + (asked.timeout_ms or 0)
        journey = replace(journey, deadline_millis=deadline)
    note_accepted(call, journey)
    for fallback in step.why.fallbacks:
        journey = note_fallback(call, journey, fallback)
    row = call_row(call, journey, step.why, request_digest=asked.request_digest, keyed=keyed)
    if isinstance(step, Attempt):
        note_attempt(call, step, 1)
        row.service_id, row.node_id = step.chosen.node.key
        row.attempts, row.idempotent, row.first_forwarded_ms = 1, journey.idempotent, now
    else:
        note_why(call, step.why, None)
        row.status = ending(step.ending.code, attempted=False)
        call.note(row.status, step.ending.document())
        row.ended_ms, row.error = now, json_of(step.ending.document()).decode()
    row.seq = len(call.receipts)
    return row, journey


def note_accepted(call: OpenCall, journey: Journey) -> None:
    envelope, deadline = journey.envelope, journey.deadline_millis
    call.note(
        Kind.ACCEPTED, {"caller": envelope.caller, "capability": envelope.capability, "deadline_millis": deadline}
    )


def call_row(call: OpenCall, journey: Journey, why: Why, *, request_digest: str, keyed: bool) -> CallRow:
    """The row of a new call whose deadline is known; what its first decision says is not in it yet."""
    envelope = journey.envelope
    return CallRow(
        id=call.call_id,
        trace_id=journey.trace_id,
        caller=envelope.caller,
        origin_caller=journey.origin_caller,
        capability=envelope.capability,
        status=CallStatus.RUNNING,
        table_revision=why.table_revision,
        accepted_ms=envelope.received_at_millis,
        deadline_ms=journey.deadline_millis or 0,
        request=stored_request(envelope, journey.reading),
        request_digest=request_digest,
        payload_digest=envelope.payload_digest,
        owner=call.owner,
        parent_call_id=str(envelope.parent_call_id) if envelope.parent_call_id else None,
        depth=journey.depth,
        route_id=why.route_id,
        labels=dict(envelope.labels) or None,
        idempotency_key=envelope.idempotency_key,
        keyed=keyed,
        session_id=envelope.session_id,
        mirror_of=None if journey.mirror_of is None else str(journey.mirror_of),
    )


async def dispatch(
    call: OpenCall, journey: Journey, attempt: Attempt, parts: LiveParts, *, send: bool = True
) -> Result | Parked:
    """The hot loop. `attempt` is on disk and its node claimed; every further one is, before it starts.

    Without `send` (recovery) the first attempt is out already: only receipts can tell how it goes.

    Raises TakenOver where nobody waits for its end here.
    """
    while True:
        node, offer = attempt.chosen.node, attempt.chosen.offer
        number = journey.attempts + 1
        started_ns = now_ns()
        try:
            outcome = await carry(call, journey, attempt, number, parts, send=send)
        finally:
            parts.load.release(node.key)
        if outcome is None:
            try:
                result = await told_elsewhere(call, node.key, number, parts)
            except TakenOver:
                parts.judge(node.key, None, started_ns)
                raise
            outcome = told_outcome(result.ending)
            parts.judge(node.key, None if result.ending.code == CallStatus.CANCELLED else outcome, started_ns)
            observing.attempted(journey, attempt, number, outcome, started_ns)
            return result
        parts.judge(node.key, outcome, started_ns)
        if outcome.unreached:
            parts.suspect(node.key, outcome.reason)
        outcome = checked(outcome, offer)
        observing.attempted(journey, attempt, number, outcome, started_ns)
        if outcome.ended is Ended.SUCCEEDED:
            return await close(call, journey, Ending(None, output=outcome.output), attempt.why, node.key, number, parts)
        journey = journey.after(Tried(number, node.key, attempt.why.route_id, outcome))
        if not outcome.recorded:
            call.note(Kind.ATTEMPT_FAILED, failure_document(outcome), attempt=number, node=node.key)
        onward = await go_on(call, journey, parts)
        if not isinstance(onward, tuple):
            return onward
        journey, attempt, send = *onward, True


def checked(outcome: Outcome, offer: Offer) -> Outcome:
    """The outcome, unless its output is not what the node has declared."""
    if outcome.ended is not Ended.SUCCEEDED or offer.output.accepts(outcome.output):
        return outcome
    errors = tuple(offer.output.errors(outcome.output, root="/output"))
    return Outcome(Ended.INVALID_OUTPUT, "its answer does not fit the output schema", errors=errors)


async def go_on(call: OpenCall, journey: Journey, parts: LiveParts) -> Result | Parked | tuple[Journey, Attempt]:
    """After an attempt in vain: the end, or the next attempt (rested for, on disk, its node claimed).

    An asynchronous call does not rest here, nor end where it may wait: it is parked.
    """
    step = decide(journey, parts)
    failed_at = retried_at(journey)
    if failed_at is not None and not isinstance(step, Stop):
        parts.load.count_retry(failed_at)  # nothing is awaited between deciding and counting
    if journey.envelope.is_async and not isinstance(step, Attempt):
        parked = park(call, journey, step, parts, chance=parts.chance.random())
        if parked is not None:
            written = await write(call, parts, due_ms=parked.not_before_millis)
            return parked if written else await told_by_the_database(call, parts)
    while isinstance(step, Wait):  # a retry's backoff, then perhaps a fallback rule's rest: each rule has one
        journey = note_rest(call, journey, step, parts)
        if not await write(call, parts, due_ms=now_millis() + step.wait_ms):
            return await told_by_the_database(call, parts)
        if await ends_meanwhile(call, parts, step.wait_ms / 1000):
            return await told_by_the_database(call, parts)
        journey = replace(journey, waited=journey.attempts)
        step = decide(journey, parts)
    if isinstance(step, Attempt):
        parts.load.take(step.chosen)  # nothing is awaited between deciding and claiming
    for fallback in step.why.fallbacks:
        journey = note_fallback(call, journey, fallback)
    if isinstance(step, Stop):
        return await close_at_last(call, journey, step, parts)
    if not await begin_attempt(call, journey, step, parts):
        return await told_by_the_database(call, parts)
    return replace(journey, idempotent=step.chosen.offer.idempotent), step


def note_rest(call: OpenCall, journey: Journey, rest: Wait, parts: LiveParts) -> Journey:
    """Note that the call rests before its next attempt, and the fallback rules that say so."""
    for fallback in rest.fallbacks:
        journey = note_fallback(call, journey, fallback)
    facts: dict[str, Any] = {"wait_ms": rest.wait_ms}
    if (failed_at := retried_at(journey)) is not None:
        facts["retry_budget"] = {"service_id": failed_at, "left": parts.load.retries_left(failed_at)}
    call.note(Kind.RETRY_SCHEDULED, facts, attempt=journey.attempts or None)
    return journey


def park(call: OpenCall, journey: Journey, step: Wait | Stop, parts: LiveParts, *, chance: float) -> Parked | None:
    """How an asynchronous call goes on that rests, or is refused for now, noted but not written; None: it ends."""
    now = now_millis()
    if isinstance(step, Wait):
        journey = note_rest(call, journey, step, parts)
        return Parked(replace(journey, waited=journey.attempts), now + step.wait_ms)
    wait_ms = rest_ms(step, journey, chance=chance)
    if wait_ms is None or now >= patience_millis(journey, parts.tables, parts.policy):
        return None
    facts = {"wait_ms": wait_ms, "refused": step.ending.code, "reason": step.ending.detail}
    call.note(Kind.RETRY_SCHEDULED, facts, attempt=journey.attempts or None)
    return Parked(replace(journey, waited=journey.attempts), now + wait_ms, step, retried_at(journey))


async def ends_meanwhile(call: OpenCall, parts: LiveParts, rest_s: float) -> bool:
    """Rest, unless the call is ended by somebody else: nobody is to wait for a retry that will not be."""
    moved = asyncio.Event()
    with parts.journal.following(call.call_id, moved.set), suppress(TimeoutError):
        async with asyncio.timeout(rest_s):
            while True:
                await moved.wait()
                moved.clear()
                with suppress(Unavailable):  # the next write tells
                    if (await read_call(parts.journal, UUID(call.call_id))).ending is not None:
                        return True
    return False


def retried_at(journey: Journey) -> str | None:
    """The service whose budget a further attempt is charged to, if it costs any: the one that has just failed."""
    last = journey.last
    return last.node[0] if last is not None and last.outcome.costs_budget else None


async def begin_attempt(call: OpenCall, journey: Journey, step: Attempt, parts: LiveParts) -> bool:
    """Write the attempt; its node is claimed. False: the call is no longer ours."""
    node = step.chosen.node
    number = journey.attempts + 1
    note_attempt(call, step, number)
    written = False
    try:
        written = await write(
            call,
            parts,
            status=CallStatus.RUNNING,
            attempts=number,
            service_id=node.service_id,
            node_id=node.node_id,
            route_id=step.why.route_id,
            table_revision=step.why.table_revision,
            idempotent=step.chosen.offer.idempotent,
            capability=journey.envelope.capability,
            first_forwarded_ms=now_millis(),
        )
        return written
    finally:
        if not written:
            parts.load.give_back(step.chosen)


def write(call: OpenCall, parts: LiveParts, *, give_up_at: float | None = None, **changes: Any) -> asyncio.Future[bool]:
    """Write what was noted and these changes under our fence. False: the call has ended or was taken over.

    This waits for as long as the database is away; from `give_up_at` (loop time) on it raises Unavailable instead, and
    the write is made when the database is back.
    """
    receipts = call.taken()
    call.step += 1
    row = MoveRow(call.call_id, len(receipts), call.owner, call.epoch, call.step, **changes)
    return parts.journal.move(row, receipts, give_up_at)


async def close(
    call: OpenCall,
    journey: Journey,
    end: Ending,
    why: Why,
    node: tuple[str, str] | None,
    attempts: int,
    parts: LiveParts,
) -> Result:
    """Write the terminal receipt and the call's row in one commit, then say how it ended."""
    now = now_millis()
    status = ending(end.code, attempted=attempts > 0 or journey.envelope.is_async)
    document = None if end.code is None else end.document()
    call.note(status, document, attempt=attempts, node=node)
    left_s = max(0, (journey.deadline_millis or 0) - now) / 1000
    written = await write(
        call,
        parts,
        give_up_at=asyncio.get_running_loop().time() + left_s + END_GRACE_S,
        status=status,
        ended_ms=now,
        output=json_of(end.output).decode() if end.code is None else None,
        error=None if document is None else json_of(document).decode(),
    )
    if not written:
        return await told_by_the_database(call, parts)
    duration_ms = now - journey.envelope.received_at_millis
    return result_of(journey, status, end, why, node, duration_ms=duration_ms, attempts=attempts)


async def close_at_last(call: OpenCall, journey: Journey, stop: Stop, parts: LiveParts) -> Result:
    """`close` a call for which nothing more is tried."""
    node = journey.last.node if journey.last else None
    return await close(call, journey, stop.ending, stop.why, node, journey.attempts, parts)


# --- One attempt -----------------------------------------------------------------------------------------------------


class LiveAttempt:
    """An attempt under way, as receipts from its node see it: they arm its idle timer or end it."""

    __slots__ = ("deadline_at", "idle_s", "loop", "outcome", "over", "scope", "silent_at")

    def __init__(self, scope: asyncio.Timeout, deadline_at: float, idle_s: float):
        self.loop = asyncio.get_running_loop()
        self.scope, self.deadline_at, self.idle_s = scope, deadline_at, idle_s
        self.silent_at: float | None = None
        self.over = False
        self.outcome: Outcome | None = None

    def hear(self) -> None:
        """A sign of life: from now on a silence of `idle_s` ends the attempt, the deadline still does."""
        self.silent_at = self.loop.time() + self.idle_s
        self.move_end(min(self.deadline_at, self.silent_at))

    def end(self, outcome: Outcome | None) -> None:
        """The node reported a failure (`outcome`), or the call has ended elsewhere (None)."""
        self.outcome, self.over = outcome, outcome is None
        self.move_end(self.loop.time())

    def move_end(self, when: float) -> None:
        with suppress(RuntimeError):  # the attempt is over: a look at the database outlived it
            self.scope.reschedule(when)

    def verdict(self) -> Outcome | None:
        """Why the time is up; None when the call has ended elsewhere."""
        if self.over or self.outcome:
            return self.outcome
        if self.silent_at is not None and self.silent_at < self.deadline_at:
            return Outcome(Ended.SILENT, f"fell silent for {self.idle_s:g} s")
        return Outcome(Ended.TIMED_OUT, "had not answered by the deadline")


async def carry(
    call: OpenCall, journey: Journey, attempt: Attempt, number: int, parts: LiveParts, *, send: bool = True
) -> Outcome | None:
    """One attempt from sending to its outcome; None when the call was ended by somebody else meanwhile.

    Without `send` (recovery) the envelope is out already and only receipts can tell.
    """
    node, now = attempt.chosen.node, now_millis()
    if send and (refusal := second_look(journey, attempt, parts, now_millis=now)):
        return Outcome(Ended.NOT_STARTED, f"the envelope was not sent: {refusal}")
    call.is_followed = not send
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline_at = started + ((journey.deadline_millis or 0) - now) / 1000
    refreshes: set[asyncio.Task[None]] = set()
    stream: StreamedReceipts | None = None
    try:
        async with asyncio.timeout_at(deadline_at) as scope:
            live = LiveAttempt(scope, deadline_at, parts.idle_timeout_s)

            def moved() -> None:
                task = loop.create_task(refresh(live, call, number, parts))
                refreshes.add(task)
                task.add_done_callback(refreshes.discard)

            def hear(told: Report | Outcome) -> None:
                nonlocal stream
                if stream is None:
                    stream = streamed_receipts(live, call, number, node.key, parts)
                if isinstance(told, Report):
                    live.hear()
                stream.take(told)

            with parts.journal.following(call.call_id, moved):
                if send:
                    secret = parts.tables.secrets.get(node.service_id)
                    outcome = await parts.forwarder.forward(journey, node, number, secret, hear)
                    if outcome.ended is not Ended.ACKNOWLEDGED:
                        if journey.mirror_of is None:
                            parts.load.observe(node.key, loop.time() - started)
                        return outcome
                    call.is_followed = True
                    call.note(Kind.ACKNOWLEDGED, attempt=number, node=node.key)
                    if not await write(call, parts):
                        return None
                await refresh(live, call, number, parts)  # what came before anybody followed
                while True:  # ended by receipts or by the time; the look each second is a net behind notifications
                    await asyncio.sleep(1)
                    await refresh(live, call, number, parts, heard=False)
    except TimeoutError:
        if journey.mirror_of is None:
            parts.load.observe(node.key, loop.time() - started)
        verdict = live.verdict()
        if verdict is not None and verdict.ended is Ended.TIMED_OUT and not send:
            return replace(verdict, ours=True)  # its answer may have come to the process that is gone
        return verdict
    finally:
        if stream is not None:
            stream.over = True
    raise AssertionError("an attempt ends by an outcome or by time")


def streamed_receipts(
    live: LiveAttempt, call: OpenCall, number: int, node: tuple[str, str], parts: LiveParts
) -> StreamedReceipts:
    def note(kind: str, detail: Any = None) -> None:
        call.note(kind, detail, attempt=number, node=node)

    return StreamedReceipts(note, lambda: write(call, parts), lambda: live.end(None), per_s=parts.stream_receipts_per_s)


def second_look(journey: Journey, attempt: Attempt, parts: LiveParts, *, now_millis: int) -> str | None:
    """After the flush, which may have waited for the database: the time may be up, the tables may have moved."""
    key = attempt.chosen.node.key
    route = parts.tables.routes_by_id.get(attempt.why.route_id)
    if now_millis >= attempt.deadline_millis or now_millis > latest_start_millis(journey, route, parts.policy):
        return "the time to start it was over when it was written"
    if parts.load.is_open(key):
        return "its breaker has opened"
    node = parts.tables.nodes.get(key)
    if node is attempt.chosen.node:
        return None
    return "it is no longer registered" if node is None else standing_refusal(node, None, frozenset())


async def refresh(live: LiveAttempt, call: OpenCall, number: int, parts: LiveParts, *, heard: bool = True) -> None:
    """Read what was written to the call and what it means for the attempt; `heard`: its node has just shown life."""
    try:
        rows = await parts.journal.read(REFRESH, number, number, UUID(call.call_id))
    except Unavailable:
        return  # the next look tells
    row = rows[0]
    if row["ended_at"] is not None or str(row["owner"]) != call.owner or row["epoch"] != call.epoch:
        live.end(None)
    elif row["failure"] is not None:
        live.end(reported_failure(row["failure"]))
    elif row["running"] and heard:
        live.hear()


REFRESH = """
SELECT c.ended_at, c.owner, c.epoch,
    (SELECT detail FROM receipts r WHERE r.call_id = c.id AND r.attempt = %s AND r.kind = 'attempt_failed'
     ORDER BY seq LIMIT 1) AS failure,
    EXISTS (SELECT FROM receipts r WHERE r.call_id = c.id AND r.attempt = %s AND r.kind = 'running') AS running
FROM calls c WHERE c.id = %s
"""


def reported_failure(detail: str) -> Outcome:
    """The Outcome behind an `attempt_failed` receipt."""
    facts = msgspec.json.decode(detail)
    return Outcome(
        Ended(facts["ended"]),
        facts.get("reason", ""),
        error=facts.get("upstream"),
        retryable=facts.get("retryable"),
        http_status=facts.get("http_status"),
        errors=tuple(facts.get("errors", ())),
        recorded=True,
        unreached=facts.get("unreached", False),
        ours=facts.get("ours", False),
    )


# --- Receipts' details -----------------------------------------------------------------------------------------------


def note_attempt(call: OpenCall, step: Attempt, number: int) -> None:
    note_why(call, step.why, step.chosen.node.key)
    node = step.chosen.node
    call.note(Kind.FORWARDED, {"address": node.address}, attempt=number, node=node.key)


def note_why(call: OpenCall, why: Why, chosen: tuple[str, str] | None) -> None:
    call.note(Kind.ROUTED, why_document(why, chosen), node=chosen)


def why_document(why: Why, chosen: tuple[str, str] | None) -> dict[str, Any]:
    """The reasons of a decision, as `routed` keeps them and `explain` shows them."""
    facts: dict[str, Any] = {
        "table_revision": why.table_revision,
        "route_id": why.route_id,
        "strategy": why.strategy,
        "candidates": why.candidates,
        "left_out": why.left_out,
        "chosen": None if chosen is None else {"service_id": chosen[0], "node_id": chosen[1]},
    }
    if why.notes:
        facts["notes"] = why.notes
    if why.reading is not None:
        facts["intent"] = why.reading
    return facts


def note_fallback(call: OpenCall, journey: Journey, fallback: Fallback) -> Journey:
    call.note(Kind.FALLBACK, fallback_document(fallback))
    return after_fallback(journey, fallback)


def fallback_document(fallback: Fallback) -> dict[str, Any]:
    """What a `fallback` receipt says; `reported_fallback` reads it back."""
    return {name: value for name, value in asdict(fallback).items() if value is not None}


def reported_fallback(detail: str) -> Fallback:
    """The fallback rule that a `fallback` receipt tells of."""
    return msgspec.json.decode(detail, type=Fallback)


def failure_document(outcome: Outcome) -> dict[str, Any]:
    """What an `attempt_failed` receipt says; `reported_failure` reads back all that decides about a further attempt."""
    facts: dict[str, Any] = {"ended": outcome.ended, "reason": outcome.reason}
    if outcome.http_status is not None:
        facts["http_status"] = outcome.http_status
    if outcome.unreached:
        facts["unreached"] = True
    if outcome.ours:
        facts["ours"] = True
    if outcome.error is not None:
        facts["upstream"] = outcome.error
    if outcome.retryable is not None:
        facts["retryable"] = outcome.retryable
    if outcome.errors:
        facts["errors"] = list(outcome.errors)
    return facts


def stored_request(envelope: CallEnvelope, reading: Mapping[str, Any] | None = None) -> str:
    """The envelope as JSON, enough to dispatch it again; with how its intent was read."""
    return json_of(
        {
            "payload": envelope.payload,
            "tags": sorted(envelope.tags),
            "urgency": envelope.urgency,
            "timeout_ms": envelope.timeout_ms,
            "context": envelope.context,
            "max_retries": envelope.max_retries,
            "retry_base_delay_ms": envelope.retry_base_delay_ms,
            "parent_span": envelope.parent_span,
            "intent": envelope.intent,
            "reading": reading,
        }
    ).decode()


# --- Results ---------------------------------------------------------------------------------------------------------


def result_of(
    journey: Journey,
    status: str,
    end: Ending,
    why: Why,
    node: tuple[str, str] | None,
    *,
    duration_ms: int,
    attempts: int = 0,
) -> Result:
    service_id, node_id = node or (None, None)
    return Result(
        journey.call_id,
        journey.trace_id,
        status,
        end,
        service_id,
        node_id,
        why.route_id,
        why.table_revision,
        attempts,
        duration_ms,
    )


def stored_result(call: StoredCall, *, replayed: bool) -> Result:
    assert call.ending is not None
    return Result(
        call.call_id,
        call.trace_id,
        call.status,
        call.ending,
        call.service_id,
        call.node_id,
        call.route_id,
        call.table_revision,
        call.attempts,
        call.duration_ms,
        replayed,
    )


async def told_by_the_database(call: OpenCall, parts: LiveParts) -> Result:
    """The call was ended (or taken over) by somebody else: wait for its end and tell that.

    Raises TakenOver where nobody waits for an end that has not come: whoever carries it needs none of what we hold.
    """
    if not call.is_awaited:
        stored = await read_call(parts.journal, UUID(call.call_id))
        if stored.ending is None:
            raise TakenOver(f"call {call.call_id} is carried by somebody else")
        return stored_result(stored, replayed=False)
    return stored_result(await ended_call(UUID(call.call_id), parts), replayed=False)


async def told_elsewhere(call: OpenCall, node: tuple[str, str], number: int, parts: LiveParts) -> Result:
    """`told_by_the_database` while an attempt was out: where the call was cancelled, its node hears of it."""
    result = await told_by_the_database(call, parts)
    if result.ending.code == CallStatus.CANCELLED:
        parts.tell_cancelled(node, call.call_id, number)
    return result


def told_outcome(end: Ending) -> Outcome:
    """How the last attempt went, as far as the end of its call tells."""
    if end.code is None:
        return Outcome(Ended.SUCCEEDED)
    return Outcome(Ended.TIMED_OUT if end.code == "deadline_exceeded" else Ended.FAILED, end.detail)


async def join(existing: Existing, envelope: CallEnvelope, parts: LiveParts) -> Result:
    """The call that already stands for this request: its stored answer, or its end when that comes."""
    if existing.request_digest != envelope.request_digest:
        raise IdempotencyConflict(str(envelope.idempotency_key), existing.call_id)
    return stored_result(await ended_call(existing.call_id, parts), replayed=True)


async def ended_call(call_id: UUID, parts: LiveParts) -> StoredCall:
    """Wait for a call's end, whoever carries it."""
    stored = await read_call(parts.journal, call_id)
    while stored.ending is None:
        with parts.following.call(call_id, end_only=True) as follower:
            while not follower.followed.ended:
                await follower.stirs()
        stored = await read_call(parts.journal, call_id)
    return stored
