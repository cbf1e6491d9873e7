"""The simulator's model of the journal's SQL against PostgreSQL: random histories, the same answers and the same rows.

Both are given the very same statements, with the rows as the journal encodes them.
"""

import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from receipts import cancelling, following, journal, reading, recovery, waiting
from receipts.core.lifecycle import TERMINAL
from receipts.prepared import Prepared
from receipts.rows import CallRow, KeyRow, MoveRow, ReceiptRow, json_of
from routing import dispatch, node_receipts
from tests.integration.receipts.conftest import Sql
from tests.simulation.model import STATEMENTS, Tables, whole_row

HISTORIES, STATEMENTS_EACH = 16, 60
FAR_MS = 3_600_000
CAPABILITIES = ["file_summary", "ocr", "zip", "other"]
BY_ITS_OWN_CLOCK = {"ended_at", "at"}
"""Columns that some statements fill with the server's `now()`: only whether they are filled is compared then."""


class Both:
    """PostgreSQL and the model, side by side."""

    def __init__(self, connection: psycopg.AsyncConnection, lanes: dict[str, Prepared], chance: Random):
        self.connection, self.lanes, self.chance = connection, lanes, chance
        self.model = Tables()
        self.now_ms = 0
        self.owners = [str(UUID(int=chance.getrandbits(128), version=4)) for _ in range(4)]
        self.calls: list[str] = []
        self.keys = [f"key {chance.getrandbits(40)}" for _ in range(6)]

    async def look_at_the_clock(self) -> None:
        row = await (await self.connection.execute("SELECT extract(epoch FROM now()) * 1000 AS ms")).fetchone()
        assert row is not None
        self.now_ms = float(row["ms"])

    async def ask(self, sql: str, *parameters: Any) -> None:
        """One statement of the journal's, at both."""
        given = parameters[0] if parameters and isinstance(parameters[0], dict) else parameters
        result = await self.connection.execute(sql, given)
        real = await result.fetchall() if result.description else []
        modelled = self.model.run(sql, parameters, now_ms=self.now_ms)
        assert [facts(row, sql) for row in sorted(modelled, key=str)] == [
            facts(row, sql) for row in sorted(real, key=str)
        ], sql

    # --- The lanes ---------------------------------------------------------------------------------------------------

    async def accept(self) -> None:
        """A group of new calls, some of them under keys, each key once (as the journal sees to)."""
        chance, rows, keys, receipts = self.chance, [], [], []
        taken: set[str] = set()
        for _ in range(chance.randint(1, 4)):
            call_id = str(UUID(int=chance.getrandbits(128), version=4))
            key = chance.choice(self.keys) if chance.random() < 0.5 else None
            keyed = key is not None and key not in taken and chance.random() < 0.8
            deadline_ms = int(self.now_ms) + chance.choice((-FAR_MS, FAR_MS))
            row = CallRow(
                call_id, "a" * 32, "caller", "caller", chance.choice(CAPABILITIES), "running", 3, int(self.now_ms),
                deadline_ms, '{"payload":{}}', f"digest {key}", "p", chance.choice(self.owners),
                service_id="summarizer", node_id="n1", attempts=chance.randint(0, 1), idempotency_key=key, keyed=keyed,
                labels={"tenant": "emea"} if chance.random() < 0.3 else None, idempotent=chance.random() < 0.5,
                first_forwarded_ms=int(self.now_ms) if chance.random() < 0.5 else None,
            )  # fmt: skip
            if chance.random() < 0.4:
                row.async_rank, row.owner = chance.randint(0, 2), str(journal.NOBODY)
                if chance.random() < 0.1:
                    row.status, row.ended_ms, row.error = "rejected", int(self.now_ms), '{"code":"x"}'
            noted = [
                ReceiptRow(call_id, n, kind, int(self.now_ms), row.attempts or None, "summarizer", "n1")
                for n, kind in enumerate(chance.choice((["accepted"], ["accepted", "routed", "forwarded"])), start=1)
            ]
            row.seq = len(noted)
            if keyed and key is not None:
                taken.add(key)
                expires_ms = int(self.now_ms) + chance.choice((-FAR_MS, FAR_MS))
                keys.append(KeyRow("caller", key, call_id, row.request_digest, expires_ms))
            rows.append(row)
            receipts += noted
        group = json_of(keys), json_of(rows), json_of(receipts)
        real = await self.lanes["accept"].run(*group)
        modelled = self.model.accept(*group, now_ms=self.now_ms)
        assert sorted(modelled) == sorted(real)
        self.calls += [str(call_id) for call_id, _queued in modelled]

    async def move(self) -> None:
        """A group of changes, inside and outside their fences."""
        rows, receipts = [], []
        for call_id in self.chance.sample(self.calls, min(len(self.calls), self.chance.randint(1, 4))):
            row, noted = self.some_move(call_id)
            rows.append(row)
            receipts += noted
        group = journal.parameters_of_move(rows, receipts)
        real = await self.lanes["move"].run(*group)
        modelled = self.model.move(*group)
        self.model.take_notices()
        assert sorted(modelled) == sorted(real)

    def some_move(self, call_id: str) -> tuple[MoveRow, list[ReceiptRow]]:
        chance, stored = self.chance, self.model.calls[call_id]
        kinds = chance.choice(([], ["running"], ["attempt_failed", "retry_scheduled"], ["routed", "forwarded"]))
        row = MoveRow(call_id, len(kinds))
        if chance.random() < 0.7:
            row.owner = stored.row.owner if chance.random() < 0.9 else chance.choice(self.owners)
            row.epoch = stored.epoch - (chance.random() < 0.1)
            row.step = stored.step + chance.choice((1, 1, 1, 1, 0, 2))
        else:
            row.fence_attempt = stored.row.attempts + (chance.random() < 0.2)
            row.fence_seq = stored.row.seq + (chance.random() < 0.2) if chance.random() < 0.5 else None
            row.tell_owner = chance.random() < 0.5
        if chance.random() < 0.15:
            row.status, row.ended_ms, kinds = "succeeded", int(self.now_ms), ["succeeded"]
            row.output, row.error = chance.choice((('{"n":1}', None), (None, '{"code":"x"}')))
        elif chance.random() < 0.5:
            row.status, row.attempts = "running", chance.randint(1, 3)
            row.service_id, row.node_id = f"s{chance.randint(1, 3)}", f"n{chance.randint(1, 3)}"
            row.first_forwarded_ms, row.idempotent = int(self.now_ms), chance.random() < 0.5
            row.route_id, row.table_revision, row.capability = "r", chance.randint(1, 9), "other"
        if chance.random() < 0.2:
            row.due_ms = int(self.now_ms) + 500
        row.count = len(kinds)
        noted = [
            ReceiptRow(
                call_id, n, kind, int(self.now_ms), chance.randint(1, 3), "s1", "n1", chance.choice((None, '"x"'))
            )
            for n, kind in enumerate(kinds, start=1)
        ]
        return row, noted

    # --- Everything else ---------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """One statement, whichever."""
        await self.look_at_the_clock()
        chance = self.chance
        if not self.calls or chance.random() < 0.15:
            await self.accept()
            return
        if chance.random() < 0.4:
            await self.move()
            return
        call_id, owner = UUID(chance.choice(self.calls)), UUID(chance.choice(self.owners))
        stored, number = self.model.calls[str(call_id)], chance.randint(1, 3)
        doubted = [{"id": str(call_id), "owner": stored.row.owner, "epoch": stored.epoch, "step": stored.step + more}
                   for more in (0, 1)]  # fmt: skip
        known = [one for one, stored in self.model.open.items() if chance.random() < 0.5]
        known_epochs = [self.model.calls[one].epoch - (chance.random() < 0.2) for one in known]
        some = [UUID(one) for one in chance.sample(self.calls, min(len(self.calls), 3))]
        seqs = [self.model.calls[str(one)].row.seq - chance.randint(0, 1) for one in some]
        held = [one for one, stored in self.model.open.items() if stored.row.async_rank is not None]
        held = chance.sample(held, min(len(held), 3))
        given = {
            "nobody": journal.NOBODY,
            "ids": held,
            "epochs": [self.model.calls[one].epoch - (chance.random() < 0.1) for one in held],
            "owner": UUID(self.model.calls[held[0]].row.owner) if held else owner,
        }
        error = '{"code":"cancelled","detail":"by a test"}'
        at = await (await self.connection.execute("SELECT now() AS at")).fetchone()
        assert at is not None
        asked: dict[str, tuple[Any, ...]] = {
            journal.RENEW_LEASE: (owner, "test", "host", 1, chance.choice((-5.0, 600.0))),
            journal.GIVE_LEASE_BACK: (owner,),
            journal.FIND_KEY: ("caller", chance.choice(self.keys)),
            journal.ALREADY_APPLIED: (json.dumps([chance.choice(doubted)]),),
            following.MARK: (some, owner, owner),
            following.LOOK: (owner, some),
            following.MOVED: (owner, f"{{{','.join(map(str, some))}}}", f"{{{','.join(str(seq) for seq in seqs)}}}"),
            journal.END_DOUBTFUL: ([str(call_id)],),
            cancelling.CANCEL: ({"id": call_id, "at": at["at"], "error": error},),
            cancelling.NOT_TOLD: (call_id, number, "s1", "n1", '"late"'),
            recovery.CLAIM: (
                owner, 10.0, journal.NOBODY, owner, chance.choice((-600.0, 600.0)), chance.choice((3, 1000))
            ),
            recovery.FORGOTTEN: (owner, known, known_epochs),
            recovery.SEEN: (call_id,),
            reading.READ_CALL: (call_id,),
            dispatch.REFRESH: (number, number, call_id),
            node_receipts.ATTEMPT_OF: (number, number, call_id),
            waiting.TAKE: (
                {"kinds": [], "rooms": [], "window": chance.randint(1, 4), "at_most": 1000,
                 "overdue": chance.choice((0, 1000)), "owner": owner},
            ),
            waiting.GIVE_BACK: (given,),
            waiting.IS_ANY_WAITING: (),
            waiting.ARE_WAITING: (chance.sample(CAPABILITIES, 2),),
            waiting.WHAT_IS_DUE: (),
            following.STANDING: (list(TERMINAL), some),
            following.ROWS: (some,),
            node_receipts.KEEP_LATE: (call_id, stored.row.seq + chance.randint(0, 1), number, "s1", "n1", '"late"'),
        }  # fmt: skip
        assert asked.keys() == STATEMENTS.keys(), "every statement that is modelled is compared"
        sql = chance.choice(list(asked))
        if sql == recovery.CLAIM and chance.random() < 0.7:  # or hardly anybody may claim
            await self.ask(journal.RENEW_LEASE, owner, "test", "host", 1, 600.0)
        if (
            sql == waiting.TAKE and chance.random() < 0.5
        ):  # of one capability: between several nobody's turn is promised
            capability = chance.choice(CAPABILITIES)
            others = [one for one in CAPABILITIES if one != capability]
            narrow = {"kinds": [capability, *others], "rooms": [chance.randint(0, 3), *(0 for _ in others)]}
            asked[sql] = ({**asked[sql][0], **narrow, "at_most": chance.randint(0, 3)},)
        if sql == recovery.CLAIM and asked[sql][-1] < len(self.model.open):
            asked[sql] = (*asked[sql][:-1], 1000)  # which of the equal ones come first is nobody's promise
        await self.ask(sql, *asked[sql])
        self.model.take_notices()


def facts(row: dict[str, Any], sql: str) -> dict[str, Any]:
    """A row as both can have it: what the server's clock has filled is filled."""
    told = {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()}
    for name in BY_ITS_OWN_CLOCK & told.keys():
        told[name] = told[name] is not None
    told.pop("count", None)
    return {name: value for name, value in told.items() if name not in UNTOLD}


UNTOLD = {"created_at"}


@pytest.fixture
async def lanes(database: str) -> AsyncIterator[tuple[psycopg.AsyncConnection, dict[str, Prepared]]]:
    reading_one = await psycopg.AsyncConnection.connect(database, autocommit=True, row_factory=dict_row)
    accepting = await journal.connect(database, "test accept", journal.WRITER_OPTIONS)
    moving = await journal.connect(database, "test move", journal.WRITER_OPTIONS)
    yield (
        reading_one,
        {  # type: ignore[misc]
            "accept": Prepared(accepting, "write", journal.ACCEPT),
            "move": Prepared(moving, "write", journal.MOVE),
        },
    )
    for connection in (reading_one, accepting, moving):
        await connection.close()


async def test_the_model_answers_and_writes_as_postgresql_does(lanes, sql: Sql):
    connection, prepared = lanes
    for history in range(HISTORIES):
        sql("TRUNCATE calls, receipts, idempotency, process_leases, waiting_calls")
        both = Both(connection, prepared, Random(history))
        for _ in range(STATEMENTS_EACH):
            await both.step()
        await same_rows(both, history)


async def same_rows(both: Both, history: int) -> None:
    rows = await (await both.connection.execute("SELECT * FROM calls")).fetchall()
    real = {str(row["id"]): row for row in rows}
    assert real.keys() == both.model.calls.keys()
    for call_id, stored in both.model.calls.items():
        assert facts(whole_row(stored), "") == facts(real[call_id], ""), f"history {history}"
        told = "SELECT seq, kind, attempt, service_id, node_id, detail FROM receipts WHERE call_id = %s ORDER BY seq"
        receipts = await (await both.connection.execute(told, (call_id,))).fetchall()
        assert [tuple(row.values()) for row in receipts] == [
            (r.n, r.kind, r.attempt, r.service_id, r.node_id, r.detail) for r in stored.receipts
        ], f"history {history}"
    keys = await (
        await both.connection.execute("SELECT caller, key, call_id, request_digest FROM idempotency")
    ).fetchall()
    assert {(row["caller"], row["key"]): (str(row["call_id"]), row["request_digest"]) for row in keys} == {
        key: (known.call_id, known.request_digest) for key, known in both.model.keys.items()
    }
    queue = await (
        await both.connection.execute("SELECT call_id, capability, async_rank FROM waiting_calls")
    ).fetchall()
    assert {str(row["call_id"]): (row["capability"], row["async_rank"]) for row in queue} == {
        call_id: (one.capability, one.async_rank) for call_id, one in both.model.waiting.items()
    }
    leases = await (await both.connection.execute("SELECT owner FROM process_leases")).fetchall()
    assert {str(row["owner"]) for row in leases} == both.model.leases.keys()
