"""One call from its POST to its receipts, through a real node over HTTP."""

import base64
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.acceptance.agents import (
    Agent,
    NewAgent,
    call_of,
    calls_where,
    dispatch,
    key_of,
    kinds_of,
    open_call,
    receipts_of,
)
from tests.acceptance.instance import Instance, wait_until
from tests.factories import SUMMARY_INPUT, SUMMARY_OUTPUT
from tests.fakes import Invocation, answers, breaks, does, fails, in_turn, waits_for

SUCCESS = {
    "call_id", "trace_id", "status", "output", "service_id", "node_id", "route_id", "table_revision", "attempts",
    "duration_ms", "replayed",
}  # fmt: skip
ENVELOPE = {
    "call_id", "trace_id", "parent_call_id", "attempt", "caller", "origin_caller", "capability", "payload",
    "idempotency_key", "deadline_millis", "forwarded_at_millis", "urgency", "labels", "session_id", "context",
}  # fmt: skip
CALL = {
    "call_id", "trace_id", "parent_call_id", "caller", "capability", "status", "route_id",
    "table_revision", "service_id", "node_id", "attempts", "accepted_at", "ended_at", "deadline", "output", "error",
    "labels", "idempotency_key", "session_id", "origin_caller", "mirror_of", "mode", "callback", "redispatch_of",
}  # fmt: skip

REPORT = {"content_type": "report"}


def millis(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


def test_a_call_is_answered_and_explained(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(
        answers({"summary": "short", "keywords": ["a"]}), input=SUMMARY_INPUT, output=SUMMARY_OUTPUT, sample=REPORT
    )
    answer = agent.call({"content_type": "report"}, labels={"tenant": "emea"}, session_id="s-1")
    assert answer.status == 200
    assert answer.headers["X-Request-Id"]
    result = answer.json
    assert result.keys() == SUCCESS
    assert result | {"call_id": "", "trace_id": "", "duration_ms": 0, "table_revision": 0} == {
        "call_id": "",
        "trace_id": "",
        "status": "succeeded",
        "output": {"summary": "short", "keywords": ["a"]},
        "service_id": agent.service_id,
        "node_id": "n1",
        "route_id": "auto",
        "table_revision": 0,
        "attempts": 1,
        "duration_ms": 0,
        "replayed": False,
    }

    call = call_of(reach, result["call_id"])
    assert call.keys() == CALL
    assert (call["status"], call["output"], call["error"]) == ("succeeded", result["output"], None)
    assert (call["labels"], call["session_id"], call["attempts"]) == ({"tenant": "emea"}, "s-1", 1)
    assert call["caller"] == call["origin_caller"] == "user:admin"
    assert millis(call["accepted_at"]) <= millis(call["ended_at"]) <= millis(call["deadline"])

    receipts = receipts_of(reach, result["call_id"])
    assert [r["kind"] for r in receipts] == ["accepted", "routed", "forwarded", "succeeded"]
    assert [r["seq"] for r in receipts] == [1, 2, 3, 4]
    assert all(r.keys() == {"seq", "kind", "attempt", "service_id", "node_id", "at", "detail"} for r in receipts)
    why = receipts[1]["detail"]
    assert (why["route_id"], why["chosen"]) == ("auto", {"service_id": agent.service_id, "node_id": "n1"})
    assert why["candidates"] == [
        {"service_id": agent.service_id, "node_id": "n1", "eligible": True, "reasons": [], "share": 1.0}
    ]


def test_the_node_gets_the_whole_envelope_signed(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    context = {"turns": [{"role": "user", "text": "你好"}]}
    trace = "ab" * 16
    before = time.time() * 1000
    answer = agent.call(
        {"text": "智能体", "n": 1.5}, labels={"k": "v"}, context=context, urgency="bulk", session_id="s",
        trace_id=trace, timeout_ms=5000, idempotency_key="a key",
    )  # fmt: skip
    assert answer.status == 200
    [seen] = agent.node.invocations
    envelope = seen.envelope
    assert envelope.keys() == ENVELOPE
    assert (envelope["call_id"], envelope["trace_id"]) == (answer.json["call_id"], trace)
    assert (envelope["attempt"], envelope["parent_call_id"]) == (1, None)
    assert (envelope["caller"], envelope["origin_caller"], envelope["capability"]) == ("user:admin",) * 2 + (
        agent.capability,
    )
    assert (envelope["payload"], envelope["context"], envelope["labels"]) == (
        {"text": "智能体", "n": 1.5},
        context,
        {"k": "v"},
    )
    assert (envelope["urgency"], envelope["session_id"], envelope["idempotency_key"]) == ("bulk", "s", "a key")
    assert before <= envelope["forwarded_at_millis"] <= seen.received_at_millis
    assert 4000 < envelope["deadline_millis"] - envelope["forwarded_at_millis"] <= 5000
    assert seen.headers["traceparent"].split("-")[1] == trace
    assert Webhook(agent.signing_secret).verify(seen.body, {k.lower(): v for k, v in seen.headers.items()}) == envelope


def test_forwarded_is_on_disk_before_the_envelope_leaves(reach: Instance, new_agent: NewAgent) -> None:
    seen: list[list[str]] = []

    def look(invocation: Invocation) -> None:
        seen.append(kinds_of(reach, invocation.call_id))

    agent = new_agent(does(look))
    assert agent.call().status == 200
    assert seen == [["accepted", "routed", "forwarded"]]


def test_explain_says_the_same_and_sends_nothing(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(input=SUMMARY_INPUT, sample=REPORT)
    body = {"capability": agent.capability, "payload": {"content_type": "email"}}
    answer = reach.request("POST", "/api/v1/dispatch/explain", body, key=reach.key)
    assert answer.status == 200
    assert answer.json["chosen"] == {"service_id": agent.service_id, "node_id": "n1"}
    assert (answer.json["route_id"], answer.json["matched_routes"]) == ("auto", [])
    refused = reach.request("POST", "/api/v1/dispatch/explain", body | {"payload": {}}, key=reach.key)
    assert refused.status == 200
    assert refused.json["chosen"] is None
    assert [c["eligible"] for c in refused.json["candidates"]] == [False]
    assert refused.json["candidates"][0]["reasons"]
    assert agent.node.invocations == []
    assert calls_where(reach, capability=agent.capability) == []


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"traceparent": f"00-{'cd' * 16}-{'1' * 16}-01"}, {}, "cd" * 16),
        ({"traceparent": f"00-{'cd' * 16}-{'1' * 16}-01"}, {"trace_id": "ef" * 16}, "ef" * 16),
        ({"traceparent": "nonsense"}, {}, None),
    ],
    ids=["from the header", "the body wins", "a malformed header is ignored"],
)
def test_where_the_trace_comes_from(new_agent: NewAgent, headers: Any, body: Any, expected: str | None) -> None:
    answer = new_agent().call(headers=headers, **body)
    assert answer.status == 200
    assert answer.json["trace_id"] == (expected or answer.json["trace_id"])
    assert len(answer.json["trace_id"]) == 32


def test_a_chain_is_one_trace_and_every_hop_has_less_time(reach: Instance, new_agent: NewAgent) -> None:
    """A → B → C, as agents do it: each calls the next with its own key and its call as the parent."""

    def calls(next_agent: Agent, key: str) -> Any:
        def work(invocation: Invocation) -> Any:
            answer = dispatch(
                reach, next_agent.capability, {"hop": 1}, key=key, parent_call_id=invocation.call_id, timeout_ms=60_000
            )
            return {"below": answer.json["call_id"]}

        return does(work)

    c = new_agent()
    b = new_agent()
    b.node.behave = calls(c, b.key)
    a = new_agent()
    a.node.behave = calls(b, a.key)
    asker = key_of(reach, "asker", "dispatch")
    answer = a.call(key=asker, timeout_ms=5000, trace_id="12" * 16)
    assert answer.status == 200

    trace = reach.request("GET", f"/api/v1/traces/{'12' * 16}", key=reach.key).json
    assert trace["trace_id"] == "12" * 16
    [top] = trace["calls"]
    [middle] = top["children"]
    [bottom] = middle["children"]
    assert [call["capability"] for call in (top, middle, bottom)] == [a.capability, b.capability, c.capability]
    assert [call["caller"] for call in (top, middle, bottom)] == ["asker", a.service_id, b.service_id]
    assert {call["origin_caller"] for call in (top, middle, bottom)} == {"asker"}
    assert {call["deadline"] for call in (middle, bottom)} == {top["deadline"]}
    assert [r["kind"] for r in bottom["receipts"]] == ["accepted", "routed", "forwarded", "succeeded"]
    [received] = c.node.invocations
    assert received.envelope["parent_call_id"] == middle["call_id"]
    assert received.envelope["deadline_millis"] <= a.node.invocations[0].envelope["deadline_millis"]


def test_a_stranger_may_not_hang_a_call_below_mine(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    mine = agent.call().json["call_id"]
    stranger = key_of(reach, "stranger", "dispatch")
    for parent in (mine, "01890a5d-ac96-774b-bcce-b302099a8057"):
        answer = agent.call(key=stranger, parent_call_id=parent)
        assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert len(agent.node.invocations) == 1


# --- The same request again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_header", [False, True], ids=["in the body", "by header"])
def test_a_repeated_key_gets_the_stored_answer(new_agent: NewAgent, by_header: bool) -> None:
    agent = new_agent()
    key = f"{agent.capability} once"
    given: dict[str, Any] = {"headers": {"Idempotency-Key": key}} if by_header else {"idempotency_key": key}
    first = agent.call({"n": 1}, labels={"a": "1", "b": "2"}, **given)
    again = agent.call({"n": 1}, labels={"b": "2", "a": "1"}, **given)
    assert (first.status, first.json.get("replayed")) == (200, False), first.body
    assert again.json == first.json | {"replayed": True}
    assert len(agent.node.invocations) == 1


def test_a_stored_failure_is_an_answer_too(new_agent: NewAgent) -> None:
    agent = new_agent(fails(400, "bad", "no"))
    first = agent.call(idempotency_key=agent.capability)
    again = agent.call(idempotency_key=agent.capability)
    assert (first.status, again.status) == (502, 502)
    assert again.json == first.json | {"replayed": True}
    assert len(agent.node.invocations) == 1


def test_a_key_is_its_callers_own(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    first = agent.call(idempotency_key=agent.capability)
    other = agent.call(idempotency_key=agent.capability, key=key_of(reach, "somebody-else", "dispatch"))
    assert other.json["call_id"] != first.json["call_id"]
    assert len(agent.node.invocations) == 2


def test_a_refusal_before_any_attempt_frees_the_key(new_agent: NewAgent) -> None:
    agent = new_agent()
    agent.reach.request("PATCH", f"/api/v1/services/{agent.service_id}/nodes/n1", {"weight": 0}, key=agent.reach.key)
    assert agent.call(idempotency_key=agent.capability).status == 503
    agent.reach.request("PATCH", f"/api/v1/services/{agent.service_id}/nodes/n1", {"weight": 1}, key=agent.reach.key)
    assert agent.call(idempotency_key=agent.capability).json["replayed"] is False


def test_a_running_call_is_joined(new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate))
    with ThreadPoolExecutor(5) as callers:
        asked = [callers.submit(agent.call, {"n": 1}, idempotency_key=agent.capability) for _ in range(5)]
        wait_until(lambda: agent.node.invocations, "the node is at work")
        gate.set()
        told = [each.result() for each in asked]
    assert {answer.status for answer in told} == {200}
    assert len({answer.json["call_id"] for answer in told}) == 1
    assert sorted(answer.json["replayed"] for answer in told) == [False, True, True, True, True]
    assert len(agent.node.invocations) == 1


# --- When an attempt fails -------------------------------------------------------------------------------------------


def test_a_node_that_has_not_started_is_left_for_another(reach: Instance, new_agent: NewAgent) -> None:
    full = new_agent(fails(503, "full", "every slot is taken"), capability="shared_work")
    free = new_agent(capability="shared_work")
    results = [dispatch(reach, "shared_work", {"n": n}) for n in range(12)]
    assert {answer.status for answer in results} == {200}
    assert {answer.json["service_id"] for answer in results} == {free.service_id}
    retried = [answer.json for answer in results if answer.json["attempts"] == 2]
    assert retried and len(retried) == len(full.node.invocations)
    assert kinds_of(reach, retried[0]["call_id"]) == [
        "accepted", "routed", "forwarded", "attempt_failed", "retry_scheduled", "routed", "forwarded", "succeeded"
    ]  # fmt: skip


def test_a_retired_address_costs_nobody_a_call(reach: Instance, new_agent: NewAgent) -> None:
    gone = new_agent(capability="moved_work")
    stays = new_agent(capability="moved_work")
    gone.node.go_away()
    results = [dispatch(reach, "moved_work", {"n": n}) for n in range(8)]
    assert {(answer.status, answer.json["service_id"]) for answer in results} == {(200, stays.service_id)}


@pytest.mark.parametrize(("idempotent", "runs"), [(True, 2), (False, 1)])
def test_a_broken_connection_is_repeated_only_where_that_is_safe(
    reach: Instance, new_agent: NewAgent, idempotent: bool, runs: int
) -> None:
    agent = new_agent(in_turn(breaks(), answers()), idempotent=idempotent)
    answer = agent.call()
    assert answer.status == (200 if idempotent else 502)
    assert [i.attempt for i in agent.node.invocations] == list(range(1, runs + 1))


def test_at_most_two_retries(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(fails(503))
    answer = agent.call(retry_base_delay_ms=1)
    assert answer.status == 502
    assert [i.attempt for i in agent.node.invocations] == [1, 2, 3]
    assert kinds_of(reach, answer.json["call_id"]).count("retry_scheduled") == 2
    assert len(agent.node.runs_of(agent.call(max_retries=0).json["call_id"])) == 1


def test_a_caller_that_leaves_changes_nothing(reach: Instance, new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate))
    connection = http.client.HTTPConnection("127.0.0.1", reach.port)
    body = json.dumps({"capability": agent.capability, "payload": {}})
    connection.request(
        "POST", "/api/v1/dispatch", body, {"Authorization": f"Bearer {reach.key}", "Content-Type": "application/json"}
    )
    call = open_call(agent)
    wait_until(lambda: agent.node.invocations, "the node is at work")
    connection.close()
    gate.set()
    ended = reach.request("GET", f"/api/v1/calls/{call['call_id']}/wait?timeout_s=10", key=reach.key).json
    assert (ended["status"], ended["output"]) == ("succeeded", {"echo": {}})


def test_wait_answers_when_the_call_ends_and_when_time_is_up(reach: Instance, new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate))
    with ThreadPoolExecutor(2) as people:
        asked = people.submit(agent.call)
        call_id = open_call(agent)["call_id"]
        early = reach.request("GET", f"/api/v1/calls/{call_id}/wait?timeout_s=0.05", key=reach.key)
        assert (early.status, early.json["status"]) == (200, "running")
        waiting = people.submit(reach.request, "GET", f"/api/v1/calls/{call_id}/wait?timeout_s=10", key=reach.key)
        gate.set()
        assert waiting.result().json["status"] == "succeeded"
        assert asked.result().status == 200


def test_ids_of_calls_are_in_the_order_of_time(new_agent: NewAgent) -> None:
    agent = new_agent()
    ids = [agent.call().json["call_id"] for _ in range(3)]
    assert ids == sorted(ids)
    assert {id_[14] for id_ in ids} == {"7"}


def test_what_goes_in_comes_out(new_agent: NewAgent) -> None:
    payload = {
        "text": '触达 \U0001f600 \u2028 " \\ /',
        "numbers": [0, -1, 2**53, -(2**63), 1.5, 1e300, 5e-324],
        "nothing": None,
        "truth": [True, False],
        "": {"": []},
        "bytes": base64.b64encode(bytes(range(256))).decode(),
    }
    assert new_agent().call(payload).json["output"] == {"echo": payload}
