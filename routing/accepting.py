"""Asynchronous calls: accepted and on disk at once, placed by the engine of a worker as soon as a node can take them.

What a sync caller is told at once because it will not get better (403, 404, 409, 422) is told here too.
"""

from dataclasses import dataclass, replace
from uuid import UUID

from receipts.core.envelope import ASYNC_RANKS, CallEnvelope
from receipts.core.journey import Journey
from receipts.core.lifecycle import CallStatus
from receipts.errors import CallFailed, IdempotencyConflict
from receipts.journal import NOBODY, Existing
from receipts.reading import read_call
from receipts.rows import CallRow
from registry.log_context import enter_call
from routing import observing
from routing.core.patience import FOR_NOW, deadline_to_wait
from routing.core.plan import Attempt, Step, Stop
from routing.dispatch import (
    OpenCall,
    begin,
    call_row,
    decide,
    new_call,
    note_accepted,
    note_why,
    result_of,
)
from routing.live import LiveParts


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the caller is told: its call, or the one that stands for the same request already."""

    call_id: UUID
    trace_id: str
    replayed: bool = False


async def accept_async(envelope: CallEnvelope, parts: LiveParts, *, any_parent: bool = False) -> Accepted:
    """Make a call durable that nobody waits for.

    Raises CallFailed for what waiting would not help (recorded as rejected, or so before under the same key),
    UnknownParent, IdempotencyConflict, Unavailable (then nothing was accepted).
    """
    journey = await begin(envelope, parts, any_parent=any_parent)
    step = decide(journey, parts)
    keyed = envelope.idempotency_key is not None
    refused = step if isinstance(step, Stop) and step.ending.code not in FOR_NOW else None
    call = OpenCall(str(journey.call_id), str(parts.owner if refused else NOBODY))
    enter_call(call.call_id, journey.trace_id)
    if refused is not None:
        row, journey = new_call(call, journey, refused, keyed=keyed)
    else:
        journey = replace(journey, deadline_millis=deadline_of(journey, step, parts))
        row = waiting_row(call, journey, step, keyed=keyed)
    existing = await parts.journal.accept(row, call.taken())
    if existing is not None:
        return await standing(existing, envelope, parts)
    if refused is not None:
        rejected = result_of(journey, row.status, refused.ending, refused.why, None, duration_ms=0)
        observing.ended(journey.envelope, rejected)
        raise CallFailed(refused.ending, journey.call_id, journey.trace_id, replayed=False)
    return Accepted(journey.call_id, journey.trace_id)


def deadline_of(journey: Journey, step: Step, parts: LiveParts) -> int:
    if isinstance(step, Attempt):
        return step.deadline_millis
    return deadline_to_wait(journey, parts.tables, parts.policy)


def waiting_row(call: OpenCall, journey: Journey, step: Step, *, keyed: bool) -> CallRow:
    """The row of a call that waits for an engine. Where nobody can take it now, `routed` says why."""
    envelope = journey.envelope
    assert step.why is not None, "a call that has not been tried has no backoff"
    note_accepted(call, journey)
    if not isinstance(step, Attempt):
        note_why(call, step.why, None)
    row = call_row(call, journey, step.why, request_digest=envelope.request_digest, keyed=keyed)
    row.status = CallStatus.ACCEPTED
    row.async_rank, row.callback_url = ASYNC_RANKS[envelope.urgency], envelope.callback_url
    row.seq = len(call.receipts)
    return row


async def standing(existing: Existing, envelope: CallEnvelope, parts: LiveParts) -> Accepted:
    """The call that already stands for this request, whether it has ended or not.

    Raises IdempotencyConflict, and CallFailed where it was rejected: its caller was told so and asks again.
    """
    if existing.request_digest != envelope.request_digest:
        raise IdempotencyConflict(str(envelope.idempotency_key), existing.call_id)
    stored = await read_call(parts.journal, existing.call_id)
    if stored.status == CallStatus.REJECTED and stored.ending is not None:
        raise CallFailed(stored.ending, stored.call_id, stored.trace_id, replayed=True)
    return Accepted(stored.call_id, stored.trace_id, replayed=True)
