"""What the processes of one installation tell each other of breakers, rates and retries, over Redis.

A task of the process's own event loop does all of it: what has happened goes out every REACH_SHARING_INTERVAL_S, what
has turned at once, and no call ever waits for Redis. While Redis is away or silent, each process goes by its own view.
See docs/adr/0010.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from receipts.journal import end, keep_running
from registry.clock import monotonic
from routing.core.balancing import RateKey
from routing.core.breaker import State
from routing.core.limits import burst
from routing.health import NodeKey, NodeLoad, Shared

log = logging.getLogger(__name__)

CHANNEL = "reach:load"
PATIENCE_S = 1.0
"""A Redis that takes longer counts as away."""

TOGETHER_S = 0.01
"""What is to be told at once waits so long for company."""
QUIET_S = 5.0
"""A lease that nobody asks of is renewed so seldom at the slowest rates."""

LEASE = """
local rate, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local known = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(known[1]) or most, tonumber(known[2]) or now
tokens = math.min(most, tokens + math.max(0, now - at) * rate)
tokens = math.min(most, tokens - tonumber(ARGV[3]))
local granted = math.max(0, math.min(tonumber(ARGV[4]), math.floor(tokens)))
tokens = tokens - granted
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', tostring(now))
redis.call('PEXPIRE', KEYS[1], math.ceil((most - tokens) / rate * 1000) + 1000)
return {granted, tostring(tokens)}
"""
"""A rate's bucket, by Redis's clock: takes what was sent beyond the last lease (it may owe), leases what is asked."""


class Told(msgspec.Struct, omit_defaults=True):
    """One process's message to the others. Breakers are named "service/node", a service's own "service/"."""

    owner: str
    hello: bool = False
    """It has just come: whoever knows of open breakers is to say so."""
    attempts: dict[str, tuple[int, int]] = {}
    """Attempts and errors since its last message."""
    calls: dict[str, tuple[int, int]] = {}
    """Calls and retries of services since then."""
    opened: dict[str, tuple[float, int, int]] = {}
    """When (s by the reach's clock), and by how many attempts and errors."""
    tried: dict[str, float] = {}
    closed: dict[str, float] = {}
    """Breakers whose trial has succeeded, and when they had become half-open."""


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Told).decode
Connected = Callable[[], AbstractAsyncContextManager[tuple[Redis, PubSub]]]
"""Opens a connection to speak and one to listen, and closes them."""


class Sharing:
    """Keeps one process's `load` in step with those of the others."""

    def __init__(self, connected: Connected, owner: str, load: NodeLoad, *, interval_s: float, retry_s: float):
        self.connected, self.owner, self.load = connected, owner, load
        self.interval_s, self.retry_s = interval_s, retry_s
        self.away = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(keep_running(self.run, self.retry_s), name="sharing")

    async def stop(self) -> None:
        if self.task is not None:
            await end([self.task])

    async def run(self) -> None:
        while True:
            try:
                await self.share()
            except* (RedisError, OSError, TimeoutError) as lost:
                if not self.away:
                    why = lost.exceptions[0]
                    log.warning("breakers and rates go by this process alone: Redis is away (%s)", why or type(why))
                self.away = True
            finally:
                self.load.shared = None
            await asyncio.sleep(self.retry_s)

    async def share(self) -> None:
        """Connect, then tell and hear until something fails."""
        async with self.connected() as (redis, ears):
            async with asyncio.timeout(PATIENCE_S):
                await ears.subscribe(CHANNEL)
                await redis.publish(CHANNEL, encode(Told(self.owner, hello=True)))
            shared = self.load.shared = Shared()
            shared.turned.update(self.load.opened)
            if self.away:
                self.away = False
                log.warning("breakers and rates are shared again: Redis is back")
            async with asyncio.TaskGroup() as both:
                both.create_task(self.hear(ears, shared))
                both.create_task(self.tell(redis, shared))

    # --- Telling -----------------------------------------------------------------------------------------------------

    async def tell(self, redis: Redis, shared: Shared) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.interval_s):
                    await shared.stirred.wait()
            if shared.stirred.is_set():
                await asyncio.sleep(TOGETHER_S)
                shared.stirred.clear()
            async with asyncio.timeout(PATIENCE_S):
                if told := self.news(shared):
                    await redis.publish(CHANNEL, encode(told))
                await self.ask_for_trials(redis, shared)
                if shared.leases:
                    await self.renew_leases(redis, shared)

    def news(self, shared: Shared) -> Told | None:
        """What has happened since the last message; None: nothing."""
        self.load.settle()
        if not (shared.attempts or shared.calls or shared.turned or shared.tried):
            return None
        told = Told(
            self.owner,
            attempts={name_of(key): (counts[0], counts[1]) for key, counts in shared.attempts.items()},
            calls={service_id: (counts[0], counts[1]) for service_id, counts in shared.calls.items()},
            opened={
                name_of(key): (breaker.opened_at_s, *breaker.opened_by)
                for key, breaker in shared.turned.items()
                if breaker.opened_at_s is not None
            },
            tried={name_of(key): at_s for key, at_s in shared.tried.items()},
            closed={
                name_of(key): breaker.since_s for key, breaker in shared.turned.items() if breaker.opened_at_s is None
            },
        )
        for said in (shared.attempts, shared.calls, shared.turned, shared.tried):
            said.clear()
        return told

    async def ask_for_trials(self, redis: Redis, shared: Shared) -> None:
        """For each half-open breaker one process gets the trial: who is first to ask."""
        load, now = self.load, self.load.clock()
        wanted = [
            (key, breaker)
            for key, breaker in load.opened.items()
            if key not in shared.trials and breaker.state(load.rules_of(key), now) is State.HALF_OPEN
        ]
        if not wanted:
            return
        async with redis.pipeline(transaction=False) as pipeline:
            for key, _breaker in wanted:
                # a little shorter than a trial may take: then somebody else is to get one
                held_ms = int(load.rules_of(key).open_s * 800)
                pipeline.set(f"reach:trial:{name_of(key)}", self.owner, nx=True, px=max(1, held_ms))
            answers = await pipeline.execute()
        for (key, breaker), is_ours in zip(wanted, answers, strict=True):
            if is_ours:
                load.grant_trial(key, breaker)

    async def renew_leases(self, redis: Redis, shared: Shared) -> None:
        """Settle what was sent under each rate, and lease what was asked for of it."""
        asked: list[tuple[RateKey, int, int]] = []
        async with redis.pipeline(transaction=False) as pipeline:
            now = monotonic()
            for key, lease in shared.leases.items():
                if not (lease.asked or lease.spent or lease.granted) and now < lease.renewed_at + min(
                    1 / lease.rate_per_s, QUIET_S
                ):
                    continue
                lease.renewed_at = now
                most = burst(lease.rate_per_s)
                want = min(lease.asked, int(most))
                asked.append((key, lease.spent, want))
                owed = lease.spent - lease.granted
                pipeline.eval(LEASE, 1, "reach:rate:" + "/".join(key), lease.rate_per_s, most, owed, want)
                lease.asked = 0
            answers = await pipeline.execute() if asked else []
        for (key, spent, want), (granted, left) in zip(asked, answers, strict=True):
            lease = shared.leases[key]
            lease.spent -= spent
            lease.granted = int(granted)
            lease.tokens = lease.granted + float(left) - lease.spent
            if not (want or lease.spent) and lease.tokens >= burst(lease.rate_per_s):
                del shared.leases[key]  # full again: nobody has sent for a while

    # --- Hearing -----------------------------------------------------------------------------------------------------

    async def hear(self, ears: PubSub, shared: Shared) -> None:
        async for message in ears.listen():
            if message["type"] != "message":
                continue
            with suppress(msgspec.MsgspecError):  # of another version, during an upgrade
                told = decode(message["data"])
                if told.owner != self.owner:
                    self.take_in(told, shared)

    def take_in(self, told: Told, shared: Shared) -> None:
        """Go by what another process has seen."""
        load = self.load
        if told.hello and load.opened:
            shared.turned.update(load.opened)
            shared.stirred.set()
        for name, (attempts, errors) in told.attempts.items():
            load.count_elsewhere(key_of(name), attempts, errors)
        for service_id, (calls, retries) in told.calls.items():
            load.charge_elsewhere(service_id, calls, retries)
        for name, (at_s, attempts, errors) in told.opened.items():
            load.open_elsewhere(key_of(name), at_s, (attempts, errors))
        for name, at_s in told.tried.items():
            load.try_elsewhere(key_of(name), at_s)
        for name, since_s in told.closed.items():
            load.close_elsewhere(key_of(name), since_s)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Redis, PubSub]]:
    """A connection to speak and one to listen; they are made when first used.

    Whoever speaks keeps the time himself: with a `socket_timeout` the client sends by `wait_for`, which loses a cancel
    before Python 3.12, and a task group gives its tasks but one. Stopping hung on that, one time in a hundred.
    """
    async with (
        Redis.from_url(url, socket_timeout=None, socket_connect_timeout=PATIENCE_S) as redis,
        Redis.from_url(url, socket_timeout=None, socket_connect_timeout=PATIENCE_S) as listening,
        listening.pubsub() as ears,
    ):
        yield redis, ears


def name_of(key: NodeKey) -> str:
    return "/".join(key)


def key_of(name: str) -> NodeKey:
    service_id, _slash, node_id = name.partition("/")
    return service_id, node_id
