"""One dispatcher's clock is five minutes wrong: calls, deadlines, leases and recovery do not notice."""

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agents import NewAgent, call_of, dispatch, kinds_of
from tests.acceptance.instance import Instance
from tests.acceptance.sdk.agents import key_for, spawn_agent, wait_ready
from tests.acceptance.topology.nodes import heart_beating, shown
from tests.bed import clock
from tests.bed.process import wait_until
from tests.bed.topology import Topology
from tests.fakes import answers, says, waits_for

WRONG_BY_S, TIMEOUT_S = 300, 5


@pytest.fixture(scope="module", params=[WRONG_BY_S, -WRONG_BY_S], ids=["ahead", "behind"])
def wrong(request: pytest.FixtureRequest, reach: Topology) -> Iterator[Instance]:
    """The second dispatcher, for a while with such a clock."""
    dispatcher = reach.dispatchers[1]
    right = dict(dispatcher.environment)
    dispatcher.stop()
    dispatcher.environment |= clock.shifted(request.param)
    yield dispatcher.start()
    dispatcher.stop()
    dispatcher.environment = right
    dispatcher.start()


def test_a_call_is_carried_and_its_deadline_holds(reach: Topology, wrong: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(answers({"sum": 42}))
    wait_until(lambda: agent.is_known_to(wrong), "it knows the agent")
    told = dispatch(wrong, agent.capability, timeout_ms=2000)
    assert (told.status, told.json["output"]) == (200, {"sum": 42})
    call = call_of(reach, told.json["call_id"])
    assert call["accepted_at"] <= call["ended_at"] <= call["deadline"]

    gate = threading.Event()
    agent.node.behave = waits_for(gate)
    late = dispatch(wrong, agent.capability, timeout_ms=1000)
    gate.set()
    assert (late.status, late.json["code"]) == (504, "deadline_exceeded")


AGENT = """
from agent_reach import AgentClient, Capability

client = AgentClient("{service}")
client.register_capability(Capability(name="{service}_work", input_schema={{"type": "object"}}))

@client.handle("{service}_work")
def work(payload, ctx):
    return {{"left_ms": ctx.remaining_ms()}}

client.start()
"""


def test_an_agent_whose_clock_is_wrong_too(reach: Topology, wrong: Instance, tmp_path: Path) -> None:
    service = f"clockwork-{secrets.token_hex(3)}"
    key = key_for(reach, service)
    agent = spawn_agent(
        tmp_path, AGENT.format(service=service), reach_addr=wrong.url, key=key, **clock.shifted(-WRONG_BY_S)
    )
    try:
        wait_ready(reach, service, agent)
        told = wait_until(lambda: succeeded(wrong, f"{service}_work"), "it answers")
    finally:
        agent.remove()
    assert 0 < told["output"]["left_ms"] <= TIMEOUT_S * 1000


def succeeded(at: Instance, capability: str) -> dict[str, Any] | None:
    answer = dispatch(at, capability, timeout_ms=TIMEOUT_S * 1000)
    return answer.json if answer.status == 200 else None


def test_a_lease_renewed_there_lasts(reach: Topology, wrong: Instance, new_agent: NewAgent) -> None:
    declared = {"lease_ttl_s": 3, "heartbeat_interval_s": 1}
    agent = new_agent(at=wrong, about_node=declared)
    first = shown(reach, agent)["lease_expires_at"]
    with heart_beating(agent, every_s=0.5):
        wait_until(lambda: shown(reach, agent)["last_heartbeat_at"] > first, "it outlives its first lease", 10)
        assert shown(reach, agent)["status"] == "ready"
    wait_until(lambda: shown(reach, agent)["status"] == "expired", "without a heartbeat it runs out", 10)


def test_its_calls_are_taken_over_when_it_dies(reach: Topology, wrong: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(says(202))
    wait_until(lambda: agent.is_known_to(wrong), "it knows the agent")
    with ThreadPoolExecutor(1) as caller:
        broken = caller.submit(dispatch, wrong, agent.capability, timeout_ms=60_000)
        wait_until(lambda: agent.node.invocations, "the node is at work")
        call_id = agent.node.invocations[0].call_id
        wait_until(lambda: "acknowledged" in kinds_of(reach, call_id), "its 202 is on disk")
        assert "recovered" not in kinds_of(reach, call_id)
        wrong.kill()
        wait_until(lambda: "recovered" in kinds_of(reach.dispatchers[0], call_id), "somebody has taken over", 30)
        at = reach.dispatchers[0]
        result = {"kind": "succeeded", "attempt": 1, "output": {"sum": 42}}
        assert at.request("POST", f"/api/v1/calls/{call_id}/receipts", result, key=agent.key).status == 200
        assert isinstance(broken.exception(timeout=10), OSError)
    wait_until(lambda: call_of(at, call_id)["status"] == "succeeded", "the call has ended")
    wrong.start()
