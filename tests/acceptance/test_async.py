"""Asynchronous calls: accepted at once, on disk, and placed as soon as a node can take them."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.agents import (
    Agent,
    NewAgent,
    call_of,
    calls_where,
    dispatch,
    ended_call,
    key_of,
    kinds_of,
    receipts_of,
    registered,
    submitted,
)
from tests.acceptance.instance import Answer, Instance, wait_until
from tests.acceptance.kinds import PARTED
from tests.acceptance.test_errors import leaves_a_call, leaves_no_call, problem_of
from tests.factories import SUMMARY_INPUT
from tests.fakes import FakeNode, answers, does, fails, in_turn, says, waits_for

one_engine = pytest.mark.skipif(PARTED, reason="each of two workers counts what it has at a node itself")


def cancel(reach: Instance, call_id: str) -> Answer:
    return reach.request("POST", f"/api/v1/calls/{call_id}/cancel", key=reach.key)


def stays(reach: Instance, call_id: str, status: str, seconds: float = 0.7) -> None:
    """It is still so after a while."""
    time.sleep(seconds)  # that nothing happens takes its time
    assert call_of(reach, call_id)["status"] == status


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What nodes wait for, opened in the end whatever comes."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def nobody(new_agent: NewAgent) -> Agent:
    """An agent that is known and cannot be called."""
    agent = new_agent()
    agent.reach.request(
        "PATCH",
        f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}",
        {"admin_state": "disabled"},
        key=agent.reach.key,
    )
    wait_until(lambda: not agent.is_known_to(agent.reach), "it is disabled everywhere")
    return agent


def enable(agent: Agent) -> None:
    path = f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}"
    agent.reach.request("PATCH", path, {"admin_state": "enabled"}, key=agent.reach.key)


# --- Accepted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"mode": "async"}, id="mode"),
        pytest.param({"headers": {"Prefer": "respond-async, wait=10"}}, id="Prefer"),
    ],
)
def test_it_is_accepted_at_once_and_done(new_agent: NewAgent, gate: threading.Event, asked: dict[str, Any]) -> None:
    agent = new_agent(waits_for(gate, answers({"sum": 42})))
    answer = agent.call({"n": 1}, **asked)
    assert answer.status == 202
    call_id = answer.json["call_id"]
    assert answer.headers["Location"] == f"/api/v1/calls/{call_id}"
    assert answer.json["status"] == "accepted" and len(answer.json["trace_id"]) == 32
    wait_until(lambda: agent.node.invocations, "it is at work")
    assert call_of(agent.reach, call_id)["status"] == "running"
    gate.set()
    call = ended_call(agent.reach, call_id)
    assert (call["status"], call["output"], call["mode"]) == ("succeeded", {"sum": 42}, "async")
    assert (call["trace_id"], call["attempts"]) == (answer.json["trace_id"], 1)
    assert kinds_of(agent.reach, call_id) == ["accepted", "routed", "forwarded", "succeeded"]
    assert agent.node.invocations[0].payload == {"n": 1}


@pytest.mark.parametrize(
    ("ask", "status", "code"),
    [
        pytest.param({"capability": "nobody_ever_had_this"}, 404, "unknown_capability", id="404"),
        pytest.param({"payload": {"content_type": "poem"}}, 422, "invalid_payload", id="422"),
        pytest.param({"caller": True}, 403, "forbidden", id="403"),
    ],
)
def test_what_waiting_would_not_help_is_told_at_once(
    new_agent: NewAgent, ask: dict[str, Any], status: int, code: str
) -> None:
    agent = new_agent(
        input=SUMMARY_INPUT, allow_callers=["its-friend", "user:admin"], sample={"content_type": "report"}
    )
    reach = agent.reach
    key = key_of(reach, "stranger" if ask.pop("caller", False) else "its-friend", "dispatch")
    asked = {"capability": agent.capability, "payload": {"content_type": "report"}, **ask}
    answer = dispatch(reach, asked["capability"], asked["payload"], key=key, mode="async")
    leaves_a_call(reach, answer, status, code, "rejected")


def test_no_parent_and_no_json_leave_no_call(new_agent: NewAgent) -> None:
    agent = new_agent()
    unknown = "01890a5d-ac96-774b-bcce-b302099a8057"
    leaves_no_call(agent.call(mode="async", parent_call_id=unknown), 400, "invalid_request")


def test_the_same_request_again_is_the_same_call(new_agent: NewAgent, gate: threading.Event) -> None:
    agent = new_agent(waits_for(gate, answers("done")))
    first = agent.call({"n": 1}, mode="async", idempotency_key="once")
    again = agent.call({"n": 1}, mode="async", idempotency_key="once")
    assert (again.status, again.json) == (202, {**first.json, "replayed": True})
    problem_of(agent.call({"n": 2}, mode="async", idempotency_key="once"), 409, "idempotency_conflict")
    gate.set()
    ended_call(agent.reach, first.json["call_id"])
    assert agent.call({"n": 1}, mode="async", idempotency_key="once").json["call_id"] == first.json["call_id"]
    waited = agent.call({"n": 1}, idempotency_key="once")
    assert (waited.status, waited.json["output"], waited.json["replayed"]) == (200, "done", True)
    assert len(agent.node.invocations) == 1


def test_one_that_was_rejected_is_so_again(new_agent: NewAgent) -> None:
    agent = new_agent(input=SUMMARY_INPUT, sample={"content_type": "report"})
    asked = {"mode": "async", "idempotency_key": "wrong"}
    first, again = agent.call({}, **asked), agent.call({}, **asked)
    assert first.status == again.status == 422
    assert again.json["call_id"] == first.json["call_id"] and again.json["replayed"] is True


# --- Placed ----------------------------------------------------------------------------------------------------------


def test_it_is_placed_when_a_node_comes(reach: Instance, nobody: Agent) -> None:
    call_id = submitted(nobody, {"n": 1})
    assert kinds_of(reach, call_id) == ["accepted", "routed"]
    assert receipts_of(reach, call_id)[1]["detail"]["left_out"] == {"disabled by an operator": 1}
    stays(reach, call_id, "accepted")
    spare = registered(reach, FakeNode(answers("by the new one")), capability=nobody.capability)
    known_at = time.monotonic()
    call = ended_call(reach, call_id)
    assert time.monotonic() - known_at < 2
    assert (call["output"], call["service_id"]) == ("by the new one", spare.service_id)
    spare.leave()


def test_its_deadline_comes_while_it_waits(reach: Instance, nobody: Agent) -> None:
    call_id = submitted(nobody, timeout_ms=1500)
    call = ended_call(reach, call_id)
    assert (call["status"], call["error"]["code"]) == ("failed", "no_available_node")
    assert call["ended_at"] >= call["deadline"] and call["attempts"] == 0
    last = receipts_of(reach, call_id)[-1]
    assert (last["kind"], last["detail"]["code"]) == ("failed", "no_available_node")


@one_engine
def test_a_full_node_takes_one_after_the_other(new_agent: NewAgent) -> None:
    at_work, most = [0], [0]  # changed by its threads

    def counts(_invocation: Any) -> None:
        at_work[0] += 1
        most.append(at_work[0])
        time.sleep(0.05)  # its work
        at_work[0] -= 1

    agent = new_agent(does(counts), about_node={"max_concurrency": 2})
    calls = [submitted(agent, {"n": n}) for n in range(10)]
    for call_id in calls:
        assert ended_call(agent.reach, call_id)["status"] == "succeeded"
    assert max(most) <= 2
    assert len(agent.node.invocations) == 10


def test_a_rate_is_kept_and_waited_out(new_agent: NewAgent) -> None:
    agent = new_agent(rate_limit=5)
    began = time.monotonic()
    calls = [submitted(agent, {"n": n}) for n in range(10)]
    for call_id in calls:
        assert ended_call(agent.reach, call_id)["status"] == "succeeded"
    assert time.monotonic() - began > 0.8, "five at once, the others at five a second"
    assert len(agent.node.invocations) == 10


@one_engine
def test_the_urgent_ones_go_first(new_agent: NewAgent, gate: threading.Event) -> None:
    agent = new_agent(waits_for(gate), about_node={"max_concurrency": 1})
    first = submitted(agent, {"n": 0})
    wait_until(lambda: agent.node.invocations, "the node is full")
    rest = [
        submitted(agent, {"n": n}, urgency=urgency)
        for n, urgency in enumerate(["bulk", "normal", "interactive", "normal", "interactive"], start=1)
    ]
    stays(agent.reach, rest[-1], "accepted", 0.3)
    gate.set()
    for call_id in (first, *rest):
        ended_call(agent.reach, call_id)
    assert [run.payload["n"] for run in agent.node.invocations] == [0, 3, 5, 2, 4, 1]


def test_a_node_that_has_not_begun_is_no_end(new_agent: NewAgent) -> None:
    """A sync caller is told after three refusals; an asynchronous call waits on."""
    agent = new_agent(in_turn(*[fails(503, "busy")] * 4, answers("at last")))
    call = ended_call(agent.reach, submitted(agent))
    assert (call["status"], call["output"], call["attempts"]) == ("succeeded", "at last", 5)


@pytest.mark.parametrize(
    ("behave", "code"),
    [
        pytest.param(fails(422, "bad", retryable=False), "upstream_error", id="it says so"),
        pytest.param(fails(503, "never", retryable=False), "upstream_error", id="it will never begin"),
        pytest.param(says(502), "upstream_error", id="nobody knows whether it worked"),
    ],
)
def test_a_failure_is_an_end(new_agent: NewAgent, behave: Any, code: str) -> None:
    agent = new_agent(behave)
    call = ended_call(agent.reach, submitted(agent))
    assert (call["status"], call["error"]["code"], call["attempts"]) == ("failed", code, 1)


def test_a_retry_that_is_due_lies_on_disk(new_agent: NewAgent) -> None:
    agent = new_agent(in_turn(fails(500, retryable=True), answers("second")), idempotent=True)
    call_id = submitted(agent, retry_base_delay_ms=100)
    assert ended_call(agent.reach, call_id)["output"] == "second"
    kinds = kinds_of(agent.reach, call_id)
    assert kinds == [
        "accepted", "routed", "forwarded", "attempt_failed", "retry_scheduled", "routed", "forwarded", "succeeded",
    ]  # fmt: skip


def test_a_202_and_its_receipts(new_agent: NewAgent) -> None:
    agent = new_agent(says(202))
    call_id = submitted(agent)
    wait_until(lambda: "acknowledged" in kinds_of(agent.reach, call_id), "it is at work")
    assert agent.post_receipt(call_id, kind="running", progress=0.5).status == 200
    assert agent.post_receipt(call_id, kind="succeeded", output="by receipt").status == 200
    assert ended_call(agent.reach, call_id)["output"] == "by receipt"


def test_a_child_has_its_parents_trace_and_time(new_agent: NewAgent, gate: threading.Event) -> None:
    agent = new_agent(waits_for(gate))
    parent_id = submitted(agent, {"n": "parent"}, timeout_ms=20_000)
    child_id = submitted(agent, {"n": "child"}, parent_call_id=parent_id, timeout_ms=60_000)
    wait_until(lambda: len(agent.node.invocations) == 2, "both are at work")
    parent, child = call_of(agent.reach, parent_id), call_of(agent.reach, child_id)
    assert child["trace_id"] == parent["trace_id"] and child["deadline"] <= parent["deadline"]
    gate.set()
    ended_call(agent.reach, child_id)


# --- Cancelled -------------------------------------------------------------------------------------------------------


def test_one_that_waits_is_cancelled(reach: Instance, nobody: Agent) -> None:
    held, queued = submitted(nobody), submitted(nobody)
    stays(reach, held, "accepted", 0.3)
    for call_id in (held, queued):
        assert cancel(reach, call_id).status == 202
        assert call_of(reach, call_id)["status"] == "cancelled"
    enable(nobody)
    wait_until(lambda: nobody.is_known_to(reach), "the node is back")
    last = submitted(nobody)
    ended_call(reach, last)
    assert [run.call_id for run in nobody.node.invocations] == [last]


def test_one_at_work_is_cancelled_and_its_node_told(new_agent: NewAgent, gate: threading.Event) -> None:
    agent = new_agent(waits_for(gate), about_node={"endpoints": {"cancel": "/reach/cancel"}, "max_concurrency": 1})
    call_id = submitted(agent)
    wait_until(lambda: agent.node.invocations, "it is at work")
    assert cancel(agent.reach, call_id).status == 202
    told = wait_until(lambda: agent.node.cancels, "the node is told")
    assert told[0].envelope == {"call_id": call_id, "attempt": 1}
    assert call_of(agent.reach, call_id)["status"] == "cancelled"
    gate.set()
    assert ended_call(agent.reach, submitted(agent))["status"] == "succeeded", "its place is free again"


def test_one_that_rests_is_cancelled(new_agent: NewAgent) -> None:
    agent = new_agent(fails(503))
    call_id = submitted(agent)
    wait_until(lambda: kinds_of(agent.reach, call_id)[-1] == "retry_scheduled", "it rests")
    assert cancel(agent.reach, call_id).status == 202
    tried = len(agent.node.invocations)
    stays(agent.reach, call_id, "cancelled", 0.5)
    assert len(agent.node.invocations) <= tried + 1, "one may have been on its way"
    assert kinds_of(agent.reach, call_id)[-1] == "cancelled"


# --- Fairness --------------------------------------------------------------------------------------------------------


def test_calls_that_wait_do_not_keep_others_waiting(reach: Instance, nobody: Agent, new_agent: NewAgent) -> None:
    """More of one capability than an engine holds of one, and nobody there to take them."""
    key = key_of(reach, "impatient", "dispatch")
    for n in range(250):
        assert nobody.call({"n": n}, mode="async", key=key, timeout_ms=30_000).status == 202
    agent = new_agent()
    began = time.monotonic()
    assert ended_call(reach, submitted(agent))["status"] == "succeeded"
    assert time.monotonic() - began < 5
    enable(nobody)
    wait_until(lambda: not calls_where(reach, caller="impatient", status="accepted"), "all are placed")
    wait_until(lambda: not calls_where(reach, caller="impatient", status="running"), "all are done")
    assert sorted(run.payload["n"] for run in nobody.node.invocations) == list(range(250))


def test_one_that_needs_another_node_does_not_keep_its_kind_waiting(reach: Instance, new_agent: NewAgent) -> None:
    """The heads of the line can be taken by nobody, those behind them can."""
    agent = new_agent()
    for n in range(120):
        submitted(agent, {"n": n}, tags=["zone:nowhere"], timeout_ms=60_000)
    began = time.monotonic()
    assert ended_call(reach, submitted(agent, {"n": "here"}))["status"] == "succeeded"
    print(f"placed after {time.monotonic() - began:.2f} s, behind 120 that cannot be")
    assert len(agent.node.invocations) == 1
    for call in calls_where(reach, capability=agent.capability, status="accepted"):
        cancel(reach, call["call_id"])


def test_sync_calls_with_a_callback_are_refused(new_agent: NewAgent) -> None:
    problem = leaves_no_call(new_agent().call(callback_url="http://127.0.0.1:9/done"), 400, "invalid_request")
    assert problem["errors"][0]["path"] == "/callback_url"


def test_wait_tells_of_it_as_it_stands(reach: Instance, nobody: Agent) -> None:
    call_id = submitted(nobody)
    answer = reach.request("GET", f"/api/v1/calls/{call_id}/wait?timeout_s=0.2", key=reach.key)
    assert (answer.status, answer.json["status"], answer.json["ended_at"]) == (200, "accepted", None)
    cancel(reach, call_id)
