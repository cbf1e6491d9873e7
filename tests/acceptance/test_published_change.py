"""A published table is used by every dispatcher process within 2 s, and no call fails over it."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.acceptance.agents import Agent, NewAgent, as_person, publish
from tests.acceptance.instance import Instance, wait_until

IN_USE_WITHIN_S = 2.0
CHANGES = 3
CALLERS = 4

Pair = tuple[Instance, Instance]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the traffic: which process took it, when it began, what was told."""

    process: str
    started_at: float
    status: int
    body: dict[str, Any]


async def traffic(pair: Pair, capability: str, over: asyncio.Event) -> list[Call]:
    """Callers at both processes who ask without pause until `over`."""
    made: list[Call] = []

    async def caller(reach: Instance, session: aiohttp.ClientSession) -> None:
        while not over.is_set():
            started_at = time.monotonic()
            async with session.post("/api/v1/dispatch", json={"capability": capability, "payload": {}}) as response:
                made.append(Call(reach.url, started_at, response.status, await response.json(content_type=None)))

    async def callers(reach: Instance) -> None:
        headers = {"Authorization": f"Bearer {reach.key}"}
        async with aiohttp.ClientSession(reach.url, headers=headers) as session:
            await asyncio.gather(*(caller(reach, session) for _ in range(CALLERS)))

    await asyncio.gather(*map(callers, pair))
    return made


@pytest.fixture
def agents(pair: Pair, new_agent: NewAgent) -> tuple[Agent, Agent]:
    """Two services that offer the same."""
    first = new_agent(at=pair[0])
    second = new_agent(at=pair[0], capability=first.capability)
    for agent in (first, second):
        wait_until(lambda agent=agent: agent.is_known_to(pair[1]), "the other process knows it too")
    return first, second


async def test_a_change_is_in_use_everywhere_within_two_seconds_and_fails_no_call(
    pair: Pair, agents: tuple[Agent, Agent]
) -> None:
    approver = await asyncio.to_thread(as_person, pair[0], "second-person", "approver")
    over = asyncio.Event()
    calls_made = asyncio.create_task(traffic(pair, agents[0].capability, over))
    published: list[tuple[float, int, str]] = []
    for number in range(CHANGES):
        to = agents[number % 2].service_id
        rule = {"op": "put", "id": "moves", "match": {"capability": agents[0].capability}}
        operation = rule | {"strategy": {"type": "exact", "service": to}}
        revision = await asyncio.to_thread(publish, pair[number % 2 - 1], approver, operations=[operation])
        published.append((time.monotonic(), revision, to))
        await asyncio.sleep(IN_USE_WITHIN_S + 0.3)  # the promise, and some calls after it
    over.set()
    calls = await calls_made

    assert {call.status for call in calls} == {200}, [call.body for call in calls if call.status != 200][:3]
    ends = [*(at for at, _revision, _to in published[1:]), time.monotonic()]
    for (at, revision, to), until in zip(published, ends, strict=True):
        for process in {call.process for call in calls}:
            settled = [
                (call.body["table_revision"], call.body["route_id"], call.body["service_id"])
                for call in calls
                if call.process == process and at + IN_USE_WITHIN_S <= call.started_at < until - 0.1
            ]
            assert settled and set(settled) <= {(revision, "moves", to)} | later(published, revision), process


def later(published: list[tuple[float, int, str]], revision: int) -> set[tuple[int, str, str]]:
    """What calls may also show that began while the next change was being published."""
    return {(number, "moves", to) for _at, number, to in published if number == revision + 1}
