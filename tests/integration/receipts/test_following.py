"""Who waits for a call is stirred by what happens to it, whichever process writes it; one look serves all."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest

from receipts.following import (
    BYTES_AT_ONCE,
    PART_CHARACTERS,
    RECEIPTS_AT_ONCE,
    Follower,
    Following,
    Standing,
)
from receipts.gathering import Gathered
from receipts.journal import Journal
from receipts.rows import MoveRow, ReceiptRow
from registry.errors import Unavailable
from tests.bed.proxy import Proxy
from tests.integration.receipts.conftest import MakeJournal, Sql, a_call, a_move, an_end, opening

NEVER_S = 3600.0
Follow = Callable[..., Any]


@pytest.fixture
async def following_of() -> AsyncIterator[Follow]:
    """What a process has for those who wait at it; its journal is counted on, its poll as slow as a test wants."""
    made: list[Following] = []

    def make(journal: Journal, *, poll_s: float = NEVER_S, answer_s: float = 5.0) -> Following:
        made.append(Following(journal, poll_s=poll_s, answer_s=answer_s))
        made[-1].start()
        return made[-1]

    yield make
    for following in made:
        await following.stop()


def counted(following: Following) -> list[str]:
    """The statements that a process's followers have run, from now on."""
    ran: list[str] = []
    read = following.journal.read

    async def told(sql: str, *parameters: Any) -> list[dict[str, Any]]:
        if "process_leases" not in sql:
            ran.append(sql)
        return await read(sql, *parameters)

    following.journal.read = told  # type: ignore[method-assign]
    return ran


async def stirred(follower: Follower) -> None:
    assert await follower.stirs(asyncio.get_running_loop().time() + 10)


async def settled(following: Following, call_id: str) -> None:
    """Once the database knows that this process is to be told of the call's end."""
    async with asyncio.timeout(10):
        while not following.calls[call_id].marked or following.hinted:
            await asyncio.sleep(0.005)


async def test_an_end_written_by_another_process_is_told(new_journal: MakeJournal, following_of: Follow):
    """By its notification: this process's poll never comes."""
    owner, other = await new_journal(), await new_journal()
    following = following_of(other)
    await owner.accept(*opening(row := a_call(owner)))
    with following.call(UUID(row.id), end_only=True) as follower:
        await settled(following, row.id)
        async with asyncio.timeout(10):
            while not await other.read("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN %%'"):
                await asyncio.sleep(0.01)
        await owner.move(*a_move(row, "running"))
        await owner.move(*an_end(row, step=2))
        await stirred(follower)
        assert follower.followed.ended
    assert following.calls == {}


async def test_what_this_process_writes_is_told_at_once(journal: Journal, following_of: Follow):
    following = following_of(journal)
    await journal.accept(*opening(row := a_call(journal)))
    with following.call(UUID(row.id), Standing("report-agent", 2, False, None)) as follower:
        await settled(following, row.id)
        for step in (1, 2):
            await journal.move(*a_move(row, "running", step=step))
            await stirred(follower)
            assert follower.followed.seq == 2 + step


async def test_progress_written_elsewhere_is_seen_by_the_poll_and_wakes_nobody_who_waits_for_the_end(
    new_journal: MakeJournal, following_of: Follow
):
    owner, other = await new_journal(), await new_journal()
    following = following_of(other, poll_s=0.02)
    await owner.accept(*opening(row := a_call(owner)))
    standing = Standing("report-agent", 2, False, None)
    with (
        following.call(UUID(row.id), standing) as progress,
        following.call(UUID(row.id), standing, end_only=True) as end,
    ):
        await owner.move(*a_move(row, "running"))
        await stirred(progress)
        assert not end.stirred.is_set()
        await owner.move(*an_end(row, step=2))
        await stirred(end)
        assert progress.followed is end.followed and end.followed.seq == 4


async def test_an_end_between_a_look_and_the_following_is_not_missed(new_journal: MakeJournal, following_of: Follow):
    owner, other = await new_journal(), await new_journal()
    following = following_of(other)
    await owner.accept(*opening(row := a_call(owner)))
    standing = await following.standings(UUID(row.id))
    assert standing == Standing("report-agent", 2, False, None)
    await owner.move(*an_end(row))
    with following.call(UUID(row.id), standing, end_only=True) as follower:
        await stirred(follower)
    assert await following.standings(UUID(row.id)) == Standing("report-agent", 3, True, 3)


async def test_a_call_that_is_being_written_to_is_marked_later(
    new_journal: MakeJournal, following_of: Follow, sql: Sql
):
    """Waiting for its row would hold the others; and the journal's groups would wait for those."""
    owner, other = await new_journal(), await new_journal()
    following = following_of(other, poll_s=0.02)
    await owner.accept(*opening(row := a_call(owner)))
    sql("BEGIN")
    sql("SELECT FROM calls WHERE id = %s FOR UPDATE", row.id)
    with following.call(UUID(row.id)):
        async with asyncio.timeout(10):
            while following.calls[row.id].seq == 0:  # it has been looked at
                await asyncio.sleep(0.005)
        assert not following.calls[row.id].marked
        sql("COMMIT")
        await settled(following, row.id)
    assert sql("SELECT watchers FROM calls WHERE id = %s", row.id) == [([other.owner],)]


async def test_many_who_wait_cost_one_statement_each_time(journal: Journal, following_of: Follow):
    rows = [a_call(journal) for _ in range(200)]
    await asyncio.gather(*(journal.accept(*opening(row)) for row in rows))
    following = following_of(journal, poll_s=0.05)
    ran = counted(following)
    with ExitStack() as stack:
        followers = [
            stack.enter_context(following.call(UUID(row.id), Standing("report-agent", 2, False, None)))
            for row in rows
            for _ in range(5)
        ]
        for row in rows:
            await settled(following, row.id)
        assert len(ran) <= 4  # marked and looked at in one group, perhaps a poll or two in between
        ran.clear()
        async with asyncio.timeout(10):
            while len(ran) < 5:
                await asyncio.sleep(0.01)
        assert all("unnest" in sql for sql in ran)  # polls alone, each for all
        assert not any(follower.stirred.is_set() for follower in followers)
        ran.clear()
        await asyncio.gather(*(journal.move(*an_end(row)) for row in rows))
        await asyncio.gather(*(stirred(follower) for follower in followers))
        found = await asyncio.gather(*(following.rows(UUID(row.id)) for row in rows for _ in range(5)))
        assert {row["status"] for row in found} == {"succeeded"}
        assert len(ran) < 30
    assert following.calls == {} and following.polled is None


async def test_nobody_who_waits_costs_nothing(journal: Journal, following_of: Follow):
    following = following_of(journal, poll_s=0.01)
    ran = counted(following)
    await journal.accept(*opening(row := a_call(journal)))
    await journal.move(*a_move(row, "running"))
    await asyncio.sleep(0.1)
    assert ran == []


async def test_all_are_let_go_when_the_process_stops(journal: Journal, following_of: Follow):
    following = following_of(journal)
    await journal.accept(*opening(row := a_call(journal)))
    with following.call(UUID(row.id)) as one, following.call(UUID(row.id), end_only=True) as other:
        following.let_go()
        await stirred(one)
        await stirred(other)
    assert following.leaving


async def test_the_database_away_is_waited_for(new_journal: MakeJournal, following_of: Follow, line: Proxy):
    owner, other = await new_journal(), await new_journal(line=line)
    following = following_of(other, poll_s=0.05)
    await owner.accept(*opening(row := a_call(owner)))
    with following.call(UUID(row.id), end_only=True) as follower:
        await settled(following, row.id)
        line.cut()
        await owner.move(*an_end(row))
        with pytest.raises(Unavailable):
            async with asyncio.timeout(10):
                while True:
                    await other.read("SELECT 1")
                    await asyncio.sleep(0.01)
        assert not follower.followed.ended
        line.mend()
        async with asyncio.timeout(20):
            await follower.stirs()
        assert follower.followed.ended


async def test_an_end_told_while_this_process_did_not_listen_is_seen_when_it_does_again(
    new_journal: MakeJournal, following_of: Follow, line: Proxy
):
    """The notification is lost; the next poll may be far away, for a slow one is followed by a long rest."""
    owner, other = await new_journal(), await new_journal(line=line)
    following = following_of(other)
    row = a_call(owner)
    await owner.accept(*opening(row))
    with following.call(UUID(row.id), end_only=True) as follower:
        await settled(following, row.id)
        line.cut()
        assert await owner.move(*an_end(row))
        line.mend()
        await stirred(follower)
    assert follower.followed.ended


async def test_a_line_that_goes_dead_holds_nobody_for_ever(new_journal: MakeJournal, following_of: Follow, line: Proxy):
    owner, other = await new_journal(), await new_journal(line=line)
    following = following_of(other, poll_s=0.05, answer_s=0.2)
    await owner.accept(*opening(row := a_call(owner)))
    with following.call(UUID(row.id), end_only=True) as follower:
        await settled(following, row.id)
        line.drop()
        for _ in range(2):
            with pytest.raises(Unavailable):
                await following.rows(UUID(row.id))
        await owner.move(*an_end(row))
        line.mend()
        line.break_all()
        async with asyncio.timeout(20):
            await follower.stirs()
        assert follower.followed.ended


# --- Reading ---------------------------------------------------------------------------------------------------------


async def test_receipts_are_read_on_in_bounded_parts_without_a_gap(journal: Journal, following_of: Follow):
    following = following_of(journal)
    await journal.accept(*opening(row := a_call(journal)))
    sizes = [None, BYTES_AT_ONCE // 2, None, BYTES_AT_ONCE - 2, 10, None] + [None] * (RECEIPTS_AT_ONCE + 5)
    told = [
        ReceiptRow(row.id, n, "running", 0, detail=None if size is None else f'"{"x" * size}"')
        for n, size in enumerate(sizes, start=1)
    ]
    await journal.move(MoveRow(row.id, len(told), fence_attempt=1), told)
    parts = []
    seq = 0
    while part := await following.receipts((UUID(row.id), seq)):
        parts.append([receipt["seq"] for receipt in part])
        seq = parts[-1][-1]
    assert [seq for part in parts for seq in part] == list(range(1, 2 + len(sizes) + 1))
    assert [len(part) for part in parts] == [6, RECEIPTS_AT_ONCE, len(sizes) + 2 - 6 - RECEIPTS_AT_ONCE]


async def test_a_large_detail_is_read_by_parts(journal: Journal, following_of: Follow):
    following = following_of(journal)
    await journal.accept(*opening(row := a_call(journal)))
    detail = f'"{"agent 智能体 🙂 " * 10_000}"'
    receipts = [ReceiptRow(row.id, n, "running", 0, detail=one) for n, one in enumerate(["1", detail, "3"], start=1)]
    await journal.move(MoveRow(row.id, 3, fence_attempt=1), receipts)
    told = await following.receipts((UUID(row.id), 2))
    assert told is not None
    assert [(r["seq"], r["detail"], r["is_large"]) for r in told] == [
        (3, "1", False), (4, None, True), (5, "3", False)
    ]  # fmt: skip
    read = ""
    while part := await following.parts((UUID(row.id), 4, len(read) + 1)):
        assert len(part) <= PART_CHARACTERS
        read += part
    assert read == detail


async def test_each_gets_the_receipts_he_asked_for(journal: Journal, following_of: Follow):
    following = following_of(journal)
    rows = [a_call(journal) for _ in range(3)]
    await asyncio.gather(*(journal.accept(*opening(row)) for row in rows))
    ran = counted(following)
    asked = [(UUID(row.id), after) for row in rows for after in (0, 1, 2)] + [(uuid4(), 0)]
    told = await asyncio.gather(*(following.receipts(one) for one in asked))
    assert [[r["kind"] for r in part or ()] for part in told] == [["accepted", "forwarded"], ["forwarded"], []] * 3 + [
        []
    ]
    assert len(ran) == 1
    assert set(told[0][0]) == {"seq", "kind", "attempt", "service_id", "node_id", "at", "detail", "is_large"}


async def test_reads_gather_while_one_is_under_way():
    gate = asyncio.Event()
    asked: list[list[int]] = []

    async def read(keys: Any) -> dict[int, int]:
        asked.append(list(keys))
        await gate.wait()
        return {key: key * 10 for key in keys if key != 3}

    gathered: Gathered[int, int] = Gathered(read, most=3, answer_s=10)
    first = asyncio.ensure_future(gathered(1))
    while not asked:
        await asyncio.sleep(0)
    others = [asyncio.ensure_future(gathered(key)) for key in (2, 2, 3, 4, 5)]
    await asyncio.sleep(0)
    others[0].cancel()
    gate.set()
    assert await first == 10
    assert [await one for one in others[1:]] == [20, None, 40, 50]
    assert asked == [[1], [2, 3, 4], [5]]
    assert gathered.task is None


async def test_all_hear_of_a_read_that_fails_and_the_next_is_tried():
    failing = True

    async def read(keys: Any) -> dict[int, int]:
        if failing:
            raise Unavailable()
        return {key: key for key in keys}

    gathered: Gathered[int, int] = Gathered(read, most=10, answer_s=10)
    told = await asyncio.gather(gathered(1), gathered(1), gathered(2), return_exceptions=True)
    assert [type(exc) for exc in told] == [Unavailable] * 3
    failing = False
    assert await gathered(2) == 2
