"""Callbacks as the database keeps them: made by whatever ends a call, taken by one sender, fenced."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from receipts.journal import Journal
from receipts.rows import CallRow
from tests.integration.receipts.conftest import MakeJournal, Sql, a_call, a_move, an_end, opening


async def called_back(journal: Journal, url: str = "http://billing.test/done", *, ends: bool = True) -> CallRow:
    row = a_call(journal, async_rank=1, callback_url=url)
    assert await journal.accept(*opening(row)) is None
    if ends:
        assert await journal.move(*an_end(row))
    return row


async def take(journal: Journal, at_most: int = 10, rooms: dict[str, int] | None = None, **facts: Any) -> list[Any]:
    from receipts.callbacks import take_due

    return await take_due(journal, rooms=rooms or {}, window=2, at_most=at_most, **{"held_s": 30.0, **facts})


async def record(journal: Journal, row: CallRow, number: int, status: str, *, again_in_s: float | None = None) -> None:
    from receipts.callbacks import Try, record
    from receipts.models import CallbackStatus

    now = timezone.now()
    due_at = None if again_in_s is None else now + timedelta(seconds=again_in_s)
    told = Try(now, 12, 500, "answered 500")
    await record(journal, UUID(row.id), number, told, status=CallbackStatus(status), due_at=due_at)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("SELECT 1", id="the carrier, or a receipt"),
        pytest.param("UPDATE calls SET status = 'cancelled', ended_at = now()", id="a cancel"),
        pytest.param("UPDATE calls SET status = 'timed_out', ended_at = now(), error = '{}'", id="anybody"),
    ],
)
async def test_every_end_makes_one_due(journal: Journal, sql: Sql, end: str) -> None:
    row = await called_back(journal, "http://Billing.test:8080/done?x=1", ends=False)
    assert sql("SELECT count(*) FROM callbacks") == [(0,)]
    if end == "SELECT 1":
        assert await journal.move(*an_end(row))
    else:
        sql(end)
    assert sql("SELECT call_id::text, host, caller, status, tries FROM callbacks") == [
        (row.id, "billing.test:8080", row.caller, "pending", 0)
    ]


async def test_no_other_write_and_no_other_call_makes_one(journal: Journal, sql: Sql) -> None:
    row = await called_back(journal, ends=False)
    plain = a_call(journal)
    await journal.accept(*opening(plain))
    assert await journal.move(*a_move(row, "running"))
    assert await journal.move(*an_end(plain))
    assert sql("SELECT count(*) FROM callbacks") == [(0,)]


def test_in_partitions_made_later_too(stored_call: Callable[..., Any]) -> None:
    from receipts.models import Call, Callback
    from receipts.partitions import ensure_partitions

    later = timezone.now() + timedelta(days=20)
    assert ensure_partitions(later, hours=24, ahead=0)
    call = stored_call(at=later, status="running", async_rank=1, callback_url="http://billing.test/done")
    Call.objects.filter(pk=call.pk).update(status="failed", ended_at=later)
    assert [callback.pk for callback in Callback.objects.all()] == [call.pk]


async def test_each_is_taken_by_one(journal: Journal, new_journal: MakeJournal) -> None:
    rows = [await called_back(journal, f"http://host-{n % 4}.test/") for n in range(8)]
    others = [await new_journal() for _ in range(3)]
    taken = await asyncio.gather(*(take(one) for one in others))
    found = [str(row["call_id"]) for part in taken for row in part]
    assert sorted(found) == sorted(row.id for row in rows)
    assert await take(journal) == []


async def test_no_more_to_one_host_than_there_is_room_for(journal: Journal) -> None:
    for _ in range(5):
        await called_back(journal, "http://slow.test/")
    quick = await called_back(journal, "http://quick.test/")
    assert [row["host"] for row in await take(journal, rooms={"slow.test": 0})] == ["quick.test"]
    assert [row["host"] for row in await take(journal)] == ["slow.test"] * 2
    assert quick


async def test_a_sender_that_dies_is_followed_by_another(journal: Journal) -> None:
    row = await called_back(journal)
    first = await take(journal, held_s=0.2)
    assert await take(journal) == []
    await asyncio.sleep(0.25)  # it has not come back
    second = await take(journal)
    assert [one["tries"] for one in (*first, *second)] == [1, 2]
    await record(journal, row, 1, "delivered")  # too late: the other one's word counts
    assert await take(journal) == []
    await record(journal, row, 2, "pending", again_in_s=-1)
    assert [one["tries"] for one in await take(journal)] == [3]


async def test_what_is_settled_stays_so_and_the_last_tries_are_kept(journal: Journal, sql: Sql) -> None:
    from receipts.callbacks import TRIES_KEPT

    row = await called_back(journal)
    for number in range(1, TRIES_KEPT + 3):
        assert await take(journal)
        await record(journal, row, number, "pending", again_in_s=-1)
    await take(journal)
    await record(journal, row, TRIES_KEPT + 3, "gave_up")
    [(status, tries, kept, settled)] = sql(
        "SELECT status, tries, jsonb_array_length(log), settled_at IS NOT NULL FROM callbacks"
    )
    assert (status, tries, kept, settled) == ("gave_up", TRIES_KEPT + 3, TRIES_KEPT, True)
    assert await take(journal) == []
