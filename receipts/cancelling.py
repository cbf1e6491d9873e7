"""Ending a call because its result is not wanted any more, whoever carries it.

The end is written here, in the words of the journal's own; the carrier is told by NOTIFY, lets go, and tells the node.
"""

from typing import Any
from uuid import UUID

from django.db import connection, transaction

from receipts.core.ending import Ending
from receipts.errors import CallEnded, CallNotFound
from receipts.journal import Journal
from receipts.rows import json_of
from registry.audit import audit
from registry.clock import now

CANCEL = """
WITH ended AS (
    UPDATE calls SET status = 'cancelled', ended_at = %(at)s, seq = seq + 1, due_at = NULL, error = %(error)s
    WHERE id = %(id)s AND ended_at IS NULL
    RETURNING id, seq, attempts, service_id, node_id, owner, watchers
), written AS (
    INSERT INTO receipts (call_id, seq, kind, attempt, service_id, node_id, at, detail)
    SELECT id, seq, 'cancelled', nullif(attempts, 0), service_id, node_id, %(at)s, %(error)s FROM ended
), told AS (
    SELECT pg_notify('reach_' || replace(process::text, '-', ''), ended.id::text)
    FROM ended, unnest(array_append(watchers, owner)) AS process
)
SELECT ended.id, (SELECT count(*) FROM told) FROM ended
"""


def cancel_call(call_id: UUID, *, by: str, audited: bool) -> None:
    """End an open call, and leave an audit row where an operator does it. Raises CallNotFound, CallEnded."""
    error = json_of(Ending("cancelled", f"cancelled by {by}").document()).decode()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(CANCEL, {"id": call_id, "at": now(), "error": error})
        if cursor.fetchone() is None:
            cursor.execute("SELECT status FROM calls WHERE id = %s", [call_id])
            if (row := cursor.fetchone()) is None:
                raise CallNotFound(f"no call {call_id}")
            raise CallEnded(f"the call has ended already: {row[0]}", call_id)
        if audited:
            audit(by, "cancel call", str(call_id))


NOT_TOLD = """
WITH counted AS (
    UPDATE calls SET seq = seq + 1 WHERE id = %s RETURNING id, seq
)
INSERT INTO receipts (call_id, seq, kind, attempt, service_id, node_id, at, detail)
SELECT id, seq, 'late_result', %s, %s, %s, now(), %s FROM counted RETURNING seq
"""


async def note_not_told(journal: Journal, call_id: str, attempt: int, node: tuple[str, str], reason: str) -> None:
    """Keep that the node of a cancelled call could not be told, so that people see that it may work on.

    It comes after the end and changes nothing, so it is a `late_result`. Raises Unavailable.
    """
    facts: dict[str, Any] = {"node_told": False, "reason": reason}
    await journal.read(NOT_TOLD, UUID(call_id), attempt, *node, json_of(facts).decode())
