"""A call whose result is not wanted any more: it ends at once, and its node hears of it."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.acceptance.agents import Agent, NewAgent, call_of, key_of, kinds_of, open_call, receipts_of
from tests.acceptance.instance import Answer, Instance, wait_until
from tests.acceptance.test_errors import leaves_a_call, problem_of
from tests.fakes import Behaviour, answers, fails, in_turn, says, streams, waits_for

HEARS_OF_IT = {"endpoints": {"cancel": "/reach/cancel"}}


@pytest.fixture
def people() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as people:
        yield people


def cancel(reach: Instance, call_id: str, *, key: str | None = None) -> Answer:
    return reach.request("POST", f"/api/v1/calls/{call_id}/cancel", key=key or reach.key)


def at_work(people: ThreadPoolExecutor, agent: Agent, **fields: Any) -> "tuple[str, Future[Answer]]":
    """A call that has reached its node."""
    asked = people.submit(agent.call, **fields)
    wait_until(lambda: agent.node.invocations, "the node is at work")
    return agent.node.invocations[-1].call_id, asked


def hang() -> Behaviour:
    return waits_for(threading.Event())


@pytest.mark.parametrize(
    "behave",
    [hang(), says(202), streams({"kind": "running"}, 60.0)],
    ids=["silent", "says 202", "line by line"],
)
def test_it_ends_at_once_and_the_node_hears_of_it(
    new_agent: NewAgent, people: ThreadPoolExecutor, behave: Behaviour
) -> None:
    agent = new_agent(in_turn(behave, answers("next")), about_node={**HEARS_OF_IT, "max_concurrency": 1})
    call_id, asked = at_work(people, agent)
    answer = cancel(agent.reach, call_id)
    assert (answer.status, answer.json) == (202, {"call_id": call_id, "status": "cancelled"})
    problem = leaves_a_call(agent.reach, asked.result(timeout=2), 409, "cancelled", "cancelled")
    assert problem["call_id"] == call_id
    told = wait_until(lambda: agent.node.cancels, "the node is told")
    assert [invocation.envelope for invocation in told] == [{"call_id": call_id, "attempt": 1}]
    assert told[0].headers["webhook-id"] == f"{call_id}.1.cancel" and "webhook-signature" in told[0].headers
    assert agent.call().json["output"] == "next", "its place at the node is free again"
    call = call_of(agent.reach, call_id)
    assert call["status"] == "cancelled" and call["ended_at"] is not None
    assert kinds_of(agent.reach, call_id).count("cancelled") == 1


def test_at_another_dispatcher_than_the_one_that_carries_it(
    pair: tuple[Instance, Instance], new_agent: NewAgent, people: ThreadPoolExecutor
) -> None:
    one, other = pair
    agent = new_agent(hang(), at=one, about_node=HEARS_OF_IT)
    call_id, asked = at_work(people, agent)
    began = time.monotonic()
    assert cancel(other, call_id).status == 202
    assert asked.result(timeout=2).json["code"] == "cancelled"
    assert time.monotonic() - began < 1
    assert wait_until(lambda: agent.node.cancels, "the node is told")[0].envelope["call_id"] == call_id


def test_while_it_rests_before_a_retry(new_agent: NewAgent, people: ThreadPoolExecutor) -> None:
    agent = new_agent(fails(503), about_node=HEARS_OF_IT)
    asked = people.submit(agent.call, retry_base_delay_ms=20_000)
    call_id = open_call(agent)["call_id"]
    wait_until(lambda: kinds_of(agent.reach, call_id)[-1] == "retry_scheduled", "it rests")
    began = time.monotonic()
    assert cancel(agent.reach, call_id).status == 202
    assert asked.result(timeout=2).json["code"] == "cancelled"
    assert time.monotonic() - began < 1
    assert not agent.node.cancels, "nobody is at work"


def test_a_late_result_is_kept_and_changes_nothing(new_agent: NewAgent, people: ThreadPoolExecutor) -> None:
    agent = new_agent(says(202))
    call_id, asked = at_work(people, agent)
    assert cancel(agent.reach, call_id).status == 202
    asked.result(timeout=2)
    problem_of(agent.post_receipt(call_id, kind="succeeded", output="too late"), 409, "conflict")
    late = receipts_of(agent.reach, call_id)[-1]
    assert (late["kind"], late["detail"]["output"]) == ("late_result", "too late")
    assert call_of(agent.reach, call_id)["status"] == "cancelled"


@pytest.mark.parametrize("on_cancel", [fails(500), waits_for(threading.Event())], ids=["refuses", "hangs"])
def test_a_node_that_cannot_be_told_is_noted(
    new_agent: NewAgent, people: ThreadPoolExecutor, on_cancel: Behaviour
) -> None:
    agent = new_agent(hang(), about_node=HEARS_OF_IT)
    agent.node.on_cancel = on_cancel
    call_id, asked = at_work(people, agent)
    cancel(agent.reach, call_id)
    assert asked.result(timeout=2).status == 409, "nobody waits for the node"
    noted = wait_until(
        lambda: next((r for r in receipts_of(agent.reach, call_id) if "node_told" in (r["detail"] or {})), None),
        "it is noted",
    )
    assert (noted["kind"], noted["attempt"], noted["node_id"]) == ("late_result", 1, agent.node_id)
    assert noted["detail"]["reason"] in ("answered 500", "did not answer within 2 s")


def test_its_own_caller_may_and_no_other(reach: Instance, new_agent: NewAgent, people: ThreadPoolExecutor) -> None:
    mine, foreign = key_of(reach, "impatient", "dispatch"), key_of(reach, "stranger", "dispatch", "observe")
    agent = new_agent(hang())
    call_id, asked = at_work(people, agent, key=mine)
    problem_of(cancel(reach, call_id, key=foreign), 403, "forbidden")
    problem_of(cancel(reach, call_id, key=agent.key), 403, "forbidden")
    assert call_of(reach, call_id)["status"] == "running"
    assert cancel(reach, call_id, key=mine).status == 202
    assert asked.result(timeout=2).json["code"] == "cancelled"


def test_what_has_ended_cannot_be_cancelled(new_agent: NewAgent) -> None:
    agent = new_agent()
    call_id = agent.call().json["call_id"]
    problem = problem_of(cancel(agent.reach, call_id), 409, "conflict")
    assert problem["call_id"] == call_id and "succeeded" in problem["detail"]
    assert kinds_of(agent.reach, call_id)[-1] == "succeeded"


def test_a_call_that_nobody_made(reach: Instance) -> None:
    problem_of(cancel(reach, "01890a5d-ac96-774b-bcce-b302099a8057"), 404, "not_found")


def test_who_joined_it_is_told_too(new_agent: NewAgent, people: ThreadPoolExecutor) -> None:
    agent = new_agent(hang())
    call_id, asked = at_work(people, agent, idempotency_key="cancelled once")
    joined = people.submit(agent.call, idempotency_key="cancelled once")
    time.sleep(0.2)  # whether it has joined cannot be seen from outside; either way it is told the same
    cancel(agent.reach, call_id)
    assert asked.result(timeout=2).json["code"] == joined.result(timeout=2).json["code"] == "cancelled"
    assert joined.result().json["replayed"] is True


def test_ends_and_cancels_that_race_leave_one_ending(new_agent: NewAgent, people: ThreadPoolExecutor) -> None:
    for _round in range(10):
        gate = threading.Event()
        agent = new_agent(waits_for(gate, answers("done")))
        call_id, asked = at_work(people, agent)
        cancelling = people.submit(cancel, agent.reach, call_id)
        gate.set()
        status = {200: "succeeded", 409: "cancelled"}[asked.result(timeout=5).status]
        assert cancelling.result(timeout=5).status == {"succeeded": 409, "cancelled": 202}[status]
        assert call_of(agent.reach, call_id)["status"] == status
        kinds = kinds_of(agent.reach, call_id)
        assert [kind for kind in kinds if kind in ("succeeded", "cancelled")] == [status]
