"""The simulated Redis: one channel, trials (SET NX PX) and leases of rates, as far as `routing.sharing` uses it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from redis.exceptions import ConnectionError

from routing.core.limits import Bucket, full, taken, tokens_left
from tests.simulation.scheduler import ProcessLoop, Scheduler

WAY_S = 0.0004


class Redis:
    """The server, and every connection to it: commands take time, and fail while it is away or late."""

    def __init__(self, scheduler: Scheduler, chance: Random):
        self.scheduler, self.chance = scheduler, chance
        self.is_away = False
        self.slowness = 1.0
        self.held: dict[str, float] = {}
        self.buckets: dict[str, Bucket] = {}
        self.ears: dict[Ears, None] = {}

    def way_s(self) -> float:
        return WAY_S * self.slowness * (0.5 + self.chance.random())

    def leave(self) -> None:
        self.is_away = True
        for ears in list(self.ears):
            ears.break_()
        self.ears.clear()

    def come_back(self) -> None:
        """With nothing in its memory."""
        self.is_away = False
        self.held.clear()
        self.buckets.clear()

    @asynccontextmanager
    async def connected(self, loop: ProcessLoop) -> AsyncIterator[tuple["Connection", "Ears"]]:
        ears = Ears(self, loop)
        try:
            yield Connection(self), ears
        finally:
            self.ears.pop(ears, None)

    async def answer(self) -> None:
        await asyncio.sleep(2 * self.way_s())
        if self.is_away:
            raise ConnectionError("Connection refused")

    def publish(self, message: bytes) -> None:
        self.scheduler.after(self.way_s(), self.deliver, message)

    def deliver(self, message: bytes) -> None:
        for ears in self.ears:
            ears.hear(message)

    def set(self, name: str, value: str, px: int) -> bool:
        now_s = self.scheduler.now_s
        if self.held.get(name, 0.0) > now_s:
            return False
        self.held[name] = now_s + px / 1000
        return True

    def lease(self, name: str, rate: float, most: float, owed: int, want: int) -> tuple[int, str]:
        """What `routing.sharing.LEASE` does."""
        now_s = self.scheduler.now_s
        bucket = taken(self.buckets.get(name) or full(rate, now_s), rate, now_s, owed)
        granted = max(0, min(want, int(tokens_left(bucket, rate, now_s))))
        bucket = self.buckets[name] = taken(bucket, rate, now_s, granted)
        return granted, str(bucket.tokens)


class Connection:
    """The speaking one."""

    def __init__(self, redis: Redis):
        self.redis = redis

    async def publish(self, channel: str, message: bytes) -> None:
        await self.redis.answer()
        self.redis.publish(message)

    def pipeline(self, *, transaction: bool) -> "Pipeline":
        return Pipeline(self.redis)


class Pipeline:
    def __init__(self, redis: Redis):
        self.redis = redis
        self.asked: list[tuple[Any, ...]] = []

    async def __aenter__(self) -> "Pipeline":
        return self

    async def __aexit__(self, *_exc: Any) -> None:
        self.asked.clear()

    def set(self, name: str, value: str, *, nx: bool, px: int) -> None:
        self.asked.append((self.redis.set, name, value, px))

    def eval(self, script: str, keys: int, name: str, rate: float, most: float, owed: int, want: int) -> None:
        self.asked.append((self.redis.lease, name, rate, most, owed, want))

    async def execute(self) -> list[Any]:
        if not self.asked:
            return []
        await self.redis.answer()
        return [run(*parameters) for run, *parameters in self.asked]


class Ears:
    """The listening one."""

    def __init__(self, redis: Redis, loop: ProcessLoop):
        self.redis, self.loop = redis, loop
        self.heard: deque[bytes] = deque()
        self.waiting: asyncio.Future[None] | None = None
        self.is_broken = False

    async def subscribe(self, channel: str) -> None:
        await self.redis.answer()
        self.redis.ears[self] = None

    def hear(self, message: bytes) -> None:
        self.heard.append(message)
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def break_(self) -> None:
        self.is_broken = True
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ConnectionError("Connection closed by server."))

    def listen(self) -> "Ears":
        return self

    def __aiter__(self) -> "Ears":
        return self

    async def __anext__(self) -> dict[str, Any]:
        while not self.heard:
            if self.is_broken:
                raise ConnectionError("Connection closed by server.")
            self.waiting = self.loop.create_future()
            await self.waiting
        return {"type": "message", "data": self.heard.popleft()}
