"""What must hold whatever happens, checked as it happens: each rule looks at the one event that could break it."""

import heapq
from bisect import bisect, insort
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from receipts.core.ending import Ending
from receipts.core.journey import Ended
from receipts.core.lifecycle import TERMINAL
from receipts.rows import ReceiptRow
from registry.core.node import Health
from routing.core.breaker import OF_SERVICE, State
from tests.simulation.database import EPOCH_S
from tests.simulation.model import Change, Stored
from tests.simulation.network import Envelope
from tests.simulation.scheduler import ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.callers import Asked
    from tests.simulation.nodes import SimulatedNode
    from tests.simulation.processes import Process
    from tests.simulation.world import World

CLOCKS_S = 0.25
"""Processes' clocks differ by so much at the most (twice what `registry.clock` tolerates, and the ways between)."""
END_GRACE_S = 3.0
"""A call whose process lives and reaches the database ends so long after its deadline at the latest."""
RECOVERY_GRACE_S = 25.0
"""Any other: a lease that runs out or a takeover from the living (10 s), one held long enough (5 s), sweeps."""
TAKEOVER_S = 13.0
"""A lease (5 s), that of whoever takes over (5 s), sweeps."""
TOTAL_S = 30.0
"""No attempt starts later after the first."""
SHARE, FLOOR, WINDOW_S = 0.2, 10, 10.0
"""Of a service's calls may become retries; so many may in any case; in so long."""
HEARSAY_S = 3.0
"""Others' calls count from when they are heard of: by a late Redis."""
WAITS_TOGETHER = 40
"""So many waits before retries are looked at together."""
SURELY_OVER_S = 15.0
"""An attempt that was sent when all was well again has ended after so long."""
HEARS_S = 3.0
"""Who waits for an asynchronous call hears so long after its end at the latest, where nothing stands in the way."""
SETTLED_S = 10.0
"""An engine that was disturbed carries on with what it has after so long."""
NOT_SENT = '"reason":"the envelope was not sent'
MOVES_ON = {"claim": "taken over", "take": "taken by an engine", "give back": "given back"}
"""Statements that change who holds a call."""
KEPT_S = 200.0
"""An ended call is forgotten so long after its end: nothing speaks of it any more."""


class Violation(AssertionError):
    """An invariant does not hold. `call_id` names the call, where it is about one."""

    def __init__(self, rule: str, detail: str, call_id: str | None, at_s: float):
        super().__init__(f"{rule}: {detail}")
        self.rule, self.detail, self.call_id, self.at_s = rule, detail, call_id, at_s


@dataclass(slots=True)
class Seen:
    """What happened to one call, as far as the rules need it."""

    accepted_s: float
    owner: str
    forwarded: set[tuple[int, str, str]] = field(default_factory=set)
    """Attempts that are in the database."""
    retried: int = 0
    """The last attempt whose failure has made another."""
    worked: str | None = None
    """Where a node has begun to work on it."""
    refused_by: "Process | None" = None
    """Who has told its caller that nothing was accepted."""
    ended_s: float = 0.0
    may_have_begun: bool = False
    """Whether a node whose attempt is over may have begun on it."""
    owes: str | None = None
    """The service whose budget its next attempt is charged to, though nothing is written then."""


class Watch:
    """The rules. A broken one is kept in `violation`, whoever's code was running."""

    def __init__(self, world: "World"):
        self.world, self.scheduler = world, world.scheduler
        self.violation: Violation | None = None
        self.seen: dict[str, Seen] = {}
        self.due: list[tuple[float, str]] = []
        """When each open call must have ended at the latest."""
        self.asked_due: list[tuple[float, int, Asked]] = []
        """When each caller must have heard at the latest."""
        self.orphaned_due: list[tuple[float, str]] = []
        """When the calls of each dead process must have been taken over."""
        self.next_due_s = 0.0
        """Until then none of these is to be looked at."""
        self.hindered_s = 0.0
        """When something last stood in the way of recovery (no database, no engine)."""
        self.keys: dict[tuple[str, str], str] = {}
        """The call that was forwarded under each idempotency key."""
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.waits: dict[int, deque[float]] = {}
        """The last waits before retries, as shares of their base, by the retry's number."""
        self.calls: dict[str, dict[str, list[float]]] = {}
        """When the last calls had their first attempt, by service and process."""
        self.retries: dict[tuple[str, str], list[float]] = {}
        """When the last retries were decided, by process and service."""
        self.by_service: dict[str, list[int]] = {}
        """First attempts and all attempts, by service."""
        self.tried_at: dict[tuple[ProcessLoop, tuple[str, str]], tuple[float, float]] = {}
        """When each process has first sent something through each breaker since that was open: since when, and when."""
        self.history: list[str] | None = None
        self.only: str | None = None
        """Keep the history of this call alone, and what happens to the world."""

    def broken(self, rule: str, detail: str, call_id: str | None = None) -> None:
        if self.violation is None:
            self.violation = Violation(rule, detail, call_id, self.scheduler.now_s)

    def note(self, what: str, call_id: str | None = None) -> None:
        """A line of the history, where one is kept."""
        if self.history is not None and (self.only is None or call_id is None or call_id == self.only):
            self.history.append(f"{self.scheduler.now_s:.6f} {self.scheduler.running.name}: {what} {call_id or ''}")

    # --- The clock is about to move ----------------------------------------------------------------------------------

    def moved_on(self, next_s: float) -> bool:
        """Look at what must be over when the clock moves on to `next_s`: until then nothing changes any more.

        True: something does not hold.
        """
        if next_s <= self.next_due_s:
            return self.violation is not None
        due = self.due
        while due and due[0][0] < next_s:
            self.should_have_ended(heapq.heappop(due)[1], next_s)
        while self.orphaned_due and self.orphaned_due[0][0] < next_s:
            self.should_be_taken_over(heapq.heappop(self.orphaned_due)[1], next_s)
        while self.asked_due and self.asked_due[0][0] < next_s:
            self.should_have_heard(heapq.heappop(self.asked_due)[2], next_s)
        self.next_due_s = min((heap[0][0] for heap in (due, self.orphaned_due, self.asked_due) if heap), default=next_s)
        return self.violation is not None

    def expect_by(self, heap: list[Any], item: Any) -> None:
        """Something, by the moment with which it begins."""
        heapq.heappush(heap, item)
        self.next_due_s = min(self.next_due_s, item[0])

    def should_have_ended(self, call_id: str, now_s: float) -> None:
        stored = self.world.database.tables.open.get(call_id)
        if stored is None:
            self.forget_later(call_id)
            return
        deadline_s = max(stored.row.deadline_ms / 1000 - EPOCH_S, self.seen[call_id].accepted_s)
        limit_s = deadline_s + RECOVERY_GRACE_S
        if self.was_carried(stored):
            limit_s = deadline_s + END_GRACE_S
        if self.hindered_s > self.seen[call_id].accepted_s:
            limit_s = max(limit_s, self.hindered_s + RECOVERY_GRACE_S)
        if limit_s >= now_s:
            self.expect_by(self.due, (limit_s, call_id))
            return
        self.broken(
            "every accepted call ends by its deadline",
            f"still {stored.row.status} {now_s - deadline_s:.1f} s after its deadline",
            call_id,
        )

    def orphaned(self, process: "Process") -> None:
        """A process was killed: what it held is to be taken over as soon as its lease has run out."""
        self.expect_by(self.orphaned_due, (self.scheduler.now_s + TAKEOVER_S, process.owner))

    def should_be_taken_over(self, owner: str, now_s: float) -> None:
        is_hindered = self.world.database.is_hung or not self.world.can_work()
        if self.hindered_s + TAKEOVER_S > now_s or is_hindered:
            self.expect_by(self.orphaned_due, (now_s + TAKEOVER_S, owner))
            return
        for call_id, stored in self.world.database.tables.open.items():
            if stored.row.owner == owner:
                self.broken("the calls of a dead process are taken over", f"{now_s:.0f} s: not yet", call_id)
                return

    def was_carried(self, stored: Stored) -> bool:
        """Whether it is still the process's that accepted it, and nothing has kept that from ending it. An asynchronous
        one is an engine's, and any engine's as long as it waits."""
        process, accepted_s = self.world.by_owner.get(stored.row.owner), self.seen[stored.row.id].accepted_s
        if stored.row.async_rank is None:
            return stored.epoch == 1 and process is not None and process.undisturbed_since_s <= accepted_s
        if self.world.database.slowness > 1:  # it takes an engine many statements, one after another
            return False
        since_s = max(accepted_s, stored.row.deadline_ms / 1000 - EPOCH_S - SETTLED_S)
        able = [process] if process is not None else self.world.living("engine")
        return any(engine.undisturbed_since_s <= since_s for engine in able)

    def expect(self, asked: "Asked") -> None:
        """A caller has asked."""
        self.expect_by(self.asked_due, (asked.patience_until_s, asked.number, asked))

    def should_have_heard(self, asked: "Asked", now_s: float) -> None:
        if asked.is_over or asked.process is None:
            return
        limit_s = asked.patience_until_s
        if asked.process.undisturbed_since_s > limit_s - asked.longest_s:
            limit_s += RECOVERY_GRACE_S
        if self.world.database.is_hung:  # who waits for a call's end reads it there
            limit_s = now_s + RECOVERY_GRACE_S
        elif self.hindered_s > 0:
            limit_s = max(limit_s, self.hindered_s + RECOVERY_GRACE_S)
        if limit_s >= now_s:
            self.expect_by(self.asked_due, (limit_s, asked.number, asked))
        else:
            self.broken("no caller waits for ever", f"caller {asked.number} still waits", asked.call_id)

    def forget_later(self, call_id: str) -> None:
        if call_id in self.seen:
            self.scheduler.after(KEPT_S / 10 if self.world.scenario.storm else KEPT_S, self.forget, call_id)

    def forget(self, call_id: str) -> None:
        self.seen.pop(call_id, None)
        if call_id in self.world.database.tables.calls and call_id not in self.world.database.tables.open:
            self.world.database.tables.forget(call_id)

    # --- The database ------------------------------------------------------------------------------------------------

    def changed(self, change: Change) -> None:
        """One row was written."""
        row = change.call.row
        call_id = row.id
        if change.statement == "accept":
            self.accepted(change.call)
        seen = self.seen[call_id]
        for receipt in change.receipts:
            self.kinds[receipt.kind] += 1
            if receipt.kind == "retry_scheduled":
                self.retried(change, receipt)
            elif receipt.kind == "attempt_failed":
                seen.may_have_begun |= f'"ended":"{Ended.NOT_STARTED}"' not in (receipt.detail or "")
                seen.owes = None if NOT_SENT in (receipt.detail or "") else receipt.service_id
            elif receipt.kind == "forwarded":
                seen.forwarded.add((receipt.attempt or 0, receipt.service_id or "", receipt.node_id or ""))
                self.keyed(change.call)
                self.placed(change.call, receipt)
            if self.history is not None:
                about = (
                    f"{receipt.n} {receipt.kind} {receipt.attempt or ''} {receipt.node_id or ''} {receipt.detail or ''}"
                )
                self.note(f"  receipt {about}", call_id)
        if change.statement == "move":
            self.held(change)
        if change.statement != "late" and row.ended_ms is not None:
            self.ended(change)
        if change.statement in MOVES_ON:
            seen.owner = row.owner
            self.counts[MOVES_ON[change.statement]] += 1
            self.note(f"{MOVES_ON[change.statement]}, epoch {change.call.epoch}", call_id)

    def held(self, change: Change) -> None:
        """A call was changed: by its holder, or by what its node has posted."""
        writer, row = self.world.by_loop.get(self.world.database.serving), change.call.row
        if change.move is not None and change.move.fence_attempt is not None:
            return
        if writer is not None and writer.owner != row.owner:
            detail = f"{writer.name} has written {[receipt.kind for receipt in change.receipts]}"
            self.broken("only who holds a call writes to it", detail, row.id)

    def accepted(self, call: Stored) -> None:
        row = call.row
        self.counts["accepted"] += 1
        self.seen[row.id] = Seen(self.scheduler.now_s, row.owner)
        self.note(f"accepted, deadline {row.deadline_ms / 1000 - EPOCH_S:.3f}", row.id)
        self.expect_by(self.due, (row.deadline_ms / 1000 - EPOCH_S + END_GRACE_S, row.id))

    def ended(self, change: Change) -> None:
        row = change.call.row
        terminal = [receipt for receipt in change.receipts if receipt.kind in TERMINAL]
        if len(terminal) != 1 or terminal[0].kind != row.status:
            self.broken("one end, and it says what the row says", f"{row.status}: {terminal}", row.id)
        self.counts["ended"] += 1
        self.endings[row.status] += 1
        self.seen[row.id].ended_s = self.scheduler.now_s
        self.note(f"ended {row.status}", row.id)

    def keyed(self, call: Stored) -> None:
        row = call.row
        if row.idempotency_key is None:
            return
        key = row.caller, row.idempotency_key
        if self.keys.setdefault(key, row.id) != row.id and not self.seen_refused(self.keys[key]):
            self.broken("a key stands for one call", f"{key[1]} was forwarded as {self.keys[key]} before", row.id)

    def seen_refused(self, call_id: str) -> bool:
        """Whether that call was ended as never accepted."""
        stored = self.world.database.tables.calls.get(call_id)
        return stored is None or stored.row.status == "rejected"

    # --- Callers -----------------------------------------------------------------------------------------------------

    def begun(self, service_id: str, owner: str) -> None:
        """A process has heard that a call is accepted, and makes its first attempt."""
        self.calls.setdefault(service_id, {}).setdefault(owner, []).append(self.scheduler.now_s)

    def promised(self, call_id: str) -> None:
        """A caller was told that its asynchronous call is accepted."""
        self.counts["promised"] += 1
        if call_id not in self.world.database.tables.calls:
            self.broken("nothing is told that is not in the database", "told that it is accepted", call_id)
        self.note("told that it is accepted", call_id)

    def heard_of_end(self, asked: "Asked", end: Ending) -> None:
        """Who has waited for an asynchronous call is told of its end: soon after it."""
        call_id, process = str(asked.call_id), asked.process
        self.told(call_id, end)
        seen = self.seen.get(call_id)
        if seen is None or process is None or self.world.database.slowness > 1:
            return
        since_s = max(asked.asked_s, seen.ended_s)
        if self.scheduler.now_s > since_s + HEARS_S and process.undisturbed_since_s <= since_s:
            detail = f"{self.scheduler.now_s - since_s:.1f} s later, by {process.name}"
            self.broken("who waits hears of the end", detail, call_id)

    def told(self, call_id: str, end: Ending) -> None:
        """A caller was told how its call ended."""
        self.counts["told"] += 1
        code = end.code
        stored = self.world.database.tables.calls.get(call_id)
        if stored is None or stored.row.ended_ms is None:
            self.broken("nothing is told that is not in the database", f"told {code}", call_id)
            return
        if (stored.row.error is None) != (code is None) or (
            code is not None and f'"code":"{code}"' not in stored.row.error
        ):
            self.broken("what is told is what is written", f"told {code}, written {stored.row.error}", call_id)
        if code is None and (end.output or {}).get("of") not in (call_id,):
            self.broken("a result is that of its call", f"told {end.output}", call_id)
        self.note(f"told {code or 'succeeded'}", call_id)

    def refused(self, call_id: str, by: "Process | None") -> None:
        """A caller was told that nothing was accepted.

        It may be there all the same: committed, its answer lost. The process that has told so ends it as soon as it
        can. Where another has taken it over before that, it may be repeated if it is idempotent: a known limit
        (docs/simulation.md).
        """
        if (seen := self.seen.get(call_id)) is not None:
            seen.refused_by = by

    # --- Attempts ----------------------------------------------------------------------------------------------------

    def posting(self, loop: ProcessLoop, node: "SimulatedNode") -> None:
        """An attempt begins to connect."""
        load = self.world.by_loop[loop].parts.load
        now_s = load.clock()
        for key in (node.key, (node.key[0], OF_SERVICE)):
            breaker = load.breakers.get(key)
            if breaker is None or breaker.opened_at_s is None:
                continue
            if now_s < breaker.opened_at_s + load.rules_of(key).open_s:
                self.broken("nothing is sent while a breaker is open", f"sent to {'/'.join(key)}")

    def leaving(self, loop: ProcessLoop, node: "SimulatedNode", envelope: Envelope, began_s: float) -> None:
        """An envelope leaves a process."""
        call_id, number, now_s = envelope.call_id, envelope.attempt, self.scheduler.now_s
        self.counts["sent"] += 1
        self.note(f"sent as attempt {number} to {'/'.join(node.key)}", call_id)
        seen, stored = self.seen.get(call_id), self.world.database.tables.calls.get(call_id)
        if seen is None or stored is None or (number, *node.key) not in seen.forwarded:
            self.broken("`forwarded` is in the database before the envelope leaves", f"attempt {number}", call_id)
            return
        row = stored.row
        deadline_s = row.deadline_ms / 1000 - EPOCH_S
        if now_s > deadline_s + CLOCKS_S:
            self.broken(
                "no attempt starts after the deadline", f"attempt {number}, {now_s - deadline_s:.3f} s late", call_id
            )
        first_s = (row.first_forwarded_ms or 0) / 1000 - EPOCH_S
        is_bound = row.async_rank is None or seen.may_have_begun
        if number > 1 and is_bound and began_s > first_s + TOTAL_S + CLOCKS_S:
            self.broken(
                "no attempt starts 30 s after the first", f"attempt {number}, {began_s - first_s:.3f} s after", call_id
            )
        if opened := self.world.by_loop[loop].parts.load.opened:
            for key in (node.key, (node.key[0], OF_SERVICE)):
                breaker = opened.get(key)
                if breaker is not None and self.tried_at.get((loop, key), (0.0, 0.0))[0] != breaker.since_s:
                    self.tried_at[loop, key] = breaker.since_s, now_s
        counted = self.by_service.setdefault(node.key[0], [0, 0])
        counted[0] += number == 1
        counted[1] += 1

    # --- Retries -----------------------------------------------------------------------------------------------------

    def retried(self, change: Change, receipt: ReceiptRow) -> None:
        """A retry was decided: within its service's budget, and not in step with others."""
        facts = msgspec.json.decode(receipt.detail or "{}")
        call_id, number = change.call.row.id, receipt.attempt or 1
        seen = self.seen[call_id]
        if "refused" in facts:  # it waits, to be placed again: what that costs is charged when it is
            self.counts["waits to be placed again"] += 1
            return
        if not any(other.kind == "fallback" for other in change.receipts):
            self.jittered(number, facts["wait_ms"] / (100 * 2 ** (number - 1)), call_id)
        seen.owes = None
        if "retry_budget" not in facts or seen.retried == number:
            return
        seen.retried = number
        self.charged(change.call.row.owner, facts["retry_budget"]["service_id"], receipt, call_id)

    def placed(self, call: Stored, receipt: ReceiptRow) -> None:
        """An attempt is written. That of an asynchronous call is the engine's first, or one that it has waited for."""
        row, seen = call.row, self.seen[call.row.id]
        if row.async_rank is None:
            return
        if receipt.attempt == 1:
            self.begun(receipt.service_id or "", row.owner)
        elif seen.owes is not None:
            self.charged(row.owner, seen.owes, receipt, row.id)
        seen.owes = None

    def charged(self, owner: str, service_id: str, receipt: ReceiptRow, call_id: str) -> None:
        """A retry costs something of the budget of the service whose attempt has failed."""
        self.counts["retries"] += 1
        at_s = receipt.at_ms / 1000 - EPOCH_S
        mine = self.retries.setdefault((owner, service_id), [])
        insort(mine, at_s)
        others = self.calls.get(service_id, {})
        counted, since_s = [others.get(owner, [])], at_s - WINDOW_S - CLOCKS_S
        if self.world.has_redis:
            counted, since_s = list(others.values()), self.world.by_owner[owner].said_since_s(since_s) - HEARSAY_S
        calls = sum(bisect(one, at_s + CLOCKS_S) - bisect(one, since_s) for one in counted)
        retries = bisect(mine, at_s) - bisect(mine, at_s - WINDOW_S + 1 + CLOCKS_S)
        if retries > max(FLOOR, SHARE * calls):
            detail = f"{retries} after failures of {service_id} in {WINDOW_S:g} s, for {calls} calls"
            self.broken("retries of a service stay within its budget", detail, call_id)

    def jittered(self, number: int, share: float, call_id: str) -> None:
        """The waits of retries are spread over half to one and a half of what they are on average."""
        waits = self.waits.setdefault(number, deque(maxlen=WAITS_TOGETHER))
        waits.append(share)
        if not 0.49 <= share <= 1.51:
            self.broken("retries wait as long as they should", f"{share:.2f} of the base", call_id)
        if len(waits) == WAITS_TOGETHER and max(waits) - min(waits) < 0.5:
            detail = f"{WAITS_TOGETHER} waits within {max(waits) - min(waits):.2f} of the base"
            self.broken("retries do not come in step", detail, call_id)

    def amplified(self) -> None:
        """Over the whole time: attempts are at most 1.2 times the calls of a service, and the floor."""
        floor = FLOOR * self.world.processes_started * (1 + self.scheduler.now_s / (WINDOW_S - 1))
        for service_id, (calls, attempts) in self.by_service.items():
            if attempts > (1 + SHARE) * calls + floor:
                detail = f"{service_id}: {attempts} attempts for {calls} calls"
                self.broken("attempts are at most 1.2 times the calls, and the floor", detail)

    # --- Nodes -------------------------------------------------------------------------------------------------------

    def executed(self, node: "SimulatedNode", envelope: Envelope) -> None:
        """A node begins to work."""
        call_id = envelope.call_id
        self.counts["worked"] += 1
        self.note(f"{'/'.join(node.key)} works on attempt {envelope.attempt}", call_id)
        seen = self.seen.get(call_id)
        if seen is None:
            return
        stored = self.world.database.tables.calls[call_id]
        is_promise = (
            stored.row.async_rank is None
        )  # an engine may have an asynchronous one before its commit is answered
        if seen.refused_by is not None and is_promise and (envelope.attempt == 1 or not node.work.idempotent):
            self.broken("what was not accepted is not worked on", f"at {'/'.join(node.key)}", call_id)
        if seen.worked is not None and not node.work.idempotent:
            self.broken("what is not idempotent runs once", f"at {seen.worked} and at {'/'.join(node.key)}", call_id)
        seen.worked = "/".join(node.key)

    # --- Rest --------------------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """All faults are over and all calls should be: what is left anywhere is a leak."""
        world = self.world
        if self.counts["accepted"] < 0.2 * world.scenario.calls:
            detail = f"of {world.scenario.calls} calls {self.counts['accepted']} were accepted"
            self.broken("the world is alive", detail)
        for asked in world.callers.under_way.values():
            self.broken("no caller waits for ever", f"caller {asked.number} still waits", asked.call_id)
        for call_id in world.database.tables.open:
            self.broken("every accepted call ends by its deadline", "open at the end", call_id)
        if world.database.tables.waiting:
            self.broken("in-flight counts return to zero", f"{len(world.database.tables.waiting)} calls still wait")
        for process in world.living():
            self.process_at_rest(process)

    def process_at_rest(self, process: "Process") -> None:
        parts = process.parts
        left: dict[str, Any] = {
            "in flight by node": dict(parts.load.flying),
            "in flight": parts.in_flight,
            "under way": parts.under_way,
            "rows waiting": len(parts.journal.moves.waiting) + len(parts.journal.new_calls.waiting),
            "followers": len(parts.journal.followers),
            "telling": len(parts.telling),
            "followed": len(parts.following.calls),
        }
        if (engine := process.engine) is not None:
            left |= {
                "carried": len(engine.carried),
                "tasks": len(engine.tasks),
                "held in the waiting room": engine.room.count,
                "its places": engine.room.taken,
                "to be given back": len(engine.given_back),
            }
        for what, count in left.items():
            if count:
                self.broken("in-flight counts return to zero", f"{process.name}: {what}: {count}")

    def recovered(self) -> None:
        """Long enough after the last fault: pools are whole again, and calls succeed."""
        world = self.world
        for process in world.living():
            load = process.parts.load
            for key, breaker in load.opened.items():
                is_open = breaker.state(load.rules_of(key), load.clock()) is State.OPEN
                _since_s, sent_s = self.tried_at.get((process.loop, key), (0.0, self.scheduler.now_s))
                if is_open or sent_s + SURELY_OVER_S < self.scheduler.now_s:
                    detail = f"{process.name}: the breaker of {'/'.join(key)}: {breaker}"
                    self.broken("pools recover when faults end", detail)
            tables = process.parts.snapshot.tables
            assert tables is not None
            for key, node in tables.nodes.items():
                if node.health is not Health.READY or node.expired:
                    self.broken("pools recover when faults end", f"{process.name}: {'/'.join(key)} is {node.health}")
        since = world.callers.after_faults
        if since["asked"] and since["failed"] > 0.01 * since["asked"]:
            self.broken("calls succeed when faults have ended", f"{dict(since)}")
