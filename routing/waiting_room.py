"""The waiting room of an engine: asynchronous calls that it holds until a node can take them, without the database.

Whoever carries such a call asks for a place and sleeps. When something moves (the tables, a call that has ended, a
moment that was named) the room looks at the calls in turn and wakes those that have a place. Calls that are refused for
the same reasons share one look, so a thousand of them cost as much as the few kinds they are of.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

from receipts.core.envelope import ASYNC_RANKS
from receipts.core.journey import Journey
from receipts.reading import read_call
from registry.clock import now_millis
from registry.errors import Unavailable
from routing.core.patience import end_of_patience, has_place, most_of_kind, patience_millis, rest_ms, sign_of
from routing.core.plan import Attempt, Fallback, Stop, Wait, after_fallback, with_fallbacks
from routing.dispatch import Parked, decide
from routing.live import LiveParts

LOOKED_AT_BY_ITSELF_S = 2.0
"""About so long a call may go by what others of its sign were refused for; then it is looked at itself."""
TURN_S = 5.0
"""So long calls that find no place keep others of their capability from being held in their stead."""
REST_AFTER_LOOK = 4
"""Times the CPU that a look took: looking takes a fifth of the loop at most."""
HELD_BYTES = 64 * 1024 * 1024
"""So large (bytes) are the requests that an engine holds, about, at the most."""
NEVER = 60_000
"""Milliseconds until somebody who has left is looked at again: later than anything else."""
BUDGET_REST_MS = 500
"""So long a call rests whose attempt the retry budget of a service does not allow."""


class Left(Enum):
    """Why a call leaves the room without a place."""

    ENDED = "somebody else has ended it"
    GIVEN_BACK = "others of its kind should have a turn"


@dataclass(slots=True, eq=False)
class Held:
    """A call in the room."""

    parked: Parked
    until_millis: int
    size: int
    left: "asyncio.Future[Placed | Stop | Left]"
    since: float
    """Loop time."""
    asked: Journey = field(init=False)
    """The journey as it is written."""
    kind: str = field(init=False)
    rank: int = field(init=False)
    sign: Hashable = None
    itself_at: float = 0.0
    """Loop time from which on it is looked at itself, whatever is known of its sign."""
    taken: tuple[Fallback, ...] = ()
    """Fallback rules that it has rested for here: not in `asked`, for they are not written yet."""

    def __post_init__(self) -> None:
        self.asked = self.parked.journey
        self.kind = self.asked.envelope.capability
        self.rank = ASYNC_RANKS[self.asked.envelope.urgency]

    @property
    def journey(self) -> Journey:
        return self.parked.journey

    def rest(self, step: Wait, now: int) -> None:
        """A fallback rule says that it rests first."""
        journey = self.parked.journey
        for fallback in step.fallbacks:
            journey = after_fallback(journey, fallback)
        self.taken += step.fallbacks
        self.parked = replace(self.parked, journey=journey, not_before_millis=now + step.wait_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Its node is claimed, and a place of the engine is its own until `WaitingRoom.leave`."""

    journey: Journey
    attempt: Attempt
    kind: str


class WaitingRoom:
    """Single-threaded: the engine's event loop owns it. `cpu_s` tells how much CPU its thread has used."""

    def __init__(
        self,
        parts: LiveParts,
        *,
        places: int,
        held_at_most: int,
        held_of_kind: int,
        poll_s: float,
        cpu_s: Callable[[], float],
    ):
        self.parts, self.places, self.poll_s, self.cpu_s = parts, places, poll_s, cpu_s
        self.held_at_most, self.held_of_kind = held_at_most, held_of_kind
        self.held: dict[str, list[Held]] = {}
        """By capability, in the order of their urgency and their coming."""
        self.count, self.size = 0, 0
        self.placed: Counter[str] = Counter()
        """Places that are taken, by capability."""
        self.taken = 0
        self.is_closed = False
        self.moved = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    # --- Whoever carries a call --------------------------------------------------------------------------------------

    async def place(self, parked: Parked, *, size: int = 0) -> Placed | Stop | Left:
        """Wait for a place. A Stop is the call's end: nothing is left to wait for."""
        call_id = parked.journey.call_id
        until = patience_millis(parked.journey, self.parts.tables, self.parts.policy)
        held = Held(parked, until, size, self.loop.create_future(), self.loop.time())
        checks: set[asyncio.Task[None]] = set()

        def moved() -> None:
            check = self.loop.create_task(self.check(held))
            checks.add(check)
            check.add_done_callback(checks.discard)

        self.enter(held)
        try:
            with self.parts.journal.following(str(call_id), moved):
                return await held.left
        finally:
            self.remove(held)

    async def check(self, held: Held) -> None:
        """Somebody has written to the call while it waits: it may have been cancelled."""
        try:
            stored = await read_call(self.parts.journal, held.journey.call_id)
        except Unavailable:
            return  # the next write tells
        if stored.ending is not None:
            settle(held, Left.ENDED)

    def leave(self, placed: Placed) -> None:
        """Give the place back: the attempt is over."""
        self.placed[placed.kind] -= 1
        self.taken -= 1
        if not self.placed[placed.kind]:
            del self.placed[placed.kind]
        self.moved.set()

    def enter(self, held: Held) -> None:
        line = self.held.setdefault(held.kind, [])
        at = len(line)
        while at and line[at - 1].rank > held.rank:
            at -= 1
        line.insert(at, held)
        self.count, self.size = self.count + 1, self.size + held.size
        self.moved.set()

    def remove(self, held: Held) -> None:
        line = self.held[held.kind]
        line.remove(held)
        if not line:
            del self.held[held.kind]
        self.count, self.size = self.count - 1, self.size - held.size

    # --- Room for more -----------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more may be held at all."""
        if self.is_closed or self.size >= HELD_BYTES:
            return 0
        return max(0, self.held_at_most - self.count)

    @property
    def window(self) -> int:
        """How many may be held of one capability: fewer where there is little room."""
        return min(self.held_of_kind, most_of_kind(self.room()))

    @property
    def is_crowded(self) -> bool:
        """Whether there are so many capabilities that each has less than it might."""
        return self.window < self.held_of_kind

    def rooms(self) -> dict[str, int]:
        """How many more may be held of each capability of which some are."""
        return {kind: max(0, self.window - len(line)) for kind, line in self.held.items()}

    def stuck(self) -> dict[str, list[Held]]:
        """Capabilities of which as many are held as may be, with those that have found no place for a while."""
        now, window = self.loop.time(), self.window
        old = {
            kind: [held for held in line if now - held.since > TURN_S and not held.journey.attempts]
            for kind, line in self.held.items()
            if len(line) >= window
        }
        return {kind: held for kind, held in old.items() if held}

    def let_go(self, calls: Iterable[Held]) -> None:
        """Give these back: others should have a turn."""
        for held in calls:
            settle(held, Left.GIVEN_BACK)

    def close(self) -> None:
        """Place nobody any more; those that wait are given back."""
        self.is_closed = True
        for line in self.held.values():
            self.let_go(line)

    # --- Looking -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look whenever something has moved, and at the moments that were named."""
        while True:
            began_s = self.cpu_s()
            rest_s = self.look()
            await asyncio.sleep(REST_AFTER_LOOK * (self.cpu_s() - began_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self.moved.wait()
            self.moved.clear()

    def look(self) -> float | None:
        """Place whom a node can take. Seconds until it is worth another look though nothing moves; None: never."""
        if not self.count or self.is_closed:
            return None
        now, at = now_millis(), self.loop.time()
        again_millis = now + int(self.poll_s * 1000)  # what ends in other processes is not heard of here
        refused: set[Hashable] = set()
        for held in self.in_turn():
            if held.left.done():
                continue
            again_millis = min(again_millis, held.until_millis)
            if now >= held.until_millis:
                settle(held, self.end_of(held))
            elif held.parked.not_before_millis > now:
                again_millis = min(again_millis, held.parked.not_before_millis)
            elif self.has_place(held) and (held.sign not in refused or at >= held.itself_at):
                again_millis = min(again_millis, now + self.look_at(held, refused, now, at))
        return max(0, again_millis - now) / 1000

    def in_turn(self) -> list[Held]:
        """The most urgent first; of those the capabilities in turn, and of each the one that came first."""
        placed = [(held.rank, place, held.since, held) for line in self.held.values() for place, held in numbered(line)]
        return [held for *_order, held in sorted(placed, key=lambda one: one[:3])]

    def has_place(self, held: Held) -> bool:
        urgency, of_kind = held.journey.envelope.urgency, self.placed[held.kind]
        return has_place(urgency, of_kind=of_kind, taken=self.taken, places=self.places)

    def look_at(self, held: Held, refused: set[Hashable], now: int, at: float) -> int:
        """Decide about one call. Milliseconds until it is worth another look, where it stays."""
        parked, load = held.parked, self.parts.load
        if parked.charged_to is not None and load.retry_refusal(parked.charged_to) is not None:
            held.parked = replace(parked, not_before_millis=now + BUDGET_REST_MS)
            return BUDGET_REST_MS
        step = decide(parked.journey, self.parts)
        if isinstance(step, Attempt):
            load.take(step.chosen)  # nothing is awaited between deciding and claiming
            if parked.charged_to is not None:
                load.count_retry(parked.charged_to)
            self.placed[held.kind] += 1
            self.taken += 1
            settle(held, Placed(held.asked, with_fallbacks(held.taken, step), held.kind))
            return NEVER
        if isinstance(step, Wait):
            held.rest(step, now)
            return step.wait_ms
        rest = rest_ms(step, parked.journey, chance=self.parts.chance.random())
        if rest is None:
            settle(held, with_fallbacks(held.taken, step))
            return NEVER
        held.parked = replace(parked, refused=step)
        held.sign = sign_of(parked.journey, step)
        held.itself_at = at + LOOKED_AT_BY_ITSELF_S * (0.5 + self.parts.chance.random())
        refused.add(held.sign)
        return rest

    def end_of(self, held: Held) -> Stop:
        """Its end: what it was refused for last; one that was never looked at is asked what it would be refused for."""
        refused = held.parked.refused
        if refused is None and isinstance(step := decide(held.parked.journey, self.parts), Stop):
            refused = step
        return with_fallbacks(held.taken, end_of_patience(refused, held.journey, self.parts.tables.revision))


def numbered(line: list[Held]) -> Iterator[tuple[int, Held]]:
    """Each call with its place among those of its urgency."""
    seen: Counter[int] = Counter()
    for held in line:
        yield seen[held.rank], held
        seen[held.rank] += 1


def settle(held: Held, how: Placed | Stop | Left) -> None:
    if not held.left.done():
        held.left.set_result(how)
