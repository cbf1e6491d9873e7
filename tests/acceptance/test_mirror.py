"""Copies of calls: a service is shown real work, and nobody notices."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.agents import Agent, NewAgent, as_person, calls_where, kinds_of, publish, receipts_of
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.kinds import Reach
from tests.acceptance.test_choosing import live_routes
from tests.fakes import Behaviour, answers, breaks, fails, says, waits_for

__all__ = ["live_routes"]
Mirrored = Callable[..., tuple[Agent, Agent]]


@pytest.fixture
def mirrored(new_agent: NewAgent, live_routes: Any) -> Mirrored:
    """An agent whose calls are copied to another: `mirrored(fails(500), percent=50)` says what the other does."""

    def make(shadow: Behaviour | None = None, *, percent: float = 100, **about_node: Any) -> tuple[Agent, Agent]:
        agent = new_agent(answers("the answer"))
        other = new_agent(shadow or answers("a copy's"), capability=agent.capability, about_node=about_node)
        live_routes(
            {
                "id": "mirrored",
                "match": {"capability": agent.capability},
                "strategy": {"type": "exact", "service": agent.service_id},
                "mirror": {"service": other.service_id, "percent": percent},
            }
        )
        return agent, other

    return make


def copy_of(reach: Instance, agent: Agent, call_id: str, *, ended: bool = True) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        calls = calls_where(reach, capability=agent.capability)
        return next((c for c in calls if c["mirror_of"] == call_id and (c["ended_at"] or not ended)), None)

    return wait_until(found, "the copy is there")


def test_a_copy_is_a_call_of_its_own(reach: Instance, mirrored: Mirrored) -> None:
    agent, other = mirrored()
    told = agent.call({"page": 7}, idempotency_key="copied once", labels={"tenant": "emea"})
    assert (told.status, told.json["output"], told.json["service_id"]) == (200, "the answer", agent.service_id)
    copy = copy_of(reach, agent, told.json["call_id"])
    assert (copy["status"], copy["output"], copy["service_id"]) == ("succeeded", "a copy's", other.service_id)
    assert copy["trace_id"] == told.json["trace_id"] and copy["labels"] == {"tenant": "emea"}
    assert copy["idempotency_key"] is None and copy["attempts"] == 1
    (seen,) = other.node.invocations
    assert (seen.envelope["mirror"], seen.headers["X-Reach-Mirror"], seen.payload) == (True, "1", {"page": 7})
    assert seen.envelope["idempotency_key"] is None and seen.call_id == copy["call_id"]
    (original,) = agent.node.invocations
    assert "mirror" not in original.envelope and "X-Reach-Mirror" not in original.headers
    assert kinds_of(reach, copy["call_id"]) == ["accepted", "routed", "forwarded", "succeeded"]
    notes = receipts_of(reach, copy["call_id"])[1]["detail"]["notes"]
    assert notes == [f"a copy of {told.json['call_id']}; nobody waits for it"]
    replayed = agent.call({"page": 7}, idempotency_key="copied once", labels={"tenant": "emea"})
    assert replayed.json["replayed"] is True and len(other.node.invocations) == 1, "a replay is not copied"


def test_nobody_waits_for_it(reach: Instance, mirrored: Mirrored) -> None:
    gate = threading.Event()
    agent, other = mirrored(waits_for(gate))
    told = agent.call()
    assert told.json["output"] == "the answer"
    copy = copy_of(reach, agent, told.json["call_id"], ended=False)
    assert copy["status"] == "running"
    gate.set()
    assert copy_of(reach, agent, told.json["call_id"])["status"] == "succeeded"
    assert len(other.node.invocations) == 1


@pytest.mark.parametrize("behave", [fails(500), breaks(), says(503)], ids=["fails", "breaks", "is busy"])
def test_its_failure_is_nobodys(reach: Instance, mirrored: Mirrored, behave: Behaviour) -> None:
    """Tried once, and the node is neither suspected nor thought worse of."""
    agent, other = mirrored(behave)
    told = agent.call()
    assert (told.status, told.json["output"]) == (200, "the answer")
    copy = copy_of(reach, agent, told.json["call_id"])
    assert (copy["status"], copy["error"]["code"], copy["attempts"]) == ("failed", "upstream_error", 1)
    node = reach.request("GET", f"/api/v1/services/{other.service_id}/nodes/{other.node_id}", key=reach.key).json
    assert node["status"] == "ready"
    assert len(other.node.runs_of(copy["call_id"])) == 1


def test_statistics_leave_copies_out(reach: Instance, mirrored: Mirrored) -> None:
    agent, _other = mirrored()
    for _ in range(3):
        copy_of(reach, agent, agent.call().json["call_id"])
    stats = reach.request("GET", "/api/v1/stats?group_by=capability", key=reach.key).json["results"]
    assert next(row["calls"] for row in stats if row["capability"] == agent.capability) == 3


def test_a_share_of_the_calls_and_never_more_than_a_node_takes(reach: Instance, mirrored: Mirrored) -> None:
    gate = threading.Event()
    agent, other = mirrored(waits_for(gate), percent=50, max_concurrency=3)
    for _ in range(40):
        assert agent.call().status == 200
    wait_until(lambda: len(other.node.invocations) == 3, "it has what it takes")
    gate.set()
    assert len(other.node.invocations) == 3


def test_a_service_that_nobody_runs_costs_nothing(reach: Instance, mirrored: Mirrored) -> None:
    agent, other = mirrored()
    path = f"/api/v1/services/{other.service_id}/nodes/{other.node_id}"
    assert reach.request("DELETE", path, key=reach.key).status in (202, 204)
    wait_until(lambda: not other.is_known_to(reach), "it is gone")
    told = agent.call()
    assert told.json["output"] == "the answer"
    assert [c["call_id"] for c in calls_where(reach, trace_id=told.json["trace_id"])] == [told.json["call_id"]]


def test_a_copy_dies_with_its_process(new_instance: Callable[..., Reach], new_agent: NewAgent) -> None:
    """It is ended, never repeated: whoever is shown work need not see it twice."""
    reach = new_instance().start()
    gate = threading.Event()
    agent = new_agent(answers("the answer"), at=reach, idempotent=True)
    other = new_agent(waits_for(gate), at=reach, capability=agent.capability, idempotent=True)
    route = {
        "id": "mirrored",
        "match": {"capability": agent.capability},
        "strategy": {"type": "exact", "service": agent.service_id},
        "mirror": {"service": other.service_id, "percent": 100},
    }
    publish(reach, as_person(reach, "colleague", "approver"), routes=[route])
    told = agent.call()
    copy = copy_of(reach, agent, told.json["call_id"], ended=False)
    wait_until(lambda: other.node.invocations, "the copy is at work")
    reach.kill()
    reach.start()
    ended = copy_of(reach, agent, told.json["call_id"])
    assert (ended["call_id"], ended["status"], ended["error"]["outcome_unknown"]) == (copy["call_id"], "failed", True)
    assert len(other.node.invocations) == 1
    gate.set()
