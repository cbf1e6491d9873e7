"""An ended, failed call again: as a new one, for its first caller, in the same trace."""

import threading

import pytest

from tests.acceptance.agents import NewAgent, as_person, call_of, ended_call, key_of, receipts_of, submitted
from tests.acceptance.instance import Answer, Instance
from tests.acceptance.test_errors import problem_of
from tests.fakes import answers, fails, in_turn, waits_for


def redispatch(reach: Instance, call_id: str, *, key: str | None = None) -> Answer:
    return reach.request("POST", f"/api/v1/calls/{call_id}/redispatch", key=key or reach.key)


ASKED = {
    "labels": {"tenant": "emea"},
    "context": {"turn": 3},
    "session_id": "s-1",
    "urgency": "bulk",
    "timeout_ms": 20_000,
}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_it_is_what_was_asked(new_agent: NewAgent, mode: str) -> None:
    agent = new_agent(in_turn(fails(500), answers("this time")))
    key = key_of(agent.reach, "unlucky", "dispatch")
    failed = agent.call({"n": 1}, key=key, mode=mode, idempotency_key=f"{agent.capability}", **ASKED).json["call_id"]
    first = ended_call(agent.reach, failed)
    answer = redispatch(agent.reach, failed)
    assert (answer.status, answer.json["redispatch_of"], answer.json["status"]) == (202, failed, "accepted")
    again = answer.json["call_id"]
    assert answer.headers["Location"] == f"/api/v1/calls/{again}" and again != failed
    second = ended_call(agent.reach, again)
    assert (second["status"], second["output"], second["redispatch_of"]) == ("succeeded", "this time", failed)
    for same in ("caller", "origin_caller", "capability", "trace_id", "labels", "session_id", "parent_call_id"):
        assert second[same] == first[same], same
    assert second["idempotency_key"] is None
    one, other = agent.node.invocations
    for same in ("payload", "caller", "urgency", "labels", "session_id", "context", "trace_id"):
        assert one.envelope[same] == other.envelope[same], same
    assert receipts_of(agent.reach, again)[0]["detail"]["redispatch_of"] == failed
    assert call_of(agent.reach, failed) == first, "the first one stays what it was"


def test_only_what_has_failed(new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate))
    call_id = submitted(agent)
    problem_of(redispatch(agent.reach, call_id), 409, "conflict")
    gate.set()
    ended_call(agent.reach, call_id)
    assert problem_of(redispatch(agent.reach, call_id), 409, "conflict")["call_id"] == call_id
    problem_of(redispatch(agent.reach, "01890a5d-ac96-774b-bcce-b302099a8057"), 404, "not_found")


def test_not_twice_at_a_time(new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(in_turn(fails(500), waits_for(gate, fails(500)), answers("third")))
    failed = agent.call().json["call_id"]
    again = redispatch(agent.reach, failed).json["call_id"]
    assert again in problem_of(redispatch(agent.reach, failed), 409, "conflict")["detail"]
    gate.set()
    assert ended_call(agent.reach, again)["status"] == "failed"
    assert ended_call(agent.reach, redispatch(agent.reach, failed).json["call_id"])["output"] == "third"


def test_what_was_rejected_finds_its_node_later(new_agent: NewAgent) -> None:
    agent = new_agent()
    path = f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}"
    agent.reach.request("PATCH", path, {"weight": 0}, key=agent.reach.key)
    rejected = agent.call()
    assert (rejected.status, call_of(agent.reach, rejected.json["call_id"])["status"]) == (503, "rejected")
    agent.reach.request("PATCH", path, {"weight": 100}, key=agent.reach.key)
    again = redispatch(agent.reach, rejected.json["call_id"]).json["call_id"]
    assert ended_call(agent.reach, again)["status"] == "succeeded"


def test_who_may(new_agent: NewAgent) -> None:
    agent = new_agent(fails(500))
    reach = agent.reach
    failed = agent.call().json["call_id"]
    problem_of(redispatch(reach, failed, key=key_of(reach, "nosy", "dispatch", "observe")), 403, "forbidden")
    problem_of(redispatch(reach, failed, key=as_person(reach, "onlooker", "viewer")), 403, "forbidden")
    assert redispatch(reach, failed, key=as_person(reach, "helper", "operator")).status == 202
