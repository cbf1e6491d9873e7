"""Callbacks that are due, and what came of them. The database makes them, by a trigger of migration 0006."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from receipts.journal import Journal
from receipts.models import Callback, CallbackStatus
from receipts.rows import json_of

TRIES_KEPT = 20
"""Of one callback, as the call shows them: the last ones."""

# Each host has its own window: one that does not answer holds up nobody else, however many callbacks wait for it. Who
# takes a callback moves its next turn on by as long as it may hold it: should it die, another one sends it again then.
TAKE = """
WITH RECURSIVE hosts(host) AS (
    (SELECT host FROM callbacks WHERE status = 'pending' ORDER BY host LIMIT 1)
    UNION ALL
    SELECT (SELECT c.host FROM callbacks c WHERE c.status = 'pending' AND c.host > h.host ORDER BY c.host LIMIT 1)
    FROM hosts h WHERE h.host IS NOT NULL
), due AS MATERIALIZED (
    SELECT head.call_id
    FROM hosts h LEFT JOIN unnest(%(hosts)s::text[], %(rooms)s::int[]) AS known(host, room) USING (host)
    CROSS JOIN LATERAL (
        SELECT c.call_id, c.due_at FROM callbacks c
        WHERE c.status = 'pending' AND c.host = h.host AND c.due_at <= now()
        ORDER BY c.due_at LIMIT coalesce(known.room, %(window)s) FOR UPDATE SKIP LOCKED
    ) AS head
    WHERE h.host IS NOT NULL ORDER BY head.due_at LIMIT %(at_most)s
)
UPDATE callbacks SET tries = tries + 1, due_at = now() + make_interval(secs => %(held_s)s)
WHERE call_id = ANY(ARRAY(SELECT call_id FROM due)) RETURNING call_id, url, host, caller, tries, made_at
"""


async def take_due(
    journal: Journal, *, rooms: Mapping[str, int], window: int, at_most: int, held_s: float
) -> list[dict[str, Any]]:
    """Callbacks that are due, ours for `held_s` seconds: at most `window` for each host, or as many as `rooms` says."""
    asked = {"hosts": list(rooms), "rooms": list(rooms.values()), "window": window, "at_most": at_most}
    return await journal.read(TAKE, **asked, held_s=held_s)


class Try(msgspec.Struct, omit_defaults=True, frozen=True):
    """One sending, as the call shows it."""

    at: datetime
    took_ms: int
    status: int | None = None
    """The answer's HTTP status, where there was one."""
    error: str | None = None


RECORD = f"""
UPDATE callbacks SET status = %(status)s, due_at = coalesce(%(due_at)s, due_at), settled_at = %(settled_at)s,
    log = (CASE WHEN jsonb_array_length(log) >= {TRIES_KEPT} THEN log - 0 ELSE log END) || %(told)s::jsonb
WHERE call_id = %(call_id)s AND tries = %(number)s AND status = 'pending'
"""


async def record(
    journal: Journal, call_id: UUID, number: int, told: Try, *, status: CallbackStatus, due_at: datetime | None
) -> None:
    """Keep how try `number` went. `due_at` is the next one's; None: it is settled."""
    await journal.read(
        RECORD,
        status=status.value,
        due_at=due_at,
        settled_at=None if status == CallbackStatus.PENDING else told.at,
        told=json_of([told]).decode(),
        call_id=call_id,
        number=number,
    )


# --- Showing ---------------------------------------------------------------------------------------------------------


def callback_document(url: str, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """A call's callback as the call shows it; before the end of the call there is no row."""
    if row is None:
        return {"url": url, "status": "waiting", "tries": 0, "next_try_at": None, "settled_at": None, "log": []}
    is_pending = row["status"] == CallbackStatus.PENDING
    return {
        "url": url,
        "status": row["status"],
        "tries": row["tries"],
        "next_try_at": row["due_at"] if is_pending else None,
        "settled_at": row["settled_at"],
        "log": row["log"],
    }


SHOWN = ("call_id", "status", "due_at", "tries", "settled_at", "log")


def callbacks_of(call_ids: Iterable[UUID]) -> dict[UUID, dict[str, Any]]:
    """The rows of these calls' callbacks."""
    return {row["call_id"]: row for row in Callback.objects.filter(pk__in=list(call_ids)).values(*SHOWN)}


async def read_callback(journal: Journal, call_id: UUID) -> dict[str, Any] | None:
    """`callbacks_of` one call, for the hot endpoints. Raises Unavailable."""
    rows = await journal.read(f"SELECT {', '.join(SHOWN)} FROM callbacks WHERE call_id = %s", call_id)
    return rows[0] if rows else None
