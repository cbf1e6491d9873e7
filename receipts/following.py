"""Waiting for calls to move on: one look at the database for all who wait here, however many.

Nobody who waits has a query or a poll of his own. A hint says that a call may have moved: a NOTIFY of another process,
or a write of this one. Hints are gathered, and one statement looks at all the calls in question; another looks at all
that are followed each `poll_s`, as the net behind the hints, and sees what nobody hints at (docs/adr/0011).
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from receipts.core.lifecycle import TERMINAL
from receipts.gathering import Gathered, by_turns, in_time
from receipts.journal import Journal, end, keep_running
from receipts.reading import RECEIPT_SHOWN, SHOWN
from registry.errors import Unavailable

log = logging.getLogger(__name__)

POLL_SHARE = 0.05
"""At most so much of the time (of 1) somebody looks at all followed calls: a slow database is asked less often."""
REST_AT_MOST_S = 10.0
"""Between two such looks: one that has waited for an absent database says nothing of how slow it is."""
LOOK_AT_MOST = 250
"""Calls that one statement marks or looks at because of hints."""
ROWS_AT_ONCE = 32
"""Calls that are read whole by one statement; their outputs may be large."""
RECEIPTS_AT_ONCE = 100
BYTES_AT_ONCE = 65_536
"""Receipts of one call that are read at once, and their details' size (bytes) after which no further one is. A detail
that alone is larger is left out, and read by parts: however slow who takes it is, he holds no more than one."""
PART_CHARACTERS = 65_536
READERS_AT_ONCE = 64

# Rows that are being written to are left for the next time: waiting for one while holding others would deadlock with
# the journal's groups.
MARK = """
WITH free AS (
    SELECT id FROM calls WHERE id = ANY(%s::uuid[]) AND ended_at IS NULL AND NOT (%s = ANY(coalesce(watchers, '{}')))
    FOR UPDATE SKIP LOCKED
)
UPDATE calls c SET watchers = array_append(c.watchers, %s) FROM free WHERE c.id = free.id
"""
LOOK = """
SELECT id, seq, ended_at IS NOT NULL AS ended, %s = ANY(coalesce(watchers, '{}')) AS marked
FROM calls WHERE id = ANY(%s::uuid[])
"""
# LIMIT keeps the planner to one partition's primary key for each call: a join it would rather do by reading them all.
MOVED = """
SELECT c.id, c.seq, c.ended_at IS NOT NULL AS ended, %s = ANY(coalesce(c.watchers, '{}')) AS marked
FROM unnest(%s::uuid[], %s::int[]) AS f(id, seq), LATERAL (SELECT * FROM calls WHERE calls.id = f.id LIMIT 1) c
WHERE c.seq <> f.seq
"""
STANDING = """
SELECT c.id, c.caller, c.seq, c.ended_at IS NOT NULL AS ended, CASE WHEN c.ended_at IS NOT NULL THEN
    (SELECT r.seq FROM receipts r WHERE r.call_id = c.id AND r.kind = ANY(%s) ORDER BY r.seq DESC LIMIT 1)
    END AS last_seq
FROM calls c WHERE c.id = ANY(%s)
"""
IS_LARGE = f"coalesce(octet_length(detail), 0) > {BYTES_AT_ONCE}"
ROWS = f"SELECT {', '.join(SHOWN)} FROM calls WHERE id = ANY(%s)"
RECEIPTS = f"""
SELECT f.call_id, f.after, r.*
FROM unnest(%s::uuid[], %s::int[]) AS f(call_id, after), LATERAL (
    SELECT {", ".join(name for name in RECEIPT_SHOWN if name != "detail")},
        CASE WHEN NOT is_large THEN detail END AS detail, is_large
    FROM (
        SELECT *, {IS_LARGE} AS is_large, sum(CASE WHEN {IS_LARGE} THEN 0 ELSE coalesce(octet_length(detail), 0) END)
            OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
        FROM receipts WHERE receipts.call_id = f.call_id AND receipts.seq > f.after
        ORDER BY seq LIMIT {RECEIPTS_AT_ONCE}
    ) next WHERE coalesce(bytes_before, 0) < {BYTES_AT_ONCE}
) r ORDER BY f.call_id, f.after, r.seq
"""
PARTS = f"""
SELECT f.*, substr(r.detail, f.first, {PART_CHARACTERS}) AS part
FROM unnest(%s::uuid[], %s::int[], %s::int[]) AS f(call_id, seq, first),
    LATERAL (SELECT detail FROM receipts WHERE receipts.call_id = f.call_id AND receipts.seq = f.seq LIMIT 1) r
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is to be known of a call before somebody follows it."""

    caller: str
    seq: int
    ended: bool
    last_seq: int | None
    """Of the terminal receipt."""


@dataclass(slots=True, eq=False)
class Followed:
    """A call as it was last seen, and who follows it."""

    call_id: UUID
    seq: int = 0
    ended: bool = False
    marked: bool = False
    """Whether the database knows that this process is to be told of its end."""
    followers: list["Follower"] = field(default_factory=list)


class Follower:
    """One who waits for a call to move on, or only for its end."""

    __slots__ = ("end_only", "followed", "stirred")

    def __init__(self, followed: Followed, *, end_only: bool):
        self.followed, self.end_only = followed, end_only
        self.stirred = asyncio.Event()

    async def stirs(self, until: float | None = None) -> bool:
        """Wait for news of the call, or to be let go. False: `until` (loop time) came first."""
        try:
            async with asyncio.timeout_at(until):
                await self.stirred.wait()
        except TimeoutError:
            return False
        self.stirred.clear()
        return True


class Following:
    """The calls that somebody in this process waits for. Start and stop it on the journal's event loop."""

    def __init__(self, journal: Journal, *, poll_s: float, answer_s: float):
        self.journal, self.poll_s, self.answer_s = journal, poll_s, answer_s
        self.calls: dict[str, Followed] = {}
        self.hinted: dict[str, None] = {}
        """In the order in which they were hinted at: who was first is looked at first."""
        self.came = asyncio.Event()
        self.leaving = False
        """Whether all are to go elsewhere: this process stops."""
        self.polled: tuple[str, str] | None = None
        """The parameters of MOVED, for as long as they hold."""
        self.tasks: list[asyncio.Task[None]] = []
        self.standings: Gathered[UUID, Standing] = Gathered(self.read_standings, most=LOOK_AT_MOST, answer_s=answer_s)
        self.rows: Gathered[UUID, dict[str, Any]] = Gathered(self.read_rows, most=ROWS_AT_ONCE, answer_s=answer_s)
        self.receipts: Gathered[tuple[UUID, int], list[dict[str, Any]]] = Gathered(
            self.read_receipts, most=READERS_AT_ONCE, answer_s=answer_s
        )

        self.parts: Gathered[tuple[UUID, int, int], str] = Gathered(
            self.read_parts, most=READERS_AT_ONCE, answer_s=answer_s
        )

    def start(self) -> None:
        self.journal.heard.append(self.hear)
        self.journal.listens.append(self.hint_at_all)
        look = keep_running(self.look_after, self.journal.retry_s)
        self.tasks = [asyncio.get_running_loop().create_task(look, name="following")]

    async def stop(self) -> None:
        self.journal.heard.remove(self.hear)
        self.journal.listens.remove(self.hint_at_all)
        reads = (self.standings.task, self.rows.task, self.receipts.task, self.parts.task)
        await end([*self.tasks, *(task for task in reads if task is not None)])

    def let_go(self) -> None:
        """Stir all who follow: this process stops. Who must wait on does."""
        self.leaving = True
        for followed in self.calls.values():
            for follower in followed.followers:
                follower.stirred.set()

    @contextmanager
    def call(self, call_id: UUID, standing: Standing | None = None, *, end_only: bool = False) -> Iterator[Follower]:
        """Follow a call. What it has come to by then is for the follower to read; all that comes later stirs him.

        One that is known to have ended is not looked at any more.
        """
        if standing is not None and standing.ended:
            yield Follower(Followed(call_id, standing.seq, ended=True), end_only=end_only)
            return
        name = str(call_id)
        followed = self.calls.get(name)
        if followed is None:
            followed = self.calls[name] = Followed(call_id, standing.seq if standing else 0)
            self.polled = None
            self.hint(name)
        follower = Follower(followed, end_only=end_only)
        followed.followers.append(follower)
        try:
            yield follower
        finally:
            followed.followers.remove(follower)
            if not followed.followers:
                del self.calls[name]
                self.polled = None

    # --- Hints and looks ---------------------------------------------------------------------------------------------

    def hear(self, call_ids: Iterable[str]) -> None:
        """These calls may have moved."""
        if self.calls:
            for call_id in call_ids:
                if call_id in self.calls:
                    self.hint(call_id)

    def hint_at_all(self) -> None:
        """Any of them may have moved while nobody listened."""
        for call_id in self.calls:
            self.hint(call_id)

    def hint(self, call_id: str) -> None:
        self.hinted[call_id] = None
        self.came.set()

    async def look_after(self) -> None:
        """Look at what was hinted at as soon as it was, and at all each `poll_s`; at nothing while nobody follows."""
        loop = asyncio.get_running_loop()
        poll_at = loop.time() + self.poll_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(poll_at if self.calls else None):
                    await self.came.wait()
            hinted, self.hinted = self.hinted, {}
            self.came.clear()
            try:
                if hinted:
                    await in_time(self.look(hinted), self.answer_s)
                if (began := loop.time()) >= poll_at:
                    await in_time(self.poll(), self.answer_s)
                    poll_at = loop.time() + max(self.poll_s, min(REST_AT_MOST_S, (loop.time() - began) / POLL_SHARE))
            except Unavailable:
                for call_id in hinted:
                    self.hint(call_id)
                await asyncio.sleep(self.journal.retry_s)

    async def look(self, names: Iterable[str]) -> None:
        """Have the database tell of the ends of these calls, where it does not know to, and see where they stand.

        In this order: what comes after the look is told.
        """
        ids = [followed.call_id for name in names if (followed := self.calls.get(name)) is not None]
        for first in range(0, len(ids), LOOK_AT_MOST):
            some = ids[first : first + LOOK_AT_MOST]
            unmarked = [each for each in some if (one := self.calls.get(str(each))) is not None and not one.marked]
            if unmarked:
                await self.journal.read(MARK, unmarked, self.journal.owner, self.journal.owner)
            await self.see(await self.journal.read(LOOK, self.journal.owner, some))

    async def poll(self) -> None:
        if not self.calls:
            return
        if self.polled is None:
            ids, seqs = (",".join(self.calls), ",".join(str(followed.seq) for followed in self.calls.values()))
            self.polled = f"{{{ids}}}", f"{{{seqs}}}"
        await self.see(await self.journal.read(MOVED, self.journal.owner, *self.polled))
        for name, followed in self.calls.items():
            if not followed.marked and not followed.ended:
                self.hint(name)  # it was being written to when it was to be marked

    async def see(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take note of where calls stand, and stir those who follow one that has moved."""
        for row in rows:
            followed = self.calls.get(str(row["id"]))
            if followed is None:
                continue
            followed.marked = row["marked"]
            if (followed.seq, followed.ended) == (row["seq"], row["ended"]):
                continue
            followed.seq, followed.ended = row["seq"], row["ended"]
            self.polled = None
            async for follower in by_turns(list(followed.followers)):
                if followed.ended or not follower.end_only:
                    follower.stirred.set()

    # --- Reading -----------------------------------------------------------------------------------------------------

    async def read_standings(self, call_ids: Sequence[UUID]) -> dict[UUID, Standing]:
        rows = await self.journal.read(STANDING, list(TERMINAL), list(call_ids))
        return {row["id"]: Standing(row["caller"], row["seq"], row["ended"], row["last_seq"]) for row in rows}

    async def read_rows(self, call_ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
        rows = await self.journal.read(ROWS, list(call_ids))
        return {row["id"]: row for row in rows}

    async def read_receipts(self, wanted: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], list[dict[str, Any]]]:
        """The next receipts of each call after the number beside it; the detail of one that `is_large` is not there."""
        found: dict[tuple[UUID, int], list[dict[str, Any]]] = {}
        for row in await self.journal.read(RECEIPTS, *columns_of(wanted)):
            found.setdefault((row.pop("call_id"), row.pop("after")), []).append(row)
        return found

    async def read_parts(self, wanted: Sequence[tuple[UUID, int, int]]) -> dict[tuple[UUID, int, int], str]:
        """Of each receipt's detail the part that begins with that character, counted from 1; empty behind its end."""
        rows = await self.journal.read(PARTS, *columns_of(wanted))
        return {(row["call_id"], row["seq"], row["first"]): row["part"] for row in rows}


def columns_of(wanted: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*wanted, strict=True)]
