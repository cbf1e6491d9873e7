"""A breaker on a running reach: it opens, nothing is sent, one attempt is tried, it closes; everybody can see why."""

import time
from collections import Counter
from typing import Any

from tests.acceptance.agents import Agent, NewAgent, receipts_of
from tests.acceptance.instance import Answer, Instance, wait_until
from tests.acceptance.test_errors import leaves_a_call
from tests.fakes import answers, fails, in_turn


def call_once(agent: Agent) -> Answer:
    return agent.call(max_retries=0)


def node_of(reach: Instance, agent: Agent) -> dict[str, Any]:
    return reach.request("GET", f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}", key=reach.key).json


def explained(reach: Instance, agent: Agent) -> dict[str, Any]:
    body = {"capability": agent.capability, "payload": agent.sample}
    return reach.request("POST", "/api/v1/dispatch/explain", body, key=reach.key).json


def test_from_errors_to_an_open_breaker_and_back(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(fails(500))
    assert Counter(call_once(agent).status for _ in range(5)) == {502: 5}
    opened_at = time.monotonic()
    refused = call_once(agent)
    problem = leaves_a_call(reach, refused, 503, "circuit_open", "rejected")
    assert 0 < problem["retry_after_ms"] <= 5000
    assert refused.headers["Retry-After"] in ("4", "5")
    assert len(agent.node.invocations) == 5

    why = next(r["detail"] for r in receipts_of(reach, refused.json["call_id"]) if r["kind"] == "routed")
    name = f"{agent.service_id}/{agent.node_id}"
    assert why["notes"][0].startswith(
        f"the breaker of {name} is open after 5 errors of 5: one attempt may try again in"
    )
    assert why["candidates"][0]["reasons"] == ["its breaker is open"]
    assert explained(reach, agent)["problem"]["code"] == "circuit_open"
    wait_until(lambda: node_of(reach, agent)["status"] == "ejected", "the node is shown as ejected")
    assert node_of(reach, agent)["status_reason"] == "its breaker is open: 5 of 5 attempts failed"

    measured = reach.request("GET", "/metrics", key=reach.key).body.decode()
    assert f'reach_breakers_not_closed{{of="node",service_id="{agent.service_id}"}} 1.0' in measured
    assert 'reach_nodes{status="ejected"} 1.0' in measured

    agent.node.behave = answers({})
    while (answer := call_once(agent)).status != 200:
        assert answer.json["code"] == "circuit_open"
        assert time.monotonic() < opened_at + 6
        time.sleep(0.05)
    assert time.monotonic() > opened_at + 4.5
    assert len(agent.node.invocations) == 6
    assert [call_once(agent).status for _ in range(3)] == [200] * 3
    wait_until(lambda: node_of(reach, agent)["status"] == "ready", "the node is shown as ready again")


def test_a_spent_retry_budget_ends_calls_with_their_last_error(new_agent: NewAgent) -> None:
    agent = new_agent(in_turn(*[fails(500), answers({}), answers({})] * 60), idempotent=True)
    told = [agent.call(retry_base_delay_ms=1) for _ in range(25)]
    failed = [answer for answer in told if answer.status != 200]
    sentence = f"the retry budget of {agent.service_id} is spent: 10 retries for"
    assert failed
    assert all(sentence in answer.json["detail"] for answer in failed)
    assert len(agent.node.invocations) == 25 + 10


def test_what_a_caller_gets_wrong_opens_nothing(new_agent: NewAgent) -> None:
    agent = new_agent(fails(422))
    assert {call_once(agent).status for _ in range(12)} == {502}
    agent.node.behave = answers({})
    assert call_once(agent).status == 200
