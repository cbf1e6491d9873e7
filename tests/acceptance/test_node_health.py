"""Nodes that die, freeze, hang and come back, as agents in processes of their own: noticed at once, and nobody else."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agents import dispatch, key_of
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.sdk.agents import AgentProcess, spawn_agent

AGENT = """
import asyncio
from pathlib import Path
from agent_reach import AgentClient, Capability

client = AgentClient(service_id="{service}", node_id="{node}")
client.register_capability(Capability(name="{capability}", input_schema={{}}, output_schema={{}}, idempotent=True))

@client.handle("{capability}")
async def handle(payload, ctx):
    await asyncio.sleep(0.01)
    return {{"by": "{node}"}}

@client.ready_check
async def dependency():
    while Path("{hangs}").exists():
        await asyncio.sleep(0.05)

client.start()
"""
INTERVAL_S = 4.0
"""REACH_PROBE_INTERVAL_S of the instance of these tests."""
OUT_WITHIN_S = 2 * INTERVAL_S + 4


@pytest.fixture(scope="module")
def watchful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("watchful") / "home", {"REACH_PROBE_INTERVAL_S": f"{INTERVAL_S:g}"})
    try:
        yield instance.start()
    finally:
        instance.remove()


class Pack:
    """Nodes of one service in processes of their own."""

    def __init__(self, reach: Instance, folder: Path, service: str):
        self.reach, self.folder, self.service, self.capability = reach, folder, service, f"{service}_task"
        self.hangs = folder / "hangs"
        self.key = key_of(reach, service, "register", "dispatch")
        self.processes: dict[str, AgentProcess] = {}

    def start(self, node: str) -> "Pack":
        if node in self.processes:
            self.processes[node].remove()
        script = AGENT.format(service=self.service, node=node, capability=self.capability, hangs=self.hangs)
        self.processes[node] = spawn_agent(self.folder, script, reach_addr=self.reach.url, key=self.key)
        self.wait_for(node, "ready", 20)
        return self

    def send(self, node: str, number: int) -> float:
        """Signal a node's process; when (monotonic s)."""
        os.kill(self.processes[node].process.pid, number)
        return time.monotonic()

    def shown(self, node: str) -> dict[str, Any]:
        answer = self.reach.request("GET", f"/api/v1/services/{self.service}/nodes/{node}", key=self.reach.key)
        return answer.json if answer.status == 200 else {"status": "unknown"}

    def wait_for(self, node: str, status: str, timeout_s: float) -> dict[str, Any]:
        return wait_until(
            lambda: found if (found := self.shown(node))["status"] == status else None,
            f"{self.service}/{node} is {status}: {self.shown(node)} {self.processes[node].output}",
            timeout_s,
        )

    def statuses(self, node: str) -> list[str]:
        """Its history, oldest first."""
        path = f"/api/v1/services/{self.service}/nodes/{node}/history"
        return [c["status"] for c in self.reach.request("GET", path, key=self.reach.key).json["results"]][::-1]


@pytest.fixture
def new_pack(watchful: Instance, tmp_path: Path) -> Iterator[Callable[[str], Pack]]:
    made: list[Pack] = []

    def make(service: str) -> Pack:
        folder = tmp_path / service
        folder.mkdir()
        made.append(Pack(watchful, folder, service))
        return made[-1]

    yield make
    for pack in made:
        for process in pack.processes.values():
            process.process.send_signal(signal.SIGCONT)
            process.remove()


class Traffic:
    """Calls one after the other, in two threads, until told to stop."""

    def __init__(self, pack: Pack):
        self.pack, self.answers, self.over = pack, [], threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(2)]

    def run(self) -> None:
        while not self.over.is_set():
            self.answers.append(dispatch(self.pack.reach, self.pack.capability))

    def by(self, node: str, since: int = 0) -> int:
        return sum(a.status == 200 and a.json["node_id"] == node for a in self.answers[since:])

    def __enter__(self) -> "Traffic":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(30)


def test_a_node_killed_under_traffic_costs_no_call_and_comes_back_with_its_registration(new_pack):
    pack = new_pack("killed").start("a").start("b")
    with Traffic(pack) as traffic:
        wait_until(lambda: traffic.by("a") > 5 and traffic.by("b") > 5, "both nodes work")
        killed_at = pack.send("a", signal.SIGKILL)
        found = pack.wait_for("a", "not_ready", 2)
        assert time.monotonic() - killed_at < 2
        assert found["status_reason"] == "connection refused"
        assert pack.statuses("a") == ["starting", "ready", "suspect", "not_ready"]
        told = len(traffic.answers)
        wait_until(lambda: traffic.by("b", since=told) > 5, "the other node has the calls")
        pack.start("a")  # within seconds: its registration asks for a probe at once
        told = len(traffic.answers)
        wait_until(lambda: traffic.by("a", since=told) > 0, "it is called again", 2)
    assert {answer.status for answer in traffic.answers} == {200}


def test_nodes_that_die_and_freeze_and_hang_without_traffic(new_pack):
    dead, frozen, hanging = new_pack("dead").start("a"), new_pack("frozen").start("a"), new_pack("hanging").start("a")
    killed_at = dead.send("a", signal.SIGKILL)
    dead.wait_for("a", "not_ready", 2)
    assert time.monotonic() - killed_at < 2
    assert "suspect" in dead.statuses("a")

    hanging.hangs.touch()
    frozen_at = frozen.send("a", signal.SIGSTOP)
    found = frozen.wait_for("a", "not_ready", OUT_WITHIN_S)
    assert found["status_reason"] == "connects, does not answer"
    assert found["last_probe"]["live"]["error"] == "silence"
    found = hanging.wait_for("a", "not_ready", OUT_WITHIN_S)
    assert found["status_reason"].startswith("says it is not ready: its ready check did not answer")
    assert found["last_probe"]["live"]["status"] == 200
    assert time.monotonic() - frozen_at < OUT_WITHIN_S

    frozen.send("a", signal.SIGCONT)
    hanging.hangs.unlink()
    frozen.wait_for("a", "ready", 4)
    hanging.wait_for("a", "ready", 4)
