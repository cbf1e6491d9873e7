"""Simulated processes: dispatchers and engines, each with the production parts on an event loop of its own."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings

from routing.engine import Engine
from routing.live import LiveParts, journal_of, put_together
from routing.sharing import Sharing
from tests.simulation.database import EPOCH_S, Sessions
from tests.simulation.network import Client
from tests.simulation.registry import Snapshot
from tests.simulation.scheduler import ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.world import World

SMALL = (8, 24, 8)
"""Places, calls held, and of one capability: so few that calls wait in the database and take turns."""
CLOCK_OFF_S = 0.1
"""Hosts' clocks are off by up to this (`registry.clock` tolerates it)."""


class Process:
    """One life of a process: it is started once, and stopped or killed once."""

    def __init__(self, world: "World", role: str, number: int):
        self.world, self.role, self.name = world, role, f"{role} {number}"
        self.chance = world.stream(self.name)
        self.loop = loop = ProcessLoop(world.scheduler, self.name)
        loop.clock_off_s = CLOCK_OFF_S * (2 * self.chance.random() - 1)
        loop.when_failed = self.failed
        self.accepts = role == "dispatcher"
        self.is_alive = True
        self.is_stopping = False
        self.undisturbed_since_s = world.scheduler.now_s
        """Since when it runs, and reaches the database, without a break."""
        self.paused_at_s, self.pauses = 0.0, list[tuple[float, float]]()
        owner = new_uuid(self.chance, 4)
        self.owner = str(owner)
        world.scheduler.enter(loop)
        sessions: Any = Sessions(world.database, loop)
        journal = journal_of(role, owner, sessions, hears_due=role == "engine")
        snapshot = Snapshot(world.registry, self.chance, loop, lambda: world.database.is_reachable(loop))
        self.parts: LiveParts = put_together(owner, journal, snapshot, Client(world.network, loop))  # type: ignore[arg-type]
        self.parts.chance = self.chance
        self.parts.new_call_id = partial(new_call_id, world)
        self.engine: Engine | None = None
        self.start(journal.start())
        self.parts.following.start()
        if world.has_redis:
            self.parts.sharing = Sharing(
                partial(world.redis.connected, loop),  # type: ignore[arg-type]
                str(owner),
                self.parts.load,
                interval_s=settings.REACH_SHARING_INTERVAL_S,
                retry_s=settings.REACH_DATABASE_RETRY_S,
            )
            self.parts.sharing.start()
        if role == "engine":
            self.engine = Engine(self.parts, probe_nodes=world.registry.probe_doubted, cpu_s=loop.time)
            if world.has_small_engines:
                room = self.engine.room
                room.places, room.held_at_most, room.held_of_kind = SMALL
            self.engine.start()
            if world.has_beat:
                loop.call_later(settings.REACH_SWEEP_INTERVAL_S * self.chance.random(), self.sweep)
        world.scheduler.enter(world.scheduler.world)
        world.by_owner[str(owner)] = world.by_loop[loop] = self

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = self.loop.create_task(work)
        return task

    def failed(self, exc: BaseException) -> None:
        """A task has let something out that nobody expects."""
        self.world.watch.broken("nothing fails unseen", f"{self.name}: {type(exc).__name__}: {exc}")

    def sweep(self) -> None:
        """The beat's sweep (`routing.tasks.sweep_calls`)."""
        assert self.engine is not None
        self.start(self.engine.sweep())
        self.loop.call_later(settings.REACH_SWEEP_INTERVAL_S, self.sweep)

    # --- Its end -----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: what it knew is gone. What it had sent to the database may still be done there."""
        self.world.watch.note(f"{self.name} is killed")
        self.is_alive = self.accepts = False
        self.undisturbed_since_s = float("inf")
        self.world.watch.orphaned(self)
        unheard = self.world.callers.of(self)
        self.loop.kill()
        for asked in unheard:
            if asked.key is not None and not asked.is_async:
                self.world.callers.again(asked)
        for session in [session for session in self.world.database.sessions if session.loop is self.loop]:
            session.break_()
        self.gone()

    def stop(self) -> None:
        """SIGTERM: it takes no more calls, finishes what it can, and gives its lease back."""
        self.world.watch.note(f"{self.name} is stopping")
        self.accepts, self.is_stopping = False, True
        self.parts.following.let_go()
        self.start(self.drained() if self.engine is None else self.engine_stopped(self.engine))

    async def engine_stopped(self, engine: Engine) -> None:
        """It may be held up by a database that is away: until it has ended somebody may find calls in its hands."""
        self.undisturbed_since_s = float("inf")
        await engine.stop()
        self.world.scheduler.after(0.1, self.leave)

    async def drained(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.REACH_DRAIN_S):
                while self.parts.under_way or self.parts.in_flight:
                    await asyncio.sleep(0.1)
        self.undisturbed_since_s = float("inf")
        for asked in self.world.callers.of(self):
            if asked.task is not None:
                asked.task.cancel()
        await asyncio.sleep(0.5)
        await self.parts.stop()
        self.world.scheduler.after(0.1, self.leave)

    def leave(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.loop.kill()
            self.gone()

    def gone(self) -> None:
        self.world.registry.forget(self.parts.snapshot)
        self.world.process_gone(self)

    def pause(self) -> None:
        """SIGSTOP."""
        self.world.watch.note(f"{self.name} is paused")
        self.undisturbed_since_s = float("inf")
        self.paused_at_s = self.world.scheduler.now_s
        self.loop.pause()

    def resume(self) -> None:
        self.world.watch.note(f"{self.name} goes on")
        self.undisturbed_since_s = self.world.scheduler.now_s + 1.0
        self.pauses.append((self.paused_at_s, self.world.scheduler.now_s))
        self.loop.resume()

    def said_since_s(self, heard_s: float) -> float:
        """Since when what was said to it may have been heard at `heard_s` or later: it may have been stopped."""
        return min([heard_s, *(began_s for began_s, ended_s in self.pauses if ended_s >= heard_s)])


def new_call_id(world: "World") -> UUID:
    """A UUIDv7 by the world's time, in the order in which they are made."""
    world.calls_made += 1
    millis = int((EPOCH_S + world.scheduler.now_s) * 1000)
    call_id = UUID(int=(millis << 80) | (7 << 76) | ((world.calls_made & 0xFFF) << 64) | (2 << 62) | world.calls_made)
    if world.asking is not None:
        world.asking.made_id, world.asking = str(call_id), None
    return call_id


def new_uuid(chance: Random, version: int) -> UUID:
    return UUID(int=chance.getrandbits(128), version=version)
