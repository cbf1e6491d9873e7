"""Reads of the hot path: a stored call, and the calls above one. Plain rows, no ORM."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from receipts.core.ending import Ending, ending_of
from receipts.core.journey import Ancestor
from receipts.errors import CallNotFound, UnknownParent
from receipts.journal import Journal
from registry.errors import Unavailable

SHOWN = (
    "id", "trace_id", "parent_call_id", "caller", "capability", "status", "route_id", "table_revision", "service_id",
    "node_id", "attempts", "accepted_at", "ended_at", "deadline", "output", "error", "labels", "idempotency_key",
    "session_id", "origin_caller", "mirror_of", "async_rank", "callback_url", "redispatch_of",
)  # fmt: skip
"""What a call's document is made of."""
RECEIPT_SHOWN = ("seq", "kind", "attempt", "service_id", "node_id", "at", "detail")

LINEAGE = """
WITH RECURSIVE up AS (
    SELECT id, parent_call_id, service_id, caller, capability, payload_digest, trace_id, origin_caller, depth, deadline,
        attempts, ended_at, 1 AS distance
    FROM calls WHERE id = %s
    UNION ALL
    SELECT c.id, c.parent_call_id, c.service_id, c.caller, c.capability, c.payload_digest, c.trace_id, c.origin_caller,
        c.depth, c.deadline, c.attempts, c.ended_at, up.distance + 1
    FROM calls c JOIN up ON c.id = up.parent_call_id WHERE up.distance < 64
)
SELECT * FROM up ORDER BY distance
"""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a child call inherits from its parent."""

    trace_id: str
    origin_caller: str
    depth: int
    deadline_millis: int
    attempts: int
    """The parent's, so far: the last of them is the one that made the child."""
    ancestors: tuple[Ancestor, ...]


async def find_lineage(journal: Journal, parent_call_id: UUID, *, caller: str, any_parent: bool) -> Lineage:
    """The chain above a new call.

    Raises UnknownParent unless the caller made the parent or works on it (or may use any).
    """
    rows = await journal.read(LINEAGE, parent_call_id)
    if not rows or not (any_parent or caller in (rows[0]["service_id"], rows[0]["caller"])):
        raise UnknownParent(f"parent_call_id {parent_call_id} names no call of yours")
    parent = rows[0]
    ancestors = tuple(
        Ancestor(row["id"], row["service_id"], row["capability"], row["payload_digest"])
        for row in rows
        if row["ended_at"] is None
    )
    return Lineage(
        parent["trace_id"],
        parent["origin_caller"],
        parent["depth"] + 1,
        millis(parent["deadline"]),
        parent["attempts"],
        ancestors,
    )


def millis(moment: datetime) -> int:
    """Epoch milliseconds."""
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call as its row tells."""

    call_id: UUID
    trace_id: str
    status: str
    route_id: str | None
    table_revision: int
    service_id: str | None
    node_id: str | None
    attempts: int
    accepted_at: datetime
    ended_at: datetime | None
    deadline: datetime
    ending: Ending | None

    @property
    def duration_ms(self) -> int:
        return millis(self.ended_at or self.accepted_at) - millis(self.accepted_at)


READ_CALL = (
    "SELECT id, trace_id, status, route_id, table_revision, service_id, node_id, attempts, accepted_at, ended_at,"
    " deadline, output, error FROM calls WHERE id = %s"
)


async def read_call(journal: Journal, call_id: UUID) -> StoredCall:
    """One call by id. Raises CallNotFound, Unavailable (which names the call: it was accepted)."""
    try:
        rows = await journal.read(READ_CALL, call_id)
    except Unavailable as exc:
        detail = "the reach's database is away: how the call goes on cannot be read; ask for it later"
        raise Unavailable(detail, call_id=str(call_id)) from exc
    if not rows:
        raise CallNotFound(f"no call {call_id}")
    return stored_call(rows[0])


def stored_call(row: dict[str, Any]) -> StoredCall:
    ended = row["ended_at"] is not None
    return StoredCall(
        row["id"],
        row["trace_id"],
        row["status"],
        row["route_id"],
        row["table_revision"],
        row["service_id"],
        row["node_id"],
        row["attempts"],
        row["accepted_at"],
        row["ended_at"],
        row["deadline"],
        ending_of(row["error"], row["output"]) if ended else None,
    )
