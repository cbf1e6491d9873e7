"""Callers who ask at a steady rate whatever happens, and what must be true of their calls afterwards."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from tests.acceptance.agents import Agent, NewAgent, calls_where
from tests.bed.process import wait_until
from tests.bed.topology import Topology
from tests.fakes import Invocation, OwnLoop

KINDS = ("idempotent", "plain")
LONG_SHARE, LONG_MS = 0.04, 3000
PATIENCE_S = 120.0
TIMEOUT_MS = 30_000
AGAIN_AFTER_S = 0.2


async def works_as_told(invocation: Invocation) -> web.Response:
    await asyncio.sleep(invocation.payload["work_ms"] / 1000)
    return web.json_response({"output": {"n": invocation.payload["n"]}})


@dataclass(slots=True)
class Asked:
    """One call: the status of each answer (None: the connection broke or was refused), and the last one's body."""

    kind: str
    n: int
    work_ms: int
    statuses: list[int | None] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)
    over: bool = False


class SteadyCallers:
    """Callers of two agents (one idempotent, one not), at every dispatcher in turn.

    One whose connection breaks or is refused, or who is told `unavailable`, goes to the next dispatcher with the same
    idempotency key.
    """

    def __init__(self, reach: Topology, new_agent: NewAgent, *, rate_per_s: float, timeout_ms: int = TIMEOUT_MS):
        self.reach, self._pause_s, self._timeout_ms = reach, 1 / rate_per_s, timeout_ms
        self.agents: dict[str, Agent] = {
            kind: new_agent(works_as_told, at=reach, idempotent=kind == "idempotent")
            for kind in ("idempotent", "plain")
        }
        for agent in self.agents.values():
            for dispatcher in reach.dispatchers:
                wait_until(lambda agent=agent, at=dispatcher: agent.is_known_to(at), "every dispatcher knows it")
        self.asked: list[Asked] = []
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        self._own = OwnLoop("steady callers")
        self._calls = asyncio.run_coroutine_threadsafe(self._ask_steadily(), self._own.loop)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._own.loop.call_soon_threadsafe(self._over.set)
        try:
            self._calls.result(PATIENCE_S)
        finally:
            self._own.close()

    def key_of(self, each: Asked) -> str:
        """Its idempotency key."""
        return f"{self.agents[each.kind].capability}-{each.n}"

    def answered(self) -> int:
        """How many have their last answer."""
        return sum(each.over for each in self.asked)

    def go_on(self, calls: int) -> None:
        """Return when so many more have their answer."""
        before = self.answered()
        wait_until(lambda: self.answered() >= before + calls, f"{calls} more calls are answered")

    def long_ones_under_way(self) -> None:
        """Return when each agent has several long calls at work."""
        for kind in self.agents:
            wait_until(lambda kind=kind: self._long_and_open(kind) >= 2, f"long calls of {kind} are under way")

    def _long_and_open(self, kind: str) -> int:
        return sum(each.kind == kind and each.work_ms == LONG_MS and not each.over for each in self.asked)

    async def _ask_steadily(self) -> None:
        chance = random.Random(4)
        headers = {"Authorization": f"Bearer {self.reach.key}"}
        turn = cycle(range(len(self.reach.dispatchers)))
        patience = aiohttp.ClientTimeout(total=PATIENCE_S)
        connector = aiohttp.TCPConnector(limit=0)
        loop = asyncio.get_running_loop()
        async with (
            aiohttp.ClientSession(headers=headers, connector=connector, timeout=patience) as session,
            asyncio.TaskGroup() as calls,
        ):
            at = loop.time()
            while not self._over.is_set():
                work_ms = LONG_MS if chance.random() < LONG_SHARE else chance.randint(1, 40)
                self.asked.append(each := Asked(chance.choice(list(self.agents)), len(self.asked), work_ms))
                calls.create_task(self._ask(session, each, next(turn)))
                at += self._pause_s
                await asyncio.sleep(at - loop.time())

    async def _ask(self, session: aiohttp.ClientSession, each: Asked, first: int) -> None:
        agent = self.agents[each.kind]
        asked = {
            "capability": agent.capability,
            "payload": {"n": each.n, "work_ms": each.work_ms},
            "idempotency_key": self.key_of(each),
            "timeout_ms": self._timeout_ms,
        }
        dispatchers = self.reach.dispatchers
        while True:
            url = dispatchers[(first + len(each.statuses)) % len(dispatchers)].url
            try:
                async with session.post(f"{url}/api/v1/dispatch", json=asked) as answer:
                    each.body = await answer.json(content_type=None)
                    each.statuses.append(answer.status)
            except (aiohttp.ClientError, ConnectionError):
                each.statuses.append(None)
            if each.statuses[-1] not in (None, 503):
                each.over = True
                return
            await asyncio.sleep(AGAIN_AFTER_S)


def nothing_is_lost(callers: SteadyCallers) -> None:
    """Every call was told to succeed with its own output, is written so, and ran once where it may not run twice.

    One that was told `unavailable` before may be written so under the same key: its acceptance was committed when the
    connection broke, and it was never sent.
    """
    told_otherwise = [each for each in callers.asked if each.body.get("status") != "succeeded"]
    assert not told_otherwise, told_otherwise[:3]
    for kind, agent in callers.agents.items():
        asked = [each for each in callers.asked if each.kind == kind]
        assert all(each.body["output"] == {"n": each.n} for each in asked)
        calls = calls_where(callers.reach, capability=agent.capability)
        succeeded = Counter(call["idempotency_key"] for call in calls if call["status"] == "succeeded")
        assert succeeded == Counter(map(callers.key_of, asked))
        refused = [call["error"] for call in calls if call["status"] != "succeeded"]
        assert {error["code"] for error in refused} <= {"unavailable"}, refused[:3]
        runs = Counter(run.payload["n"] for run in agent.node.invocations)
        assert runs.keys() == {each.n for each in asked}
        assert kind == "idempotent" or max(runs.values()) == 1, "something ran twice"


def at_first_go(callers: SteadyCallers) -> None:
    """No caller had to ask a second time, no call needed a second attempt."""
    again = [each for each in callers.asked if each.statuses != [200] or each.body["attempts"] != 1]
    assert not again, again[:3]
