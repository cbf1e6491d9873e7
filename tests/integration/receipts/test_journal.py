"""Group commit on a real PostgreSQL: what shares a commit shares nothing else."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from receipts.journal import MOVE, RELAXED_OPTIONS, WRITER_OPTIONS, Existing, Journal, end
from receipts.recovery import claim_orphans, seen_receipts
from receipts.rows import MoveRow, ReceiptRow
from registry.errors import Unavailable
from tests.bed.proxy import Proxy
from tests.integration.receipts.conftest import LEASE_S, MakeJournal, Sql, a_call, a_move, an_end, opening, receipts


async def becomes_true(look, what: str, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not look():
            await asyncio.sleep(0.01)
    assert look(), what


def told(sql: Sql, call_id: str) -> list[tuple[int, str]]:
    return sql("SELECT seq, kind FROM receipts WHERE call_id = %s ORDER BY seq", call_id)


def row_of(sql: Sql, call_id: str, columns: str = "status, seq, step") -> tuple:
    return sql(f"SELECT {columns} FROM calls WHERE id = %s", call_id)[0]


# --- Accepting -------------------------------------------------------------------------------------------------------


async def test_a_call_is_on_disk_with_its_receipts_when_it_is_accepted(journal: Journal, sql: Sql):
    row = a_call(journal, labels={"tenant": "emea"}, depth=2, idempotent=True, first_forwarded_ms=1_790_000_000_123)
    assert await journal.accept(*opening(row)) is None
    assert told(sql, row.id) == [(1, "accepted"), (2, "forwarded")]
    columns = "labels, depth, idempotent, epoch, step, extract(epoch FROM first_forwarded_at)::float8"
    assert row_of(sql, row.id, columns) == ({"tenant": "emea"}, 2, True, 1, 0, 1_790_000_000.123)


def test_calls_are_moved_by_their_ids_even_where_the_table_is_taken_for_empty(database: str):
    """Such a plan lives on while the table fills: what reads all open calls then takes longer with each."""
    with psycopg.connect(database, options=WRITER_OPTIONS) as connection:
        connection.execute("UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE relname ~ '^calls_(p|default)'")
        [(found,)] = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {MOVE}").fetchall()
        connection.rollback()
    looks = [node for node in nodes_of(found[0]["Plan"]) if node.get("Index Name", "").startswith("calls_")]
    assert looks
    for look in looks:
        assert look["Index Name"].endswith("_pkey")
        assert "id = ANY" in look["Index Cond"] or "id = m.id" in look["Index Cond"]
    assert "Seq Scan" not in {node["Node Type"] for node in nodes_of(found[0]["Plan"])}


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes_of(below)


async def test_concurrent_calls_share_commits(journal: Journal, sql: Sql):
    rows = [a_call(journal) for _ in range(600)]
    assert set(await asyncio.gather(*(journal.accept(*opening(row)) for row in rows))) == {None}
    ids = [row.id for row in rows]
    [(calls, commits)] = sql("SELECT count(*), count(DISTINCT xmin::text) FROM calls WHERE id = ANY(%s::uuid[])", ids)
    assert calls == 600
    assert commits <= 6  # 600 calls in groups of at most 256, the first perhaps alone


@pytest.mark.parametrize(("options", "waits"), [(WRITER_OPTIONS, "on"), (RELAXED_OPTIONS, "off")])
async def test_only_a_relaxed_journal_answers_before_the_disk(new_journal: MakeJournal, options: str, waits: str):
    journal = await new_journal(writer_options=options)
    await journal.accept(*opening(row := a_call(journal)))
    assert await journal.move(*an_end(row))
    for lane in (journal.new_calls, journal.moves):
        shown = await lane.connection.execute("SHOW synchronous_commit")
        assert await shown.fetchone() == (waits,)


async def test_duplicates_in_one_group_leave_one_call(journal: Journal, sql: Sql):
    key = str(uuid4())
    rows = [a_call(journal, idempotency_key=key, keyed=True) for _ in range(10)]
    told = await asyncio.gather(*(journal.accept(*opening(row)) for row in rows))
    assert [existing is None for existing in told].count(True) == 1
    winner = rows[told.index(None)].id
    assert {existing for existing in told if existing} == {Existing(UUID(winner), "r")}
    assert sql("SELECT id::text FROM calls WHERE idempotency_key = %s", key) == [(winner,)]
    assert sql("SELECT count(*) FROM receipts WHERE call_id = ANY(%s::uuid[])", [row.id for row in rows]) == [(2,)]


async def test_a_key_is_taken_across_groups_and_processes(new_journal: MakeJournal):
    first, second = await new_journal(), await new_journal()
    key = str(uuid4())
    row = a_call(first, idempotency_key=key, keyed=True)
    assert await first.accept(*opening(row)) is None
    for journal in (first, second):
        again = a_call(journal, idempotency_key=key, keyed=True)
        assert await journal.accept(*opening(again)) == Existing(UUID(row.id), "r")


async def test_an_expired_key_is_free(new_journal: MakeJournal, sql: Sql):
    journal = await new_journal(key_ttl_s=0.0)
    key = str(uuid4())
    first, second = (a_call(journal, idempotency_key=key, keyed=True) for _ in range(2))
    assert await journal.accept(*opening(first)) is None
    assert await journal.accept(*opening(second)) is None
    assert sql("SELECT call_id::text FROM idempotency WHERE key = %s", key) == [(second.id,)]


async def test_a_key_that_is_not_taken_with_the_call_stays_free(journal: Journal):
    key = str(uuid4())
    assert await journal.accept(*opening(a_call(journal, idempotency_key=key, keyed=False))) is None
    assert await journal.find_key("report-agent", key) is None


async def test_a_poison_row_does_not_fail_its_neighbours(journal: Journal, sql: Sql):
    rows = [a_call(journal) for _ in range(20)]
    rows[7].capability = "no text of PostgreSQL holds \x00"
    results = await asyncio.gather(*(journal.accept(*opening(row)) for row in rows), return_exceptions=True)
    assert [index for index, result in enumerate(results) if result is not None] == [7]
    assert isinstance(results[7], psycopg.Error)
    found = sql("SELECT count(*) FROM calls WHERE id = ANY(%s::uuid[])", [row.id for row in rows])
    assert found == [(19,)]
    assert await journal.accept(*opening(a_call(journal))) is None


# --- Changing --------------------------------------------------------------------------------------------------------


async def test_an_open_call_is_changed_and_ended_by_its_owner(journal: Journal, sql: Sql):
    row = a_call(journal)
    await journal.accept(*opening(row))
    assert await journal.move(*a_move(row, "attempt_failed", "retry_scheduled"))
    assert await journal.move(*a_move(row, "routed", "forwarded", step=2, attempts=2, service_id="other"))
    assert await journal.move(*an_end(row, step=3))
    assert row_of(sql, row.id, "status, seq, step, attempts, service_id, node_id, output") == (
        "succeeded", 7, 3, 2, "other", "n1", "{}"
    )  # fmt: skip
    assert [kind for _seq, kind in told(sql, row.id)] == [
        "accepted", "forwarded", "attempt_failed", "retry_scheduled", "routed", "forwarded", "succeeded"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fence",
    [
        {"owner": str(uuid4())},
        {"epoch": 2},
        {"step": 2},
        {"step": 0},
        {"owner": None, "epoch": None, "step": None, "fence_attempt": 2},
    ],
    ids=["another owner", "another epoch", "a step left out", "a step back", "another attempt"],
)
async def test_a_write_outside_its_fence_changes_nothing(journal: Journal, sql: Sql, fence):
    row = a_call(journal)
    await journal.accept(*opening(row))
    assert await journal.move(*an_end(row, **fence)) is False
    assert row_of(sql, row.id) == ("running", 2, 0)
    assert told(sql, row.id) == [(1, "accepted"), (2, "forwarded")]


async def test_an_ended_call_never_changes(journal: Journal, sql: Sql):
    row = a_call(journal)
    await journal.accept(*opening(row))
    assert await journal.move(*an_end(row))
    assert await journal.move(*a_move(row, "failed", step=2, status="failed", ended_ms=row.accepted_ms)) is False
    assert await journal.move(MoveRow(row.id, 0, fence_attempt=1, status="running"), []) is False
    assert row_of(sql, row.id) == ("succeeded", 3, 1)


async def test_two_ends_at_once_leave_one(new_journal: MakeJournal, sql: Sql):
    """The owner's timeout and the node's own receipt, from two processes, many times over."""
    owner, other = await new_journal(), await new_journal()
    for _ in range(30):
        row = a_call(owner)
        await owner.accept(*opening(row))
        timeout = a_move(row, "timed_out", status="timed_out", ended_ms=row.accepted_ms + 1, error='{"code":"x"}')
        result = an_end(row, owner=None, epoch=None, step=None, fence_attempt=1)
        won = await asyncio.gather(owner.move(*timeout), other.move(*result))
        assert sorted(won) == [False, True]
        assert len(told(sql, row.id)) == 3
        assert told(sql, row.id)[-1][1] == row_of(sql, row.id)[0]


async def test_writes_of_one_call_keep_their_order(journal: Journal, sql: Sql):
    row = a_call(journal)
    await journal.accept(*opening(row))
    moves = [a_move(row, f"kind-{step}", step=step) for step in range(1, 20)]
    assert set(await asyncio.gather(*(journal.move(*move) for move in moves))) == {True}
    assert [kind for _seq, kind in told(sql, row.id)[2:]] == [f"kind-{step}" for step in range(1, 20)]


async def test_receipts_of_owner_and_node_are_numbered_without_gaps(new_journal: MakeJournal, sql: Sql):
    owner, other = await new_journal(), await new_journal()
    row = a_call(owner)
    await owner.accept(*opening(row))
    own = [owner.move(*a_move(row, "running", step=step)) for step in range(1, 11)]
    theirs = [
        other.move(MoveRow(row.id, 2, fence_attempt=1), receipts(row.id, "running", "running", attempt=1))
        for _ in range(10)
    ]
    assert set(await asyncio.gather(*own, *theirs)) == {True}
    assert [seq for seq, _kind in told(sql, row.id)] == list(range(1, 33))
    assert row_of(sql, row.id) == ("running", 32, 10)


async def test_a_poison_change_does_not_fail_its_neighbours(journal: Journal, sql: Sql):
    rows = [a_call(journal) for _ in range(10)]
    await asyncio.gather(*(journal.accept(*opening(row)) for row in rows))
    moves = [an_end(row) for row in rows]
    moves[3][0].table_revision = 2**40  # no integer of PostgreSQL
    results = await asyncio.gather(*(journal.move(*move) for move in moves), return_exceptions=True)
    assert [index for index, result in enumerate(results) if result is not True] == [3]
    assert isinstance(results[3], psycopg.Error)
    assert row_of(sql, rows[3].id)[0] == "running"
    assert {row_of(sql, row.id)[0] for row in rows if row is not rows[3]} == {"succeeded"}


async def test_large_texts_come_out_as_they_went_in(journal: Journal, sql: Sql):
    text = json.dumps({"text": '触达 \U0001f600 \\ " \u2028 \x00' * 50_000})
    row = a_call(journal, request=text)
    await journal.accept(row, [ReceiptRow(row.id, 1, "accepted", 0, detail=text)])
    await journal.move(MoveRow(row.id, 0, row.owner, 1, 1, status="succeeded", ended_ms=1, output=text), [])
    assert row_of(sql, row.id, "request, output") == (text, text)
    assert sql("SELECT detail FROM receipts WHERE call_id = %s", row.id) == [(text,)]


# --- The database goes away ------------------------------------------------------------------------------------------


async def test_a_change_in_doubt_that_was_committed_is_not_written_twice(
    new_journal: MakeJournal, line: Proxy, sql: Sql
):
    journal = await new_journal(line=line)
    row = a_call(journal)
    await journal.accept(*opening(row))
    line.lose_reply_to(row.id.encode())
    assert await journal.move(*an_end(row)) is True
    assert line.lost.is_set()
    assert told(sql, row.id) == [(1, "accepted"), (2, "forwarded"), (3, "succeeded")]
    assert row_of(sql, row.id) == ("succeeded", 3, 1)


async def test_doubt_about_one_change_does_not_hold_its_neighbours(new_journal: MakeJournal, line: Proxy, sql: Sql):
    journal = await new_journal(line=line)
    rows = [a_call(journal) for _ in range(30)]
    await asyncio.gather(*(journal.accept(*opening(row)) for row in rows))
    line.lose_reply_to(rows[20].id.encode())
    assert set(await asyncio.gather(*(journal.move(*an_end(row)) for row in rows))) == {True}
    assert {row_of(sql, row.id) for row in rows} == {("succeeded", 3, 1)}


async def test_a_change_waits_for_the_database(new_journal: MakeJournal, line: Proxy, sql: Sql):
    journal = await new_journal(line=line)
    row = a_call(journal)
    await journal.accept(*opening(row))
    line.cut()
    writing = asyncio.ensure_future(journal.move(*an_end(row)))
    with pytest.raises(Unavailable):
        await journal.accept(*opening(a_call(journal)))
    assert not writing.done()
    line.mend()
    assert await writing is True
    assert row_of(sql, row.id)[0] == "succeeded"


async def test_a_call_whose_acceptance_was_lost_is_refused_and_ended(new_journal: MakeJournal, line: Proxy, sql: Sql):
    """It was committed unseen: the caller was told that nothing is accepted, so nothing may come of it."""
    journal = await new_journal(line=line)
    key = str(uuid4())
    row = a_call(journal, idempotency_key=key, keyed=True)
    line.lose_reply_to(row.id.encode())
    with pytest.raises(Unavailable):
        await journal.accept(*opening(row))
    await becomes_true(lambda: row_of(sql, row.id)[0] == "rejected", "the doubtful call is ended")
    assert [kind for _seq, kind in told(sql, row.id)] == ["accepted", "forwarded", "rejected"]
    assert json.loads(row_of(sql, row.id, "error")[0])["code"] == "unavailable"
    assert await journal.find_key("report-agent", key) is None
    assert await journal.accept(*opening(a_call(journal, idempotency_key=key, keyed=True))) is None


@pytest.mark.parametrize("attempts", [1, 2], ids=["and only waited for", "and tried again"])
async def test_a_call_whose_acceptance_was_lost_may_have_been_taken_over_meanwhile(
    new_journal: MakeJournal, line: Proxy, sql: Sql, attempts: int
):
    """Its caller was told that nothing is accepted. What another process has made of it since stands."""
    other = await new_journal()
    await becomes_true(lambda: sql("SELECT held_since FROM process_leases WHERE owner = %s", other.owner), "it lives")
    journal = await new_journal(line=line)
    row = a_call(journal)
    line.lose_reply_to(row.id.encode())
    accepting = asyncio.ensure_future(journal.accept(*opening(row)))
    await becomes_true(line.lost.is_set, "it is committed")
    line.cut()
    with pytest.raises(Unavailable):
        await accepting
    taken: list[str] = []
    async with asyncio.timeout(10):
        while row.id not in taken:
            taken += await claimed(other)
    if attempts == 2:
        assert await other.move(*a_move(row, owner=str(other.owner), epoch=2, attempts=2))
    line.mend()
    if attempts == 1:
        await becomes_true(lambda: row_of(sql, row.id)[0] == "rejected", "the doubtful call is ended")
    else:
        assert await journal.accept(*opening(a_call(journal))) is None
        assert row_of(sql, row.id)[0] == "running"


async def test_reading_goes_on_as_soon_as_the_database_is_back(new_journal: MakeJournal, line: Proxy):
    """However long it was away: whoever asks makes the pool try again."""
    journal = await new_journal(line=line)
    loop = asyncio.get_running_loop()

    async def reads() -> bool:
        try:
            return await journal.read("SELECT 1 AS one") == [{"one": 1}]
        except Unavailable:
            return False

    assert await reads()
    line.cut()
    away_until = loop.time() + 3.3  # the rests of a pool that is left alone are 1, 2, 4, 8 … s
    while loop.time() < away_until:
        async with asyncio.TaskGroup() as readers:
            readers.create_task(asyncio.wait([asyncio.ensure_future(reads())], timeout=0.2))
    line.mend()
    back_at = loop.time()
    while not await reads():
        await asyncio.sleep(0.01)
    assert loop.time() - back_at < 2.0


async def test_reading_says_that_the_database_is_away(new_journal: MakeJournal, line: Proxy):
    journal = await new_journal(line=line)
    assert await journal.read("SELECT 1 AS one") == [{"one": 1}]
    line.cut()
    with pytest.raises(Unavailable):
        await journal.read("SELECT 1 AS one")
    line.mend()

    async def answers() -> bool:
        try:
            return await journal.read("SELECT 1 AS one") == [{"one": 1}]
        except Unavailable:
            return False

    async with asyncio.timeout(10):
        while not await answers():
            await asyncio.sleep(0.02)


# --- Leases, takeovers, waking ---------------------------------------------------------------------------------------


async def claimed(journal: Journal) -> list[str]:
    return [str(row["id"]) for row in await claim_orphans(journal, 100)]


async def test_a_living_processes_calls_are_nobody_elses(new_journal: MakeJournal, sql: Sql):
    owner, other = await new_journal(), await new_journal()
    row = a_call(owner)
    await owner.accept(*opening(row))
    await asyncio.sleep(2 * LEASE_S)  # long enough that a lease which nobody renews would have run out
    assert row.id not in await claimed(other)
    await owner.move(*an_end(row))


async def test_a_dead_processes_calls_are_taken_over_under_a_new_fence(new_journal: MakeJournal, sql: Sql):
    owner, other = await new_journal(), await new_journal()
    row, ended = a_call(owner), a_call(owner)
    for each in (row, ended):
        await owner.accept(*opening(each))
    await owner.move(*an_end(ended))
    await owner.stop()
    owner.tasks = []

    taken: list[str] = []
    async with asyncio.timeout(10):
        while row.id not in taken:
            taken += await claimed(other)
            await asyncio.sleep(0.02)
    assert ended.id not in taken and taken.count(row.id) == 1
    assert row_of(sql, row.id, "owner, epoch, step") == (other.owner, 2, 0)
    assert [seen.kind for seen in await seen_receipts(other, UUID(row.id))] == ["accepted", "forwarded"]

    assert await other.move(*an_end(row)) is False, "the old fence is dead"
    assert await other.move(*an_end(row, owner=str(other.owner), epoch=2)) is True


async def test_nobody_takes_over_before_all_had_the_time_to_renew_their_leases(new_journal: MakeJournal):
    orphaned = await new_journal()
    row = a_call(orphaned)
    await orphaned.accept(*opening(row))
    await orphaned.read("DELETE FROM process_leases WHERE owner = %s", orphaned.owner)
    patient = await new_journal(lease_s=30.0)
    await patient.accept(*opening(a_call(patient)))  # its lease stands
    assert await claimed(patient) == []


async def test_two_who_take_over_at_once_share_the_calls(new_journal: MakeJournal, sql: Sql):
    owner, one, other = await new_journal(), await new_journal(), await new_journal()
    rows = [a_call(owner) for _ in range(40)]
    await asyncio.gather(*(owner.accept(*opening(row)) for row in rows))
    await owner.stop()
    owner.tasks = []
    taken: list[str] = []
    async with asyncio.timeout(10):
        while len(taken) < len(rows):
            for found in await asyncio.gather(claimed(one), claimed(other)):
                taken += found
    assert sorted(taken) == sorted(row.id for row in rows)


async def test_the_owner_is_woken_by_a_receipt_that_came_elsewhere(new_journal: MakeJournal):
    owner, other = await new_journal(), await new_journal()
    row = a_call(owner)
    await owner.accept(*opening(row))
    woken = asyncio.Event()
    with owner.following(row.id, woken.set):
        report = MoveRow(row.id, 1, fence_attempt=1, tell_owner=True)
        assert await other.move(report, receipts(row.id, "running", attempt=1))
        async with asyncio.timeout(10):
            await woken.wait()


async def test_a_lease_is_held_while_the_process_lives_and_given_back_at_its_end(new_journal: MakeJournal, sql: Sql):
    journal = await new_journal()
    await journal.accept(*opening(row := a_call(journal)))
    assert sql("SELECT lease_expires_at > now() FROM process_leases WHERE owner = %s", journal.owner) == [(True,)]
    await journal.move(*an_end(row))
    await journal.stop()
    journal.tasks = []
    assert sql("SELECT count(*) FROM process_leases WHERE owner = %s", journal.owner) == [(0,)]


async def test_a_task_that_loses_a_cancel_is_asked_to_end_again():
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        await asyncio.sleep(60)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end([task])
    assert task.cancelled()
