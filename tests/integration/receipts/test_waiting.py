"""Calls that wait for an engine: each is taken by one, in turn, and none keeps those of another capability waiting."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from receipts.journal import NOBODY, Journal
from receipts.recovery import claim_orphans
from receipts.rows import CallRow
from tests.integration.receipts.conftest import LEASE_S, MakeJournal, Sql, a_call, receipts

WINDOW = 3


async def waiting(journal: Journal, capability: str = "ocr", rank: int = 1, **facts: Any) -> CallRow:
    """A call that was accepted and waits."""
    row = a_call(
        journal,
        capability=capability,
        status="accepted",
        owner=str(NOBODY),
        service_id=None,
        node_id=None,
        attempts=0,
        seq=1,
        async_rank=rank,
        **facts,
    )
    assert await journal.accept(row, receipts(row.id, "accepted")) is None
    return row


async def take(journal: Journal, at_most: int = 10, **rooms: int) -> list[str]:
    from receipts.waiting import take_due

    rows = await take_due(journal, rooms=rooms, window=WINDOW, at_most=at_most, overdue=10)
    assert all(row["owner"] == journal.owner for row in rows)
    return [str(row["id"]) for row in rows]


def ids(rows: Sequence[CallRow]) -> set[str]:
    return {row.id for row in rows}


async def test_each_is_taken_once(journal: Journal, new_journal: MakeJournal, sql: Sql) -> None:
    rows = [await waiting(journal, f"task_{n % 5}") for n in range(15)]
    others = [await new_journal() for _ in range(3)]
    taken = await asyncio.gather(*(take(one) for one in others for _ in range(4)))
    found = [call_id for part in taken for call_id in part]
    assert sorted(found) == sorted(ids(rows))
    assert sql("SELECT count(*) FROM waiting_calls") == [(0,)]
    assert sql("SELECT DISTINCT epoch, step FROM calls") == [(2, 0)]


async def test_the_urgent_first_then_capabilities_in_turn_then_the_oldest(journal: Journal) -> None:
    many = [await waiting(journal, "ocr") for _ in range(5)]
    late = await waiting(journal, "translate")
    urgent = await waiting(journal, "zip", rank=0)
    assert set(await take(journal, 1)) == {urgent.id}
    assert set(await take(journal, 2)) == {many[0].id, late.id}
    assert set(await take(journal)) == ids(many[1:4]), "no more of one than its window"
    assert set(await take(journal)) == ids(many[4:])


async def test_no_more_of_a_capability_than_there_is_room_for(journal: Journal) -> None:
    for _ in range(4):
        await waiting(journal, "ocr")
    other = await waiting(journal, "zip")
    assert set(await take(journal, ocr=0)) == {other.id}
    assert len(await take(journal, ocr=1)) == 1


async def test_overdue_ones_are_taken_in_any_case(journal: Journal, sql: Sql) -> None:
    row = await waiting(journal)
    await waiting(journal)
    sql("UPDATE waiting_calls SET deadline = now() WHERE call_id = %s", row.id)
    assert await take(journal, 0) == [row.id]


async def test_a_cancelled_one_is_nobodys(journal: Journal, sql: Sql) -> None:
    row = await waiting(journal)
    sql("UPDATE calls SET status = 'cancelled', ended_at = now() WHERE id = %s", row.id)
    assert await take(journal) == []
    assert sql("SELECT count(*) FROM waiting_calls") == [(0,)]


async def test_what_is_given_back_waits_behind_the_others(journal: Journal, new_journal: MakeJournal) -> None:
    from receipts.waiting import are_waiting, give_back, is_any_waiting

    first, second = await waiting(journal), await waiting(journal)
    assert await take(journal, 1) == [first.id]
    assert await are_waiting(journal, ["ocr", "zip"]) == {"ocr"}
    assert await is_any_waiting(journal)
    await give_back(journal, [(first.id, 2)])
    other = await new_journal()
    assert await take(other, 1) == [second.id]
    assert await take(other, 1) == [first.id]
    await give_back(journal, [(first.id, 3)])
    assert await take(journal) == [], "who no longer holds a call cannot give it back"


async def test_a_rejected_one_does_not_wait(journal: Journal, sql: Sql) -> None:
    row = a_call(journal, status="rejected", ended_ms=1, async_rank=1, attempts=0)
    await journal.accept(row, receipts(row.id, "accepted", "rejected"))
    assert sql("SELECT count(*) FROM waiting_calls") == [(0,)]


async def test_what_waits_is_nobodys_orphan_but_what_is_held_is(
    journal: Journal, new_journal: MakeJournal, sql: Sql
) -> None:
    held, row = await waiting(journal), await waiting(journal)
    mortal = await new_journal()
    assert await take(mortal, 1) == [held.id]
    await mortal.stop()
    heir = await new_journal()
    await asyncio.sleep(2 * LEASE_S)  # it has held its lease for longer than any lasts
    assert [str(orphan["id"]) for orphan in await claim_orphans(heir, 10)] == [held.id]
    sql("UPDATE calls SET deadline = now() - interval '11 s' WHERE id = %s", row.id)
    assert [str(orphan["id"]) for orphan in await claim_orphans(heir, 10)] == [row.id], "whatever went wrong, it ends"


async def test_what_a_lost_answer_made_ours_is_found_again(journal: Journal, sql: Sql) -> None:
    from receipts.recovery import claim_forgotten

    carried, forgotten, late = [await waiting(journal) for _ in range(3)]
    assert set(await take(journal)) == ids([carried, forgotten, late])
    sql("UPDATE calls SET deadline = now() WHERE id = %s", late.id)  # its end may be on its way
    assert [str(row["id"]) for row in await claim_forgotten(journal, [(carried.id, 2)])] == [forgotten.id]
    assert sql("SELECT epoch FROM calls WHERE id = %s", forgotten.id) == [(3,)]
    held = [(carried.id, 2), (forgotten.id, 2)]
    assert [str(row["id"]) for row in await claim_forgotten(journal, held)] == [forgotten.id], "held again since"


async def test_who_listens_is_told(new_journal: MakeJournal) -> None:
    told: list[str] = []
    engine = await new_journal(hears_due=True)
    engine.when_due.append(told.append)
    async with asyncio.timeout(10):
        while not told:  # until it listens
            await waiting(engine)
            await asyncio.sleep(0.02)
    assert set(told) == {""}


@pytest.mark.parametrize("is_taken", [False, True], ids=["it still waits", "an engine has it"])
async def test_an_acceptance_in_doubt_is_ended_whoever_has_the_call(
    journal: Journal, new_journal: MakeJournal, sql: Sql, is_taken: bool
) -> None:
    """Its caller was told that nothing was accepted."""
    from receipts.journal import ALREADY_APPLIED, END_DOUBTFUL

    row = await waiting(journal)
    engine = await new_journal()
    if is_taken:
        await take(engine)
    await journal.read(END_DOUBTFUL, [row.id])
    assert sql("SELECT status FROM calls") == [("rejected",)]
    unanswered = {"id": row.id, "owner": str(engine.owner), "epoch": 2, "step": 1}
    assert await engine.read(ALREADY_APPLIED, json.dumps([unanswered])) == [], "it was not, and nothing is sent"
    assert await take(journal) == []
