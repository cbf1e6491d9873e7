"""What processes share over a real Redis, and that each goes on alone while there is none."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from routing.core.breaker import BreakerRules, State
from routing.core.limits import rate_key
from routing.health import NodeLoad
from routing.sharing import TOGETHER_S, Sharing, connected
from tests.bed.redis import Redis
from tests.factories import a_candidate, an_offer

KEY = ("summarizer", "n1")
RATE = (*KEY, "file_summary")
OPEN_S = 0.4


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis") / "redis.log")
    server.start()
    yield server
    server.remove()


@pytest.fixture(autouse=True)
def left_whole(redis: Redis) -> Iterator[None]:
    yield
    if redis.is_running:
        redis.resume()
    else:
        redis.start()


class Dispatcher:
    """One process's view, and its sharing."""

    def __init__(self, name: str, redis: Redis):
        rules = BreakerRules(min_calls=6, open_s=OPEN_S)
        self.load = NodeLoad(decay_s=10, node_rules=rules, service_rules=BreakerRules(min_calls=1000))
        self.sharing = Sharing(partial(connected, redis.url), name, self.load, interval_s=0.05, retry_s=0.05)

    def fail(self, count: int) -> None:
        for _ in range(count):
            self.load.judge(KEY, failed=True, began_s=self.load.clock())


@asynccontextmanager
async def running(redis: Redis, *names: str) -> AsyncIterator[list[Dispatcher]]:
    dispatchers = [Dispatcher(name, redis) for name in names]
    for one in dispatchers:
        one.sharing.start()
    try:
        await until(lambda: all(one.load.shared is not None for one in dispatchers))
        yield dispatchers
    finally:
        for one in dispatchers:
            await one.sharing.stop()


async def until(holds: Callable[[], bool], timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)


async def test_errors_add_up_and_an_opening_is_everybodys(redis: Redis) -> None:
    async with running(redis, "a", "b") as (a, b):
        a.fail(3)
        b.fail(3)
        await until(lambda: a.load.is_open(KEY) and b.load.is_open(KEY), timeout_s=1)


async def test_one_process_gets_the_trial_and_its_success_closes_all(redis: Redis) -> None:
    async with running(redis, "a", "b") as (a, b):
        a.fail(6)
        await until(lambda: b.load.is_open(KEY))
        await until(lambda: not a.load.shut() or not b.load.shut())
        ours, other = (a, b) if not a.load.shut() else (b, a)
        assert KEY in other.load.shut()
        ours.load.claim(KEY)
        began_s = ours.load.clock()
        await until(lambda: KEY in other.load.shut() and other.load.shut()[KEY].state is State.TRYING)
        ours.load.judge(KEY, failed=False, began_s=began_s)
        await until(lambda: not other.load.opened)


async def test_a_trial_that_nobody_begins_falls_to_who_is_asked(redis: Redis) -> None:
    async with running(redis, "a", "b") as (a, b):
        a.fail(6)
        await until(lambda: b.load.is_open(KEY))
        await until(lambda: not a.load.shut() and not b.load.shut())


async def test_who_comes_later_hears_what_is_open(redis: Redis) -> None:
    async with running(redis, "a") as (a,):
        a.fail(6)
        async with running(redis, "b") as (b,):
            await until(lambda: bool(b.load.opened))


async def test_retries_are_counted_together(redis: Redis) -> None:
    async with running(redis, "a", "b") as (a, b):
        for _ in range(6):
            a.load.count_retry("summarizer")
            b.load.count_retry("summarizer")
        await until(lambda: all(one.load.retry_refusal("summarizer") is not None for one in (a, b)))


@pytest.mark.parametrize("rate", [20.0, 2.0])
async def test_a_rate_is_everybodys_together(redis: Redis, rate: float) -> None:
    rated = a_candidate(f"rated/by-{rate:g}", an_offer(rate_per_s=rate))
    key = rate_key(rated)
    admitted = 0
    async with running(redis, "a", "b", "c") as dispatchers:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (elapsed_s := loop.time() - begun) < 5:
            for one in dispatchers:
                if one.load.tokens(key, rate) >= 1:
                    one.load.take(rated)
                    admitted += 1
            await asyncio.sleep(0.005)
    assert admitted <= rate + rate * elapsed_s
    assert admitted >= 0.8 * rate * elapsed_s


async def test_what_was_leased_and_not_used_comes_back(redis: Redis) -> None:
    rated = a_candidate("rated/seldom", an_offer(rate_per_s=5))
    key = rate_key(rated)
    async with running(redis, "a", "b") as (a, b):
        a.load.take(rated)
        await until(lambda: not a.load.shared.leases)
        for _ in range(5):
            assert b.load.tokens(key, 5) >= 1
            b.load.take(rated)
        assert b.load.tokens(key, 5) < 1


async def test_alone_while_redis_is_away_and_together_again(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "routing.sharing")
    async with running(redis, "a", "b") as (a, b):
        redis.stop()
        await until(lambda: a.load.shared is None and b.load.shared is None)
        a.fail(6)
        assert a.load.is_open(KEY)
        await until(lambda: not a.load.shut())
        assert not b.load.opened
        assert a.load.tokens(RATE, 10) == 10
        redis.start()
        await until(lambda: a.load.shared is not None and b.load.shared is not None)
        await until(lambda: bool(b.load.opened))
    lines = [record.message.partition(":")[0] for record in caplog.records]
    assert sorted(lines) == sorted(
        ["breakers and rates go by this process alone", "breakers and rates are shared again"] * 2
    )


async def test_it_can_be_stopped_in_the_middle_of_a_message(redis: Redis) -> None:
    for step in range(60):
        async with asyncio.timeout(5), running(redis, "a") as (a,):
            a.load.count_call("summarizer")
            a.load.shared.stirred.set()
            await asyncio.sleep(TOGETHER_S + step / 50_000)


async def test_a_redis_that_hangs_counts_as_away(redis: Redis) -> None:
    async with running(redis, "a") as (a,):
        redis.pause()
        a.load.count_call("summarizer")
        await until(lambda: a.load.shared is None)
        redis.resume()
        await until(lambda: a.load.shared is not None)
