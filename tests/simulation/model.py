"""The pure model of the journal's SQL: what each statement makes of the tables, and what it answers.

`tests/integration/receipts/test_model.py` holds it against PostgreSQL by random histories. Moments are epoch
milliseconds, `now` is an argument; rows come out as psycopg gives them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from receipts import cancelling, following, journal, reading, recovery, waiting
from receipts.journal import DUE
from receipts.rows import CallRow, KeyRow, MoveRow, ReceiptRow
from routing import dispatch, node_receipts

Rows = list[dict[str, Any]]
decode_calls = msgspec.json.Decoder(list[CallRow]).decode
decode_keys = msgspec.json.Decoder(list[KeyRow]).decode
decode_moves = msgspec.json.Decoder(list[MoveRow]).decode
decode_receipts = msgspec.json.Decoder(list[ReceiptRow]).decode


@dataclass(slots=True, eq=False)
class Stored:
    """One row of `calls` with its receipts. `row` has the columns that it was accepted with, kept current."""

    row: CallRow
    epoch: int = 1
    step: int = 0
    output: str | None = None
    due_ms: int | None = None
    watchers: list[str] | None = None
    receipts: list[ReceiptRow] = field(default_factory=list)
    """In the order of their numbers, `n` being the number."""


@dataclass(slots=True)
class Lease:
    held_since_ms: float
    expires_ms: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """One row of `waiting_calls`."""

    capability: str
    async_rank: int
    due_ms: float
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Notice:
    """One NOTIFY."""

    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class Change:
    """One row written by one statement: what watches the database is told of it."""

    call: Stored
    statement: str
    receipts: list[ReceiptRow]
    move: MoveRow | None = None


class Tables:
    """The rows. Every method is one statement, applied wholly."""

    def __init__(self) -> None:
        self.calls: dict[str, Stored] = {}
        self.open: dict[str, Stored] = {}
        """Those of them that have not ended, oldest first."""
        self.waiting: dict[str, Waiting] = {}
        """Those that wait for an engine, by their ids; some of them may have been cancelled."""
        self.keys: dict[tuple[str, str], KeyRow] = {}
        self.leases: dict[str, Lease] = {}
        self.changed: Callable[[Change], None] = lambda change: None
        self.notices: list[Notice] = []
        """Since they were last taken."""

    # --- The lanes' statements ---------------------------------------------------------------------------------------

    def accept(self, keys: bytes, calls: bytes, receipts: bytes, *, now_ms: float) -> list[tuple[str | None, ...]]:
        """ACCEPT"""
        taken: set[str] = set()
        for key in sorted(decode_keys(keys), key=lambda key: (key.caller, key.key)):
            known = self.keys.get((key.caller, key.key))
            if known is None or known.expires_ms <= now_ms:
                self.keys[key.caller, key.key] = key
                taken.add(key.call_id)
        new: dict[str, Stored] = {}
        for row in decode_calls(calls):
            if not row.keyed or row.id in taken:
                new[row.id] = Stored(row)
        for receipt in decode_receipts(receipts):
            if (stored := new.get(receipt.call_id)) is not None:
                stored.receipts.append(receipt)
        queued = 0
        for call_id, stored in new.items():
            self.calls[call_id] = stored
            if stored.row.ended_ms is None:
                self.open[call_id] = stored
                queued += self.enqueue(stored, now_ms)
            self.changed(Change(stored, "accept", stored.receipts))
        if queued:
            self.notices.append(Notice(DUE, ""))
        return [(call_id, str(queued)) for call_id in new]

    def enqueue(self, stored: Stored, now_ms: float) -> bool:
        """Have the call wait for an engine if nobody waits for it; whether it does now and did not."""
        row = stored.row
        if row.async_rank is None or row.id in self.waiting:
            return False
        self.waiting[row.id] = Waiting(row.capability, row.async_rank, now_ms, row.deadline_ms)
        return True

    def move(self, moves: bytes, receipts: bytes, _lowest: bytes, _highest: bytes) -> list[tuple[str | None, ...]]:
        """MOVE"""
        written: dict[str, list[ReceiptRow]] = {}
        for receipt in decode_receipts(receipts):
            written.setdefault(receipt.call_id, []).append(receipt)
        before = len(self.notices)
        moved = [m for m in decode_moves(moves) if self.is_inside(m)]
        for m in moved:
            self.apply(m, written.get(m.id, []))
        told = str(len(self.notices) - before)
        return [(m.id, told) for m in moved]

    def is_inside(self, m: MoveRow) -> bool:
        """The fence: the call is open, and the owner's or the attempt's to change."""
        stored = self.open.get(m.id)
        if stored is None:
            return False
        row = stored.row
        return (
            (m.owner is None or (row.owner == m.owner and stored.epoch == m.epoch and stored.step == (m.step or 0) - 1))
            and (m.fence_attempt is None or row.attempts == m.fence_attempt)
            and (m.fence_seq is None or row.seq == m.fence_seq)
        )

    def apply(self, m: MoveRow, receipts: list[ReceiptRow]) -> None:
        stored = self.open[m.id]
        row = stored.row
        for receipt in receipts:
            receipt.n += row.seq
        stored.receipts += receipts
        row.seq += m.count
        for name in MOVED:
            if (value := getattr(m, name)) is not None:
                setattr(row, name, value)
        if m.step is not None:
            stored.step = m.step
        if m.output is not None:
            stored.output = m.output
        if row.first_forwarded_ms is None:
            row.first_forwarded_ms = m.first_forwarded_ms
        row.ended_ms, stored.due_ms = m.ended_ms, m.due_ms
        if m.ended_ms is not None:
            del self.open[m.id]
            self.tell(stored.watchers or (), m.id)
        if m.tell_owner:
            self.tell([row.owner], m.id)
        self.changed(Change(stored, "move", receipts, m))

    # --- Everything else, by its text --------------------------------------------------------------------------------

    def run(self, sql: str, parameters: tuple[Any, ...], *, now_ms: float) -> Rows:
        """Raises KeyError for a statement that is not modelled."""
        return STATEMENTS[sql](self, now_ms, *parameters)

    def renew_lease(self, now_ms: float, owner: UUID, role: str, host: str, pid: int, lease_s: float) -> Rows:
        held = self.leases.get(str(owner))
        since_ms = now_ms if held is None or held.expires_ms < now_ms else held.held_since_ms
        self.leases[str(owner)] = Lease(since_ms, now_ms + lease_s * 1000)
        return []

    def give_lease_back(self, now_ms: float, owner: UUID) -> Rows:
        self.leases.pop(str(owner), None)
        return []

    def find_key(self, now_ms: float, caller: str, key: str) -> Rows:
        known = self.keys.get((caller, key))
        if known is None or known.expires_ms <= now_ms:
            return []
        return [{"call_id": UUID(known.call_id), "request_digest": known.request_digest}]

    def already_applied(self, now_ms: float, moves: str) -> Rows:
        return [
            {"id": UUID(m["id"])}
            for m in msgspec.json.decode(moves)
            if (stored := self.calls.get(m["id"])) is not None
            and (stored.row.owner, stored.epoch) == (m["owner"], m["epoch"])
            and stored.step >= m["step"]
        ]

    def mark(self, now_ms: float, ids: list[UUID], owner: UUID, _owner: UUID) -> Rows:
        for call_id in ids:
            stored = self.open.get(str(call_id))
            if stored is not None and str(owner) not in (stored.watchers or ()):
                stored.watchers = [*(stored.watchers or ()), str(owner)]
        return []

    def look(self, now_ms: float, owner: UUID, ids: list[UUID]) -> Rows:
        found = [(call_id, self.calls.get(str(call_id))) for call_id in ids]
        return [
            {
                "id": call_id,
                "seq": stored.row.seq,
                "ended": stored.row.ended_ms is not None,
                "marked": str(owner) in (stored.watchers or ()),
            }
            for call_id, stored in found
            if stored is not None
        ]

    def moved(self, now_ms: float, owner: UUID, ids: str, seqs: str) -> Rows:
        known = dict(zip(ids[1:-1].split(","), map(int, seqs[1:-1].split(",")), strict=True))
        rows = self.look(now_ms, owner, [UUID(call_id) for call_id in known])
        return [row for row in rows if row["seq"] != known[str(row["id"])]]

    def standing(self, now_ms: float, terminal: list[str], ids: list[UUID]) -> Rows:
        found = [(call_id, self.calls.get(str(call_id))) for call_id in ids]
        return [
            {
                "id": call_id,
                "caller": stored.row.caller,
                "seq": stored.row.seq,
                "ended": stored.row.ended_ms is not None,
                "last_seq": None
                if stored.row.ended_ms is None
                else max((receipt.n for receipt in stored.receipts if receipt.kind in terminal), default=None),
            }
            for call_id, stored in found
            if stored is not None
        ]

    def rows(self, now_ms: float, ids: list[UUID]) -> Rows:
        found = [whole_row(stored) for call_id in ids if (stored := self.calls.get(str(call_id))) is not None]
        return [{name: row[name] for name in reading.SHOWN} for row in found]

    def end_doubtful(self, now_ms: float, ids: list[str]) -> Rows:
        for call_id in ids:
            stored = self.open.get(call_id)
            if stored is not None and stored.row.attempts <= (1 if stored.row.async_rank is None else 0):
                stored.row.error = DOUBTED
                self.end(stored, "rejected", ReceiptRow(call_id, 0, "rejected", int(now_ms), detail=UNAVAILABLE))
                self.keys = {key: known for key, known in self.keys.items() if known.call_id != call_id}
        return []

    def cancel(self, now_ms: float, facts: dict[str, Any]) -> Rows:
        stored = self.open.get(str(facts["id"]))
        if stored is None:
            return []
        row = stored.row
        row.error, stored.due_ms = facts["error"], None
        at = row.attempts or None, row.service_id, row.node_id, facts["error"]
        told = [*(stored.watchers or ()), row.owner]
        self.end(stored, "cancelled", ReceiptRow(row.id, 0, "cancelled", int(now_ms), *at))
        self.tell(told, row.id)
        return [{"id": facts["id"], "count": len(told)}]

    def end(self, stored: Stored, status: str, receipt: ReceiptRow) -> None:
        row = stored.row
        row.status, row.ended_ms = status, receipt.at_ms
        row.seq += 1
        receipt.n = row.seq
        stored.receipts.append(receipt)
        del self.open[row.id]
        self.changed(Change(stored, status, [receipt]))

    def claim(
        self, now_ms: float, owner: UUID, overdue_s: float, nobody: UUID, _owner: UUID, lease_s: float, limit: int
    ) -> Rows:
        mine = self.leases.get(str(owner))
        if mine is None or mine.expires_ms <= now_ms or mine.held_since_ms >= now_ms - lease_s * 1000:
            return []
        alive = {str(nobody), *(process for process, lease in self.leases.items() if lease.expires_ms > now_ms)}
        overdue_ms = now_ms - overdue_s * 1000
        due = sorted(
            call_id
            for call_id, stored in self.open.items()
            if stored.row.deadline_ms < overdue_ms or stored.row.owner not in alive
        )
        return self.fence([self.open[call_id] for call_id in due[:limit]], owner, "claim")

    def forgotten(self, now_ms: float, owner: UUID, ids: list[str], epochs: list[int]) -> Rows:
        carried = set(zip(ids, epochs, strict=True))
        mine = [s for s in self.open.values() if s.row.owner == str(owner) and s.row.deadline_ms > now_ms]
        return self.fence([s for s in mine if (s.row.id, s.epoch) not in carried], owner, "claim")

    def fence(self, calls: list[Stored], owner: UUID, statement: str) -> Rows:
        """The calls are this process's from now on, and nobody else's."""
        for stored in calls:
            stored.row.owner, stored.step = str(owner), 0
            stored.epoch += 1
            self.changed(Change(stored, statement, []))
        return [whole_row(stored) for stored in calls]

    # --- Calls that wait for an engine -------------------------------------------------------------------------------

    def take(self, now_ms: float, facts: dict[str, Any]) -> Rows:
        rooms = dict(zip(facts["kinds"], facts["rooms"], strict=True))
        lines: dict[str, list[tuple[int, float, str]]] = {}
        overdue: list[tuple[int, str]] = []
        for call_id, one in self.waiting.items():
            if one.due_ms <= now_ms:
                lines.setdefault(one.capability, []).append((one.async_rank, one.due_ms, call_id))
            if one.deadline_ms <= now_ms:
                overdue.append((one.deadline_ms, call_id))
        turns: list[tuple[int, int, str, str]] = []
        for capability, line in lines.items():
            heads = sorted(line)[: rooms.get(capability, facts["window"])]
            of_rank: dict[int, int] = {}
            for rank, _due_ms, call_id in heads:
                of_rank[rank] = of_rank.get(rank, 0) + 1
                turns.append((rank, of_rank[rank], capability, call_id))
        due = [call_id for *_turn, call_id in sorted(turns)[: facts["at_most"]]]
        taken = dict.fromkeys([*due, *(call_id for _, call_id in sorted(overdue)[: facts["overdue"]])])
        for call_id in taken:
            del self.waiting[call_id]
        mine = [self.open[call_id] for call_id in taken if call_id in self.open]
        return self.fence(mine, facts["owner"], "take")

    def give_back(self, now_ms: float, facts: dict[str, Any]) -> Rows:
        given = []
        for call_id, epoch in zip(facts["ids"], facts["epochs"], strict=True):
            stored = self.open.get(call_id)
            if stored is None or (stored.row.owner, stored.epoch) != (str(facts["owner"]), epoch):
                continue
            stored.row.owner, stored.due_ms = str(facts["nobody"]), None
            if self.enqueue(stored, now_ms):
                given.append({"call_id": UUID(call_id)})
            self.changed(Change(stored, "give back", []))
        return given

    def is_any_waiting(self, now_ms: float) -> Rows:
        return [{"any": any(one.due_ms <= now_ms for one in self.waiting.values())}]

    def are_waiting(self, now_ms: float, capabilities: list[str]) -> Rows:
        waiting = {one.capability for one in self.waiting.values() if one.due_ms <= now_ms}
        return [{"name": capability} for capability in capabilities if capability in waiting]

    def what_is_due(self, now_ms: float) -> Rows:
        due = any(row.due_ms <= now_ms or row.deadline_ms <= now_ms for row in self.waiting.values())
        return [{"calls": due, "callbacks": False}]

    # --- About single calls ------------------------------------------------------------------------------------------

    def read_call(self, now_ms: float, call_id: UUID) -> Rows:
        stored = self.calls.get(str(call_id))
        if stored is None:
            return []
        row = stored.row
        return [
            {
                "id": call_id,
                "trace_id": row.trace_id,
                "status": row.status,
                "route_id": row.route_id,
                "table_revision": row.table_revision,
                "service_id": row.service_id,
                "node_id": row.node_id,
                "attempts": row.attempts,
                "accepted_at": moment(row.accepted_ms),
                "ended_at": moment(row.ended_ms),
                "deadline": moment(row.deadline_ms),
                "output": stored.output,
                "error": row.error,
            }
        ]

    def seen(self, now_ms: float, call_id: UUID) -> Rows:
        stored = self.calls.get(str(call_id))
        return (
            []
            if stored is None
            else [
                {name: getattr(receipt, name) for name in ("kind", "attempt", "service_id", "node_id", "detail")}
                for receipt in stored.receipts
            ]
        )

    def refresh(self, now_ms: float, number: int, _number: int, call_id: UUID) -> Rows:
        stored = self.calls.get(str(call_id))
        if stored is None:
            return []
        of_attempt = [receipt for receipt in stored.receipts if receipt.attempt == number]
        failures = [receipt.detail for receipt in of_attempt if receipt.kind == "attempt_failed"]
        return [
            {
                "ended_at": moment(stored.row.ended_ms),
                "owner": uuid_of(stored.row.owner),
                "epoch": stored.epoch,
                "failure": failures[0] if failures else None,
                "running": any(receipt.kind == "running" for receipt in of_attempt),
            }
        ]

    def attempt_of(self, now_ms: float, number: int, _number: int, call_id: UUID) -> Rows:
        stored = self.calls.get(str(call_id))
        if stored is None:
            return []
        of_attempt = [receipt for receipt in stored.receipts if receipt.attempt == number]
        forwarded = [receipt for receipt in of_attempt if receipt.kind == "forwarded"] or [None]
        known = [[receipt.kind, receipt.detail] for receipt in of_attempt if receipt.kind in SAID_BY_NODES]
        row = stored.row
        return [
            {
                "trace_id": row.trace_id,
                "status": row.status,
                "seq": row.seq,
                "attempts": row.attempts,
                "owner": uuid_of(row.owner),
                "ended_at": moment(row.ended_ms),
                "capability": row.capability,
                "output": stored.output,
                "service_id": one.service_id if one is not None else None,
                "node_id": one.node_id if one is not None else None,
                "known": known or None,
            }
            for one in forwarded
        ]

    def keep_late(
        self, now_ms: float, call_id: UUID, seq: int, attempt: int, service_id: str, node_id: str, detail: str
    ) -> Rows:
        stored = self.calls.get(str(call_id))
        if stored is None or stored.row.seq != seq:
            return []
        return self.late(stored, now_ms, attempt, service_id, node_id, detail)

    def not_told(self, now_ms: float, call_id: UUID, attempt: int, service_id: str, node_id: str, detail: str) -> Rows:
        stored = self.calls.get(str(call_id))
        return [] if stored is None else self.late(stored, now_ms, attempt, service_id, node_id, detail)

    def late(self, stored: Stored, now_ms: float, attempt: int, service_id: str, node_id: str, detail: str) -> Rows:
        stored.row.seq += 1
        receipt = ReceiptRow(
            stored.row.id, stored.row.seq, "late_result", int(now_ms), attempt, service_id, node_id, detail
        )
        stored.receipts.append(receipt)
        self.changed(Change(stored, "late", [receipt]))
        return [{"seq": stored.row.seq}]

    # --- For who looks on --------------------------------------------------------------------------------------------

    def tell(self, processes: Iterable[str], call_id: str) -> None:
        """NOTIFY each of them."""
        self.notices += [Notice(f"reach_{process.replace('-', '')}", call_id) for process in processes]

    def take_notices(self) -> list[Notice]:
        if not self.notices:
            return []
        told, self.notices = self.notices, []
        return told

    def forget(self, call_id: str) -> None:
        """Retention: an ended call, its receipts and its key."""
        stored = self.calls.pop(call_id)
        row = stored.row
        if row.idempotency_key is not None:
            known = self.keys.get((row.caller, row.idempotency_key))
            if known is not None and known.call_id == call_id:
                del self.keys[row.caller, row.idempotency_key]


MOVED = (
    "status",
    "error",
    "capability",
    "route_id",
    "table_revision",
    "service_id",
    "node_id",
    "attempts",
    "idempotent",
)
SAID_BY_NODES = frozenset({"running", "attempt_failed", "succeeded", "failed", "late_result"})
DOUBTED = '{"code":"unavailable","detail":"the database was away while the call was being accepted"}'
UNAVAILABLE = '{"code":"unavailable"}'
STATEMENTS: dict[str, Callable[..., Rows]] = {
    journal.RENEW_LEASE: Tables.renew_lease,
    journal.GIVE_LEASE_BACK: Tables.give_lease_back,
    journal.FIND_KEY: Tables.find_key,
    journal.ALREADY_APPLIED: Tables.already_applied,
    following.MARK: Tables.mark,
    following.LOOK: Tables.look,
    following.MOVED: Tables.moved,
    following.STANDING: Tables.standing,
    following.ROWS: Tables.rows,
    journal.END_DOUBTFUL: Tables.end_doubtful,
    cancelling.CANCEL: Tables.cancel,
    cancelling.NOT_TOLD: Tables.not_told,
    recovery.CLAIM: Tables.claim,
    recovery.FORGOTTEN: Tables.forgotten,
    recovery.SEEN: Tables.seen,
    waiting.TAKE: Tables.take,
    waiting.GIVE_BACK: Tables.give_back,
    waiting.IS_ANY_WAITING: Tables.is_any_waiting,
    waiting.ARE_WAITING: Tables.are_waiting,
    waiting.WHAT_IS_DUE: Tables.what_is_due,
    reading.READ_CALL: Tables.read_call,
    dispatch.REFRESH: Tables.refresh,
    node_receipts.ATTEMPT_OF: Tables.attempt_of,
    node_receipts.KEEP_LATE: Tables.keep_late,
}


@lru_cache(maxsize=1024)
def uuid_of(text: str) -> UUID:
    """Of a process: the same few come again and again."""
    return UUID(text)


def moment(ms: float | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def whole_row(stored: Stored) -> dict[str, Any]:
    """The row as `SELECT *` gives it."""
    row = stored.row
    return {
        "id": UUID(row.id),
        "trace_id": row.trace_id,
        "parent_call_id": UUID(row.parent_call_id) if row.parent_call_id else None,
        "depth": row.depth,
        "caller": row.caller,
        "origin_caller": row.origin_caller,
        "capability": row.capability,
        "status": row.status,
        "route_id": row.route_id,
        "table_revision": row.table_revision,
        "service_id": row.service_id,
        "node_id": row.node_id,
        "attempts": row.attempts,
        "seq": row.seq,
        "accepted_at": moment(row.accepted_ms),
        "first_forwarded_at": moment(row.first_forwarded_ms),
        "ended_at": moment(row.ended_ms),
        "deadline": moment(row.deadline_ms),
        "idempotent": row.idempotent,
        "request": row.request,
        "request_digest": row.request_digest,
        "payload_digest": row.payload_digest,
        "output": stored.output,
        "error": row.error,
        "labels": row.labels,
        "idempotency_key": row.idempotency_key,
        "session_id": row.session_id,
        "owner": uuid_of(row.owner),
        "epoch": stored.epoch,
        "step": stored.step,
        "due_at": moment(stored.due_ms),
        "watchers": None if stored.watchers is None else [UUID(watcher) for watcher in stored.watchers],
        "mirror_of": UUID(row.mirror_of) if row.mirror_of else None,
        "async_rank": row.async_rank,
        "callback_url": row.callback_url,
        "redispatch_of": UUID(row.redispatch_of) if row.redispatch_of else None,
    }
