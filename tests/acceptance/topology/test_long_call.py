"""A long call outlives a rolling restart of everything but the database, and is done once.

REACH_TEST_LONG_CALL_S (3): how long it takes at least; it lasts until everything has been restarted.
"""

import os
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.agents import dispatch, ended_call, kinds_of
from tests.acceptance.instance import Answer, Instance
from tests.acceptance.sdk.agents import key_for, spawn_agent, wait_ready
from tests.bed.process import wait_until
from tests.bed.topology import Background, Topology

WORKS_S = float(os.environ.get("REACH_TEST_LONG_CALL_S", "3"))

AGENT = """
import os
import time
from agent_reach import AgentClient, Capability

client = AgentClient("{service}", running_interval_s=2)
client.register_capability(Capability(name="{service}_work", timeout_tier="heavy"))

@client.handle("{service}_work")
def work(payload, ctx):
    with open("{runs}", "a") as runs:
        runs.write(payload["by"] + "\\n")
    time.sleep({works_s})
    while not os.path.exists("{restarted}"):
        time.sleep(0.1)
    return payload["by"]

client.start()
"""


def make_hasty(processes: Iterable[Instance | Background]) -> None:
    """Let them wait for nothing when they are stopped next; those that follow them are as before."""
    for process in processes:
        given = dict(process.environment)
        process.stop()
        process.environment["REACH_DRAIN_S"] = "0.5"
        process.start()
        process.environment = given


@pytest.mark.timeout(240 + int(WORKS_S))
def test_it_is_done_once(reach: Topology, tmp_path: Path) -> None:
    make_hasty([*reach.dispatchers, *reach.workers])
    service, runs, restarted = f"slow-{secrets.token_hex(3)}", tmp_path / "runs", tmp_path / "restarted"
    script = AGENT.format(service=service, runs=runs, restarted=restarted, works_s=WORKS_S)
    agent = spawn_agent(tmp_path, script, reach_addr=reach.url, key=key_for(reach, service))
    try:
        wait_ready(reach, service, agent)
        first = reach.dispatchers[0]
        with ThreadPoolExecutor(1) as waiting:
            waiter = waiting.submit(dispatch, first, f"{service}_work", {"by": "sync"}, idempotency_key=service)
            asynchronous = dispatch(first, f"{service}_work", {"by": "async"}, mode="async").json["call_id"]
            wait_until(lambda: runs.exists() and len(runs.read_text().split()) == 2, "both are at work")
            for process in reach.processes:
                process.stop()
                process.start()
            reach.redis.stop()
            reach.redis.start()
            told: Answer | BaseException = waiter.exception() or waiter.result()
            assert isinstance(told, OSError) or told.status == 503, "its dispatcher has stopped"
            restarted.touch()
            call = ended_call(reach, asynchronous, timeout_s=WORKS_S + 60)
            again = dispatch(first, f"{service}_work", {"by": "sync"}, idempotency_key=service)
    finally:
        agent.remove()
    assert (call["status"], call["output"], call["attempts"]) == ("succeeded", "async", 1)
    assert (again.status, again.json["output"], again.json["attempts"]) == (200, "sync", 1)
    assert sorted(runs.read_text().split()) == ["async", "sync"], "each ran once"
    for call_id in (asynchronous, again.json["call_id"]):
        assert "recovered" in kinds_of(reach, call_id)
