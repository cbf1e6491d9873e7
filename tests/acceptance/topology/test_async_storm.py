"""Many asynchronous calls in flight, and `kill -9` of every kind of process in turn: all end, none is lost, none that
must not runs twice, and every end is told, signed.

REACH_TEST_STORM_CALLS (100) are kept in flight through REACH_TEST_STORM_ROUNDS (1) rounds of four kills.
"""

import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from tests.acceptance.agents import Agent, NewAgent, calls_where, receipts_of
from tests.acceptance.instance import CHECKOUT
from tests.bed.process import Process, wait_until
from tests.bed.topology import Topology
from tests.fakes import Delivery, FakeReceiver, Invocation, OwnLoop

CALLS = int(os.environ.get("REACH_TEST_STORM_CALLS", "100"))
ROUNDS = int(os.environ.get("REACH_TEST_STORM_ROUNDS", "1"))
PER_S = 40
"""So many calls end in a second, about: their work takes as long as that needs with so many in flight."""
TIMEOUT_MS = 12_000 + 4 * CALLS * 1000 // PER_S
"""What may not be repeated and tells nothing is waited for until then."""
PATIENCE_S = 120 + 2 * TIMEOUT_MS / 1000


@dataclass
class NodeLog:
    """What nodes do, and write down themselves before they do it."""

    path: Path
    agents: dict[str, Agent]
    reach: Topology
    working: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, invocation: Invocation) -> None:
        kind = invocation.envelope["labels"]["kind"]
        run = {"call_id": invocation.call_id, "attempt": invocation.attempt, "idempotent": kind == "idempotent"}
        with self.path.open("a") as file:
            file.write(json.dumps(run) + "\n")

    async def works(self, invocation: Invocation) -> web.Response:
        """Answers when it is done: who forwarded the envelope has to live so long."""
        self.begin(invocation)
        await asyncio.sleep(invocation.payload["work_s"])
        return web.json_response({"output": invocation.payload["n"]})

    async def works_on(self, invocation: Invocation) -> web.Response:
        """202, and the result as a receipt, until somebody takes it."""
        self.begin(invocation)
        task = asyncio.get_running_loop().create_task(self.report(invocation))
        self.working.add(task)
        task.add_done_callback(self.working.discard)
        return web.Response(status=202)

    async def report(self, invocation: Invocation) -> None:
        await asyncio.sleep(invocation.payload["work_s"])
        receipt = {"kind": "succeeded", "attempt": invocation.attempt, "output": invocation.payload["n"]}
        headers = {"Authorization": f"Bearer {self.agents['background'].key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for n in range(10_000):
                url = self.reach.dispatchers[n % len(self.reach.dispatchers)].url
                with suppress(aiohttp.ClientError, ConnectionError):
                    path = f"{url}/api/v1/calls/{invocation.call_id}/receipts"
                    async with session.post(path, json=receipt) as answer:
                        if answer.status < 500:
                            return
                await asyncio.sleep(0.2)


class Storm:
    """A caller that keeps so many asynchronous calls in flight: it asks for another one when it is told of an end."""

    def __init__(self, reach: Topology, agents: dict[str, Agent], receiver: FakeReceiver, key: str):
        self.reach, self.agents, self.receiver, self.key = reach, agents, receiver, key
        self.accepted: list[str] = []
        self.asked = 0
        self.refused: Counter[str] = Counter()
        self.over = False
        self.own = OwnLoop("storm")
        self.name = secrets.token_hex(4)

    @property
    def told(self) -> int:
        """Of how many calls the end was told."""
        return len({delivery.call_id for delivery in self.receiver.deliveries})

    @property
    def in_flight(self) -> int:
        return len(self.accepted) - self.told

    def go_on(self, ends: int) -> None:
        """Return when so many more ends were told."""
        before = self.told
        wait_until(lambda: self.told >= before + ends, f"{ends} more ends are told", PATIENCE_S)

    async def rage(self) -> None:
        chance = random.Random(6)
        work_s = CALLS / PER_S
        asking: set[asyncio.Task[None]] = set()
        headers = {"Authorization": f"Bearer {self.key}"}
        patience = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(headers=headers, timeout=patience) as session:
            while not self.over:
                for _ in range(min(20, CALLS - self.in_flight - len(asking))):
                    kind = chance.choice(list(self.agents))
                    body = {
                        "capability": self.agents[kind].capability,
                        "payload": {"n": self.asked, "work_s": work_s * chance.uniform(0.5, 1.5)},
                        "mode": "async",
                        "callback_url": self.receiver.url,
                        "idempotency_key": f"{self.name} {self.asked}",
                        "timeout_ms": TIMEOUT_MS,
                        "labels": {"kind": kind},
                        "urgency": chance.choice(["interactive", "normal", "bulk"]),
                    }
                    self.asked += 1
                    task = asyncio.create_task(self.ask(session, body, self.asked))
                    asking.add(task)
                await asyncio.sleep(0.05)
                for task in [task for task in asking if task.done()]:
                    asking.discard(task)
                    task.result()  # raises what it has raised
            await asyncio.gather(*asking)

    async def ask(self, session: aiohttp.ClientSession, body: dict[str, Any], first: int) -> None:
        """Ask until it is accepted, at one dispatcher after the other."""
        for n in range(10_000):
            url = self.reach.dispatchers[(first + n) % len(self.reach.dispatchers)].url
            try:
                async with session.post(f"{url}/api/v1/dispatch", json=body) as answer:
                    if answer.status == 202:
                        self.accepted.append((await answer.json())["call_id"])
                        return
                    self.refused[str(answer.status)] += 1
                    assert answer.status == 503, await answer.text()
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                self.refused["broke"] += 1
            await asyncio.sleep(0.2)


@contextmanager
def raging(storm: Storm) -> Iterator[None]:
    raged = asyncio.run_coroutine_threadsafe(storm.rage(), storm.own.loop)
    try:
        yield
    finally:
        storm.over = True
        try:
            raged.result(PATIENCE_S)
        finally:
            storm.own.close()


@pytest.fixture
def patron(reach: Topology) -> dict[str, str]:
    """Who asks: its key and signing secret."""
    asked = {"service_id": "storm", "scopes": ["dispatch"]}
    made: dict[str, str] = reach.request("POST", "/api/v1/keys", asked, key=reach.key).json
    return made


@pytest.fixture
def receiver(patron: dict[str, str]) -> Iterator[FakeReceiver]:
    """Takes what is signed with the patron's secret; a signature is good for some minutes, so it looks at once."""
    webhook = Webhook(patron["signing_secret"])

    async def receive(delivery: Delivery) -> web.Response:
        webhook.verify(delivery.body, dict(delivery.headers))  # raises: then it answers 500
        return web.Response(status=204)

    receiver = FakeReceiver(receive)
    yield receiver
    receiver.close()


def agents_at_work(reach: Topology, new_agent: NewAgent, folder: Path) -> dict[str, Agent]:
    lasting = {"lease_ttl_s": 3600}  # nobody's heart beats here
    agents = {
        "idempotent": new_agent(at=reach, idempotent=True, about_node=lasting),
        "plain": new_agent(at=reach, about_node=lasting),
        "background": new_agent(at=reach, about_node=lasting),
    }
    (folder / "runs.jsonl").touch()
    log = NodeLog(folder / "runs.jsonl", agents, reach)
    agents["idempotent"].node.behave = agents["plain"].node.behave = log.works
    agents["background"].node.behave = log.works_on
    for agent in agents.values():
        for dispatcher in reach.dispatchers:
            wait_until(lambda agent=agent, at=dispatcher: agent.is_known_to(at), "every dispatcher knows it")
    return agents


@pytest.mark.timeout(300 + int(ROUNDS * 4 * 60 + PATIENCE_S * 2))
def test_nothing_is_lost(
    reach: Topology, new_agent: NewAgent, patron: dict[str, str], receiver: FakeReceiver, tmp_path: Path
) -> None:
    agents = agents_at_work(reach, new_agent, tmp_path)
    storm = Storm(reach, agents, receiver, patron["key"])
    began = time.monotonic()
    with raging(storm):
        storm.go_on(CALLS // 4)
        for number in range(ROUNDS):
            for victim in victims(reach, number):
                wait_until(lambda: storm.in_flight >= 0.9 * CALLS, "as many are in flight as should be", PATIENCE_S)
                victim.kill()
                storm.go_on(CALLS // 10)
                victim.start()
                storm.go_on(CALLS // 10)
    took_s = time.monotonic() - began
    wait_until(lambda: not still_open(reach, agents), "every call has ended", PATIENCE_S)
    wait_until(lambda: storm.in_flight <= 0, "every end is told", PATIENCE_S)
    print(f"\n{storm.asked} calls in {took_s:.0f} s, {ROUNDS} rounds of kills; not accepted at once: {storm.refused}")

    judge_histories(reach, agents, storm.accepted, tmp_path)
    judge_callbacks(reach, agents, receiver)


def victims(reach: Topology, number: int) -> list[Process]:
    """Who is killed in a round: of those that there are two, each in its turn."""
    return [reach.dispatchers[number % 2], reach.workers[number % 2], reach.beat, reach.redis]


def still_open(reach: Topology, agents: dict[str, Agent]) -> list[dict[str, Any]]:
    names = {agent.capability for agent in agents.values()}
    calls = [call for status in ("accepted", "running") for call in calls_where(reach, status=status)]
    return [call for call in calls if call["capability"] in names]


def unsettled(reach: Topology, agents: dict[str, Agent]) -> list[dict[str, Any]]:
    return [call for call in calls_of(reach, agents) if call["callback"]["status"] == "pending"]


def calls_of(reach: Topology, agents: dict[str, Agent]) -> list[dict[str, Any]]:
    return [call for agent in agents.values() for call in calls_where(reach, capability=agent.capability)]


def judge_histories(reach: Topology, agents: dict[str, Agent], accepted: list[str], folder: Path) -> None:
    """By a program that reads only what the nodes wrote down, and the receipts."""
    ids = [call["call_id"] for call in calls_of(reach, agents)]
    with ThreadPoolExecutor(4) as readers, (folder / "receipts.jsonl").open("w") as file:
        for call_id, told in zip(ids, readers.map(lambda call_id: receipts_of(reach, call_id), ids), strict=True):
            file.write(json.dumps({"call_id": call_id, "receipts": told}) + "\n")
    (folder / "accepted.jsonl").write_text("".join(json.dumps(call_id) + "\n" for call_id in accepted))
    command = [sys.executable, "-m", "tests.acceptance.topology.histories", str(folder)]
    judged = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    print(judged.stdout)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def judge_callbacks(reach: Topology, agents: dict[str, Agent], receiver: FakeReceiver) -> None:
    """Each end was told, as it is written, and taken as signed; and nothing else was told."""
    calls = {call["call_id"]: call for call in calls_of(reach, agents)}
    for delivery in receiver.deliveries:
        call = {name: value for name, value in calls[delivery.call_id].items() if name != "callback"}
        assert delivery.document == call
        assert delivery.headers["webhook-id"] == f"{delivery.call_id}.callback"
    told = Counter(delivery.call_id for delivery in receiver.deliveries)
    assert told.keys() == calls.keys()
    wait_until(lambda: not unsettled(reach, agents), "every callback is settled", PATIENCE_S)
    fates = {(call["callback"]["status"], call["callback"]["log"][-1]["status"]) for call in calls_of(reach, agents)}
    assert fates == {("delivered", 204)}, "all were signed"
    statuses = Counter(call["status"] for call in calls.values())
    print(f"{told.total()} callbacks for {len(calls)} ends ({dict(statuses)}), all signed")
    codes = Counter(call["error"]["code"] for call in calls.values() if call["error"])
    assert codes.keys() <= {"deadline_exceeded", "upstream_error", "unavailable"}, codes
    for call in calls.values():
        if call["error"] and call["error"]["code"] == "upstream_error":
            assert call["error"]["outcome_unknown"], call
