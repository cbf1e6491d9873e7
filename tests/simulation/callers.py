"""Simulated callers: when they ask for what, whom they ask, and what they make of what they are told."""

from asyncio import Task
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from receipts.core.ending import ending_of
from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Journey
from receipts.errors import CallFailed, IdempotencyConflict
from registry.auth import Key
from registry.clock import now_millis
from registry.errors import Unavailable
from routing.accepting import accept_async
from routing.core.plan import Attempt
from routing.dispatch import submit
from routing.errors import Overloaded, TooManyWaiting
from routing.events import row_at_end
from routing.live import LiveParts

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

PATIENCE_S = 5.0
"""A caller hears so long after its call's deadline at the latest, where nothing stands in the way."""
LONGEST_S = 45.0
WAITS_S = 10.0
"""One who waits for an asynchronous call asks again after so long."""
TRIES = 5
"""An asynchronous call under a key is handed in so often, where nobody says that it is accepted."""
CALLER = "caller"
KEY = Key("caller's", CALLER, None, None, frozenset({"dispatch"}))
WAIT_FOR_IT = 0.6
"""Of the callers of asynchronous calls: the others never ask what became of them."""
FAILURES = frozenset({"upstream_error", "no_available_node", "circuit_open", "deadline_exceeded", "invalid_output"})

BODY_BYTES = 300
"""What a request weighs."""


@dataclass(slots=True, eq=False)
class Asked:
    """One request of a caller."""

    number: int
    capability: str
    timeout_ms: int
    urgency: str
    key: str | None
    is_async: bool = False
    is_late: bool = False
    """Asked when all faults were over."""
    tries: int = 0
    process: "Process | None" = None
    task: "Task[None] | None" = None
    made_id: str | None = None
    """The id that its call was given, whether or not it was accepted."""
    call_id: str | None = None
    is_accepted: bool = False
    """Whether it was told so (202), and waits for the end."""
    asked_s: float = 0.0
    """When it has last asked."""
    longest_s: float = 0.0
    """It is answered by then, give or take a little."""
    cancel_after_s: float | None = None
    patience_until_s: float = 0.0
    is_over: bool = False


class Callers:
    """Everybody who calls."""

    def __init__(self, world: "World"):
        self.world = world
        self.chance = world.stream("callers")
        self.left = world.scenario.calls
        self.asked = 0
        self.under_way: dict[int, Asked] = {}
        self.after_faults: Counter[str] = Counter()
        self.told_codes: Counter[str] = Counter()
        self.calm = int(world.scenario.calls * world.scenario.calm_share)
        """So many are asked when the faults are over."""
        self.keys: list[tuple[str, str]] = []
        """Those used last, with their capability: some callers use one again."""

    def begin(self) -> None:
        self.world.scheduler.after(0.5, self.ask_next)

    def ask_next(self) -> None:
        """One more, and the next at a random time from now: sometimes many come at once."""
        chance, scenario = self.chance, self.world.scenario
        burst = 1 if chance.random() > scenario.burst_share else int(1 + chance.random() * scenario.burst)
        for _ in range(min(burst, self.left)):
            self.left -= 1
            self.ask(self.new())
        if self.left:
            ends_s, left = scenario.faults_end_s, self.left - self.calm
            if left <= 0:
                ends_s, left = scenario.lasts_s, self.left
            left_s = max(0.1, ends_s - self.world.scheduler.now_s)
            mean_s = (1 + scenario.burst_share * scenario.burst / 2) * left_s / left
            self.world.scheduler.after(chance.expovariate(1 / mean_s), self.ask_next)

    def new(self) -> Asked:
        chance, world = self.chance, self.world
        self.asked += 1
        work = chance.choices(world.works, cum_weights=world.shares)[0]
        long = work.work_s > 1
        timeout_ms = int(1000 * (20 + 20 * chance.random() if long else 2 + 8 * chance.random()))
        if not long and chance.random() < 0.05:
            timeout_ms = int(LONGEST_S * 1000)
        urgency = "normal" if chance.random() < 0.8 else chance.choice(("interactive", "bulk"))
        asked = Asked(self.asked, work.capability, timeout_ms, urgency, None, is_late=world.is_calm())
        if chance.random() < world.scenario.async_share:
            asked.is_async = True
            shortest_s = 10 if long else 2
            asked.timeout_ms = int(1000 * (shortest_s + (LONGEST_S - shortest_s) * chance.random()))
        if chance.random() < 0.15:
            asked.key = f"key {self.asked}"
            if self.keys and chance.random() < 0.2:
                asked.key, asked.capability = chance.choice(self.keys)
            self.keys = [*self.keys[-20:], (asked.key, asked.capability)]
        if chance.random() < 0.01:
            asked.cancel_after_s = chance.expovariate(2.0)
        return asked

    def ask(self, asked: Asked) -> None:
        """Send it to one of the dispatchers that listen, or try again soon."""
        world = self.world
        asked.tries += 1
        asked.call_id = asked.made_id = None
        process = world.some_dispatcher(self.chance)
        if process is None:
            self.again(asked)
            return
        self.under_way[asked.number] = asked
        if asked.is_async:
            asked.longest_s = PATIENCE_S
        else:
            asked.longest_s = asked.timeout_ms / 1000 if asked.key is None else LONGEST_S  # it may join a longer one
        self.begin_at(process, asked)
        asked.task = process.start((self.hand_in if asked.is_async else self.carry)(asked, process.parts))

    def begin_at(self, process: "Process", asked: Asked) -> None:
        """It asks this process now."""
        asked.process, asked.asked_s = process, self.world.scheduler.now_s
        asked.patience_until_s = asked.asked_s + asked.longest_s + PATIENCE_S
        self.world.watch.expect(asked)

    def envelope_of(self, asked: Asked) -> CallEnvelope:
        return CallEnvelope(
            asked.capability,
            {"of": asked.number if asked.key is None else asked.key},
            CALLER,
            now_millis(),
            urgency=asked.urgency,
            timeout_ms=asked.timeout_ms,
            idempotency_key=asked.key,
            is_async=asked.is_async,
        )

    async def carry(self, asked: Asked, parts: LiveParts) -> None:
        """One request, as the view does it. It ends by an answer, or with its process."""
        world, process = self.world, asked.process
        assert process is not None
        envelope = self.envelope_of(asked)

        def begun(journey: Journey, attempt: Attempt, parts: LiveParts) -> None:
            asked.call_id = asked.made_id
            world.watch.begun(attempt.chosen.node.service_id, process.owner)
            if asked.cancel_after_s is not None:
                world.scheduler.after(asked.cancel_after_s, world.cancel, journey.call_id)

        code: str | None = "unavailable"
        try:
            parts.admit(envelope.urgency, BODY_BYTES)
            try:
                world.asking = asked
                result = await submit(envelope, parts, begun=begun)
            finally:
                parts.dismiss(BODY_BYTES)
            code = result.ending.code
            world.watch.told(str(result.call_id), result.ending)
        except Unavailable as exc:
            if exc.call_id is None and asked.made_id is not None:
                world.watch.refused(asked.made_id, asked.process)
        except Overloaded:
            code = "overloaded"
        except IdempotencyConflict:
            code = "idempotency_conflict"
        finally:
            self.over(asked, code)

    # --- Asynchronous calls ------------------------------------------------------------------------------------------

    async def hand_in(self, asked: Asked, parts: LiveParts) -> None:
        """An asynchronous call, as the view accepts it; then its caller waits for the end, or does not care."""
        world = self.world
        envelope = self.envelope_of(asked)
        code: str | None = "unavailable"
        try:
            parts.admit(envelope.urgency, BODY_BYTES)
            try:
                world.asking = asked
                accepted = await accept_async(envelope, parts)
            finally:
                parts.dismiss(BODY_BYTES)
            code, asked.call_id = None, str(accepted.call_id)
            asked.is_accepted = True
            world.watch.promised(asked.call_id)
            if asked.cancel_after_s is not None:
                world.scheduler.after(asked.cancel_after_s, world.cancel, accepted.call_id)
        except CallFailed as exc:
            code = exc.ending.code
            world.watch.told(str(exc.call_id), exc.ending)
        except Unavailable:
            if asked.made_id is not None:
                world.watch.refused(asked.made_id, asked.process)
        except Overloaded:
            code = "overloaded"
        except IdempotencyConflict:
            code = "idempotency_conflict"
        finally:
            asked.process = None
            if asked.is_accepted and self.chance.random() < WAIT_FOR_IT:
                self.wait(asked)
            elif code == "unavailable" and asked.key is not None and asked.tries < TRIES:
                self.again(asked)
            else:
                self.over(asked, "accepted" if asked.is_accepted else code)

    def wait(self, asked: Asked) -> None:
        """Ask one of the dispatchers for the end of an accepted call, or try again soon."""
        process = self.world.some_dispatcher(self.chance)
        if process is None:
            self.world.scheduler.after(0.5, self.wait, asked)
            return
        asked.longest_s = WAITS_S
        self.begin_at(process, asked)
        asked.task = process.start(self.hear_of_end(asked, process.parts))

    async def hear_of_end(self, asked: Asked, parts: LiveParts) -> None:
        """One wait, as the view does it, and the next one where it has not told of the end."""
        try:
            row = await row_at_end(UUID(asked.call_id), KEY, WAITS_S, parts)
            if row["ended_at"] is not None:
                end = ending_of(row["error"], row["output"])
                self.world.watch.heard_of_end(asked, end)
                self.over(asked, end.code)
        except (Unavailable, Overloaded, TooManyWaiting):
            pass
        finally:
            if not asked.is_over:
                asked.process = None
                self.world.scheduler.after(0.2 + 0.3 * self.chance.random(), self.wait, asked)

    # --- What becomes of them ----------------------------------------------------------------------------------------

    def over(self, asked: Asked, code: str | None) -> None:
        asked.is_over = True
        asked.task = asked.process = None
        self.under_way.pop(asked.number, None)
        self.told_codes[code or "succeeded"] += 1
        if asked.is_late:
            self.after_faults["asked"] += 1
            self.after_faults["failed"] += code in FAILURES

    def of(self, process: "Process") -> list[Asked]:
        """Those who wait for this process."""
        return [asked for asked in self.under_way.values() if asked.process is process]

    def again(self, asked: Asked) -> None:
        """It has heard nothing: it asks somebody else."""
        asked.is_over = False
        self.world.scheduler.after(0.2 + 0.3 * self.chance.random(), self.ask, asked)
