"""Calls whose process is gone: claimed under a new fence for whoever carries on."""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db import connection

from receipts.core.recovery import Seen
from receipts.journal import NOBODY, Journal

# A call far past its deadline is taken over from the living too: whatever went wrong there, every call ends.
# A process may take over only when its own lease has been held for longer than any lease lasts: after an absence of
# the database everybody's lease has run out, and the living must have the time to renew theirs.
OVERDUE_S = 10.0
# What waits for an engine (receipts.waiting) has no owner who could be gone.
CLAIM = """
UPDATE calls SET owner = %s, epoch = epoch + 1, step = 0 WHERE (id) IN (
    SELECT c.id FROM calls c
    WHERE c.ended_at IS NULL
        AND (c.deadline < now() - make_interval(secs => %s) OR c.owner <> %s AND NOT EXISTS (
            SELECT FROM process_leases p WHERE p.owner = c.owner AND p.lease_expires_at > now()))
        AND EXISTS (SELECT FROM process_leases p WHERE p.owner = %s AND p.lease_expires_at > now()
            AND p.held_since < now() - make_interval(secs => %s))
    ORDER BY c.id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING *
"""


async def claim_orphans(journal: Journal, limit: int) -> list[dict[str, Any]]:
    """Take over open calls whose owner's lease has run out; their rows, fenced for this journal's process."""
    return await journal.read(CLAIM, journal.owner, OVERDUE_S, NOBODY, journal.owner, journal.lease_s, limit)


# Past its deadline a call may have an end of ours on its way into the database, which a new epoch would shut out.
FORGOTTEN = """
UPDATE calls SET epoch = epoch + 1, step = 0
WHERE owner = %s AND ended_at IS NULL AND deadline > now()
    AND (id, epoch) NOT IN (SELECT * FROM unnest(%s::uuid[], %s::int[])) RETURNING *
"""


async def claim_forgotten(journal: Journal, carried: Collection[tuple[str, int]]) -> list[dict[str, Any]]:
    """Open calls that are ours and that nobody here carries: the answer to a claim was lost with its connection.

    `carried` are those (id and epoch) that somebody does; under an earlier epoch he no longer holds the call.
    """
    ids, epochs = [call_id for call_id, _ in carried], [epoch for _, epoch in carried]
    return await journal.read(FORGOTTEN, journal.owner, ids, epochs)


SEEN = "SELECT kind, attempt, service_id, node_id, detail FROM receipts WHERE call_id = %s ORDER BY seq"


async def seen_receipts(journal: Journal, call_id: UUID) -> list[Seen]:
    rows = await journal.read(SEEN, call_id)
    return [Seen(**row) for row in rows]


def is_anybody_listening() -> bool:
    """False when workers run and no server does: then no heartbeat can be heard. Where nothing runs at all, True."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT bool_or(role <> 'engine') FROM process_leases WHERE lease_expires_at > now()")
        return cursor.fetchone()[0] is not False


def is_any_engine_alive() -> bool:
    """Whether some worker's engine carries the calls that nobody waits for."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM process_leases WHERE role = 'engine' AND lease_expires_at > now())")
        return cursor.fetchone()[0]
