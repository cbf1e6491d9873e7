"""Asynchronous calls that wait for an engine: taken by whoever has room for them, given back where others should turn.

`waiting_calls` is their index. A row there means that nobody carries the call; who takes it makes it its own in the
same statement, so of many engines one has it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from receipts.journal import NOBODY, Journal

# Each capability has its own window, however many calls of another one wait before it: capabilities are found one by
# one at the head of the index, so the cost goes by their number and not by that of the calls. Those whose deadline has
# passed are taken in any case, so that they are ended. A row whose call has been cancelled goes, and nobody is told.
# Arrays keep the planner to primary keys: joins it might rather do by reading all partitions.
TAKE = """
WITH RECURSIVE kinds(capability) AS (
    (SELECT capability FROM waiting_calls ORDER BY capability LIMIT 1)
    UNION ALL
    SELECT (SELECT w.capability FROM waiting_calls w WHERE w.capability > k.capability ORDER BY w.capability LIMIT 1)
    FROM kinds k WHERE k.capability IS NOT NULL
), due AS MATERIALIZED (
    SELECT head.call_id
    FROM kinds k LEFT JOIN unnest(%(kinds)s::text[], %(rooms)s::int[]) AS known(capability, room) USING (capability)
    CROSS JOIN LATERAL (
        SELECT w.call_id, w.async_rank, w.due_at FROM waiting_calls w
        WHERE w.capability = k.capability AND w.due_at <= now()
        ORDER BY w.async_rank, w.due_at, w.call_id LIMIT coalesce(known.room, %(window)s) FOR UPDATE SKIP LOCKED
    ) AS head
    WHERE k.capability IS NOT NULL
    ORDER BY head.async_rank, row_number() OVER (
        PARTITION BY k.capability, head.async_rank ORDER BY head.due_at, head.call_id)
    LIMIT %(at_most)s
), overdue AS MATERIALIZED (
    SELECT call_id FROM waiting_calls WHERE deadline <= now() ORDER BY deadline
    LIMIT %(overdue)s FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM waiting_calls
    WHERE call_id = ANY(ARRAY(SELECT call_id FROM due UNION SELECT call_id FROM overdue)) RETURNING call_id
)
UPDATE calls SET owner = %(owner)s, epoch = epoch + 1, step = 0
WHERE id = ANY(ARRAY(SELECT call_id FROM taken)) AND ended_at IS NULL RETURNING *
"""


async def take_due(
    journal: Journal, *, rooms: Mapping[str, int], window: int, at_most: int, overdue: int
) -> list[dict[str, Any]]:
    """Calls that wait, the most urgent first, then the capabilities in turn, then the oldest; ours from now on.

    At most `window` of each capability, or as many as `rooms` says of it; and at most `overdue` whose deadline is over.
    """
    asked = {"kinds": list(rooms), "rooms": list(rooms.values()), "window": window, "at_most": at_most}
    return await journal.read(TAKE, **asked, overdue=overdue, owner=journal.owner)


GIVE_BACK = """
WITH given AS (
    UPDATE calls SET owner = %(nobody)s, due_at = NULL
    WHERE id = ANY(%(ids)s::uuid[]) AND owner = %(owner)s AND ended_at IS NULL
        AND (id, epoch) IN (SELECT * FROM unnest(%(ids)s::uuid[], %(epochs)s::int[]))
    RETURNING id, capability, async_rank, deadline
)
INSERT INTO waiting_calls (call_id, capability, async_rank, due_at, deadline)
SELECT id, capability, async_rank, now(), deadline FROM given ON CONFLICT DO NOTHING RETURNING call_id
"""


async def give_back(journal: Journal, held: Iterable[tuple[str, int]]) -> None:
    """Let go of calls (id and epoch) that we hold: they wait again, behind the others of their kind."""
    ids, epochs = zip(*held, strict=True)
    await journal.read(GIVE_BACK, nobody=NOBODY, ids=list(ids), epochs=list(epochs), owner=journal.owner)


WHAT_IS_DUE = """
SELECT EXISTS (SELECT FROM waiting_calls WHERE due_at <= now() OR deadline <= now()) AS calls,
    EXISTS (SELECT FROM callbacks WHERE status = 'pending' AND due_at <= now()) AS callbacks
"""


async def what_is_due(journal: Journal) -> dict[str, bool]:
    """Whether any `calls` wait, and any `callbacks` are to be sent: one cheap question where mostly nothing is due."""
    return (await journal.read(WHAT_IS_DUE))[0]


IS_ANY_WAITING = "SELECT EXISTS (SELECT FROM waiting_calls WHERE due_at <= now()) AS any"


async def is_any_waiting(journal: Journal) -> bool:
    """Whether calls wait that nobody has taken."""
    rows = await journal.read(IS_ANY_WAITING)
    return bool(rows[0]["any"])


ARE_WAITING = """
SELECT name FROM unnest(%s::text[]) AS name
WHERE EXISTS (SELECT FROM waiting_calls w WHERE w.capability = name AND w.due_at <= now())
"""


async def are_waiting(journal: Journal, capabilities: Collection[str]) -> set[str]:
    """Those of the capabilities of which more calls wait."""
    return {row["name"] for row in await journal.read(ARE_WAITING, list(capabilities))}


COUNTED_AT_MOST = 100_000
COUNT = f"""
SELECT
    (SELECT count(*) FROM (
        SELECT FROM calls WHERE ended_at IS NULL AND status = 'accepted' LIMIT {COUNTED_AT_MOST}) AS c) AS calls,
    (SELECT count(*) FROM (
        SELECT FROM callbacks WHERE status = 'pending' LIMIT {COUNTED_AT_MOST}) AS c) AS pending,
    (SELECT count(*) FROM (
        SELECT FROM callbacks WHERE status = 'gave_up' AND settled_at > now() - interval '1 day'
        LIMIT {COUNTED_AT_MOST}) AS c) AS given_up
"""


async def count_what_waits(journal: Journal) -> dict[str, int]:
    """How many `calls` wait to be placed, how many callbacks are `pending`, and were `given_up` within a day."""
    return (await journal.read(COUNT))[0]
