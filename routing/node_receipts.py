"""Receipts that the executing node posts: checked against what is known of the call, written, and passed on.

A `succeeded` ends the call here, whichever process carries it; a `failed` ends the attempt and leaves the rest to the
carrier, who is told. So a result also arrives when the process that forwarded the envelope is gone.
"""

from typing import Any
from uuid import UUID

from receipts.core.journey import Ended, Outcome
from receipts.core.lifecycle import CallStatus, Kind
from receipts.errors import CallNotFound, ReceiptRefused
from receipts.rows import MoveRow, ReceiptRow, json_of
from registry.auth import Key
from registry.clock import now_millis
from registry.errors import Forbidden
from registry.log_context import enter_call
from registry.schemas import compile_schema
from routing.core.reports import PostedReceipt, reported_outcome, running_detail
from routing.dispatch import failure_document
from routing.live import LiveParts

LATE_RESULTS_KEPT = 8
"""Of one call: a node that goes on contradicting must not fill the table."""

ATTEMPT_OF = """
SELECT c.trace_id, c.status, c.seq, c.attempts, c.owner, c.ended_at, c.capability, c.output, r.service_id, r.node_id,
    (SELECT json_agg(json_build_array(t.kind, t.detail) ORDER BY t.seq) FROM receipts t
     WHERE t.call_id = c.id AND t.attempt = %s AND t.kind IN
        ('running', 'attempt_failed', 'succeeded', 'failed', 'late_result')) AS known
FROM calls c LEFT JOIN receipts r ON r.call_id = c.id AND r.attempt = %s AND r.kind = 'forwarded'
WHERE c.id = %s
"""


async def take_receipt(call_id: UUID, posted: PostedReceipt, key: Key, parts: LiveParts) -> str:
    """Write a node's receipt; the call's status after it.

    A write that finds the call moved on since it was read changes nothing and is judged anew, so that of the same
    receipt delivered twice at once one is the repeat.
    Raises CallNotFound, Forbidden (not the executing node's key), ReceiptRefused (kept as `late_result` at most).
    """
    while True:
        rows = await parts.journal.read(ATTEMPT_OF, posted.attempt, posted.attempt, call_id)
        if not rows:
            raise CallNotFound(f"no call {call_id}")
        row = rows[0]
        enter_call(str(call_id), row["trace_id"])
        if row["service_id"] is None:
            raise ReceiptRefused(f"attempt {posted.attempt} was never made", call_id)
        if "operate" not in key.scopes and key.service_id != row["service_id"]:
            raise Forbidden(f"attempt {posted.attempt} is not at work in {key.caller}")
        known = [(kind, detail) for kind, detail in row["known"] or ()]
        document = receipt_document(posted, row, parts)
        current = row["ended_at"] is None and row["attempts"] == posted.attempt
        if repeats(document, known, posted, row, current=current):
            if current:
                await pass_on(call_id, posted, row, parts, receipts=[])
            return row["status"]
        already_failed = any(kind == Kind.ATTEMPT_FAILED for kind, _detail in known)
        if current and not already_failed:
            if await pass_on(call_id, posted, row, parts, receipts=[document]):
                return CallStatus.SUCCEEDED if document[0] == Kind.SUCCEEDED else CallStatus.RUNNING
        elif await keep_late_result(call_id, posted, known, row, parts):
            raise ReceiptRefused(f"attempt {posted.attempt} is over; the receipt changes nothing", call_id)


Document = tuple[str, str | None]
"""A receipt's kind and its detail as JSON."""


def receipt_document(posted: PostedReceipt, row: dict[str, Any], parts: LiveParts) -> Document:
    """The receipt as it will stand. An output that its declared schema refuses is a failed attempt."""
    if posted.kind == "running":
        told = running_detail(posted)
        return Kind.RUNNING, json_of(told).decode() if told else None
    if posted.kind == "failed":
        return Kind.ATTEMPT_FAILED, json_of(failure_document(reported_outcome(posted))).decode()
    node = parts.tables.nodes.get((row["service_id"], row["node_id"]))
    offer = node.offers.get(row["capability"]) if node is not None else None
    schema = offer.output if offer is not None else compile_schema(None)
    if schema.accepts(posted.output):
        return Kind.SUCCEEDED, None
    errors = tuple(schema.errors(posted.output, root="/output"))
    outcome = Outcome(Ended.INVALID_OUTPUT, "its result does not fit the output schema", errors=errors)
    return Kind.ATTEMPT_FAILED, json_of(failure_document(outcome)).decode()


def repeats(
    document: Document,
    known: list[Document],
    posted: PostedReceipt,
    row: dict[str, Any],
    *,
    current: bool,
) -> bool:
    """Whether this very receipt is there already: the last word of a running attempt, any word of an ended one."""
    kind, _detail = document
    if kind == Kind.RUNNING:
        return current and known[-1:] == [document]
    if kind == Kind.SUCCEEDED:
        return document in known and row["output"] == json_of(posted.output).decode()
    return document in known


async def pass_on(
    call_id: UUID, posted: PostedReceipt, row: dict[str, Any], parts: LiveParts, *, receipts: list[Document]
) -> bool:
    """Write to the call as it was read, and tell its carrier. False: it has moved on since."""
    now = now_millis()
    move = MoveRow(str(call_id), len(receipts), fence_attempt=posted.attempt, status=CallStatus.RUNNING)
    if receipts:
        move.fence_seq = row["seq"]
    if receipts and receipts[0][0] == Kind.SUCCEEDED:
        move.status, move.ended_ms, move.output = CallStatus.SUCCEEDED, now, json_of(posted.output).decode()
    move.tell_owner = row["owner"] != parts.owner
    written = await parts.journal.move(move, receipt_rows(call_id, posted, row, receipts, now))
    parts.journal.wake(str(call_id))
    return written


def receipt_rows(
    call_id: UUID, posted: PostedReceipt, row: dict[str, Any], receipts: list[Document], now: int
) -> list[ReceiptRow]:
    return [
        ReceiptRow(str(call_id), n, kind, now, posted.attempt, row["service_id"], row["node_id"], detail)
        for n, (kind, detail) in enumerate(receipts, start=1)
    ]


KEEP_LATE = """
WITH counted AS (
    UPDATE calls SET seq = seq + 1 WHERE id = %s AND seq = %s RETURNING id, seq
)
INSERT INTO receipts (call_id, seq, kind, attempt, service_id, node_id, at, detail)
SELECT id, seq, 'late_result', %s, %s, %s, now(), %s FROM counted RETURNING seq
"""


async def keep_late_result(
    call_id: UUID,
    posted: PostedReceipt,
    known: list[Document],
    row: dict[str, Any],
    parts: LiveParts,
) -> bool:
    """Keep what came too late, once; it changes nothing else. False: the call has moved on since it was read."""
    late = [detail for kind, detail in known if kind == Kind.LATE_RESULT]
    said: dict[str, Any] = {"kind": posted.kind}
    if posted.kind == "succeeded":
        said["output"] = posted.output
    if posted.error is not None:
        said["error"] = posted.error
    detail = json_of(said).decode()
    if posted.kind == "running" or detail in late or len(late) >= LATE_RESULTS_KEPT:
        return True
    node = row["service_id"], row["node_id"]
    return bool(await parts.journal.read(KEEP_LATE, call_id, row["seq"], posted.attempt, *node, detail))
