"""Every problem code that can occur: its document, whether it leaves a call, and what that call's receipts say."""

import gzip
import json
import secrets
import threading
from math import ceil
from typing import Any

import pytest

from tests.acceptance.agents import (
    TERMINAL,
    NewAgent,
    call_of,
    calls_where,
    dispatch,
    key_of,
    publish,
    receipts_of,
)
from tests.acceptance.instance import Answer, Instance
from tests.factories import SUMMARY_INPUT, SUMMARY_OUTPUT
from tests.fakes import Behaviour, Invocation, answers, breaks, does, fails, says, waits_for

REPORT = {"content_type": "report"}


def problem_of(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """The answer's problem document, which is well-formed and says just this."""
    assert (answer.status, answer.json.get("code")) == (status, code), answer.body
    problem = answer.json
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["X-Request-Id"]
    assert problem["status"] == status
    assert problem["type"] and problem["title"] and problem["detail"]
    if status in (429, 503):
        assert answer.headers["Retry-After"] == str(ceil(problem["retry_after_ms"] / 1000))
    for error in problem.get("errors", []):
        assert error.keys() == {"path", "message"}
    return problem


def leaves_no_call(answer: Answer, status: int, code: str) -> dict[str, Any]:
    problem = problem_of(answer, status, code)
    assert "call_id" not in problem
    return problem


def leaves_a_call(reach: Instance, answer: Answer, status: int, code: str, ended: str) -> dict[str, Any]:
    """The problem names a call that ended so, and whose last receipt holds the same code."""
    problem = problem_of(answer, status, code)
    call = call_of(reach, problem["call_id"])
    assert (call["status"], call["trace_id"], call["error"]["code"]) == (ended, problem["trace_id"], code)
    receipts = receipts_of(reach, problem["call_id"])
    assert receipts[0]["kind"] == "accepted"
    assert [r["kind"] for r in receipts if r["kind"] in TERMINAL] == [ended] == [receipts[-1]["kind"]]
    assert receipts[-1]["detail"]["code"] == code
    if ended == "rejected":
        assert "forwarded" not in [r["kind"] for r in receipts]
    return problem


@pytest.fixture
def trace() -> str:
    """A trace id of this test's own, to look for calls that should not be there."""
    return secrets.token_hex(16)


# --- What leaves no call ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "later"},
        {"timeout_ms": "soon"},
        {"urgency": 5},
        {"parent_call_id": "01890a5d-ac96-774b-bcce-b302099a8057"},
    ],
    ids=str,
)
def test_invalid_request(reach: Instance, trace: str, fields: dict[str, Any]) -> None:
    leaves_no_call(dispatch(reach, "x", trace_id=trace, **fields), 400, "invalid_request")
    assert calls_where(reach, trace_id=trace) == []


def test_a_mistake_is_named_by_its_place(reach: Instance) -> None:
    problem = leaves_no_call(dispatch(reach, "x", labels={"tenant": 5}), 400, "invalid_request")
    assert problem["errors"][0]["path"].startswith("/labels")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer nobody-knows-this"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer " + "x" * 5000},
    ],
    ids=["none", "unknown", "another scheme", "empty", "very long"],
)
@pytest.mark.parametrize("path", ["dispatch", "dispatch/explain", "route-changes", "services/a/nodes/b/heartbeat"])
def test_unauthenticated(reach: Instance, trace: str, path: str, headers: dict[str, str]) -> None:
    body = {"capability": "x", "payload": {}, "trace_id": trace}
    answer = reach.request("POST", f"/api/v1/{path}", body, headers=headers)
    leaves_no_call(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert calls_where(reach, trace_id=trace) == []


def test_a_revoked_key_is_unknown(reach: Instance) -> None:
    body = {"service_id": "leaver", "scopes": ["dispatch"]}
    made = reach.request("POST", "/api/v1/keys", body, key=reach.key).json
    leaves_a_call(reach, dispatch(reach, "never_declared", key=made["key"]), 404, "unknown_capability", "rejected")
    assert reach.request("DELETE", f"/api/v1/keys/{made['key_id']}", key=reach.key).status == 204
    leaves_no_call(dispatch(reach, "never_declared", key=made["key"]), 401, "unauthenticated")


def test_forbidden_without_the_scope(reach: Instance, trace: str) -> None:
    watcher = key_of(reach, "watcher", "observe")
    leaves_no_call(dispatch(reach, "x", key=watcher, trace_id=trace), 403, "forbidden")
    assert calls_where(reach, trace_id=trace) == []
    caller = key_of(reach, "caller", "dispatch")
    for method, path, body in (
        ("GET", "services", None),
        ("PUT", "services/caller/nodes/n1", {"address": "http://127.0.0.1:1", "capabilities": []}),
        ("POST", "route-changes", {"title": "t", "base_revision": 0, "routes": []}),
        ("POST", "keys", {"service_id": "caller", "scopes": ["operate"]}),
    ):
        leaves_no_call(reach.request(method, f"/api/v1/{path}", body, key=caller), 403, "forbidden")


def test_forbidden_for_another_service(reach: Instance, new_agent: NewAgent) -> None:
    mine, theirs = new_agent(), new_agent()
    body = {"address": "http://127.0.0.1:1", "capabilities": []}
    path = f"/api/v1/services/{theirs.service_id}/nodes/n1"
    for method, end, sent in (("PUT", "", body), ("POST", "/heartbeat", {}), ("DELETE", "", None)):
        leaves_no_call(reach.request(method, path + end, sent, key=mine.key), 403, "forbidden")


def test_forbidden_to_read_anothers_call(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    call_id = agent.call().json["call_id"]
    stranger = key_of(reach, "nosy", "dispatch")
    for end in ("", "/receipts", "/wait?timeout_s=0", "/events"):
        answer = reach.request("GET", f"/api/v1/calls/{call_id}{end}", key=stranger)
        problem_of(answer, 403, "forbidden")
    assert reach.request("GET", "/api/v1/calls", key=stranger).json["results"] == []
    own = dispatch(reach, agent.capability, key=stranger).json["call_id"]
    assert reach.request("GET", f"/api/v1/calls/{own}", key=stranger).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "calls/01890a5d-ac96-774b-bcce-b302099a8057",
        "calls/01890a5d-ac96-774b-bcce-b302099a8057/receipts",
        "calls/01890a5d-ac96-774b-bcce-b302099a8057/wait?timeout_s=0",
        "calls/01890a5d-ac96-774b-bcce-b302099a8057/events",
        f"traces/{'9' * 32}",
        "services/never-registered",
        "services/never-registered/nodes/n1",
        "capabilities/never_declared",
        "route-revisions/999999",
        "route-changes/999999",
        "nothing-of-the-kind",
        "calls/not-an-id",
    ],
)
def test_not_found(reach: Instance, path: str) -> None:
    problem_of(reach.request("GET", f"/api/v1/{path}", key=reach.key), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "dispatch"),
        ("PUT", "dispatch"),
        ("GET", "dispatch/explain"),
        ("DELETE", "calls/01890a5d-ac96-774b-bcce-b302099a8057/receipts"),
        ("POST", "calls"),
        ("POST", "nodes"),
        ("DELETE", "routes"),
        ("GET", "services/a/nodes/b/heartbeat"),
    ],
)
def test_method_not_allowed(reach: Instance, method: str, path: str) -> None:
    answer = reach.request(method, f"/api/v1/{path}", key=reach.key)
    leaves_no_call(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "dispatch"),
        ("POST", "dispatch/explain"),
        ("PUT", "services/a/nodes/b"),
        ("POST", "calls/01890a5d-ac96-774b-bcce-b302099a8057/receipts"),
        ("POST", "route-changes"),
    ],
)
def test_unsupported_media_type(reach: Instance, method: str, path: str, content_type: str) -> None:
    answer = reach.request(method, f"/api/v1/{path}", b"{}", key=reach.key, headers={"Content-Type": content_type})
    leaves_no_call(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_by_any_spelling_is_json(reach: Instance, new_agent: NewAgent, content_type: str) -> None:
    assert new_agent().call(headers={"Content-Type": content_type}).status == 200


def test_payload_too_large(reach: Instance, trace: str) -> None:
    leaves_no_call(dispatch(reach, "x", {"text": "x" * 1_048_576}, trace_id=trace), 413, "payload_too_large")
    assert calls_where(reach, trace_id=trace) == []


def test_the_largest_body_is_taken(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(answers({}))
    frame = len(json.dumps({"capability": agent.capability, "payload": {"text": ""}}))
    answer = agent.call({"text": "x" * (1_048_576 - frame)})
    assert answer.status == 200
    assert len(agent.node.invocations[-1].payload["text"]) == 1_048_576 - frame


def test_conflict(reach: Instance) -> None:
    change = reach.request(
        "POST", "/api/v1/route-changes", {"title": "t", "base_revision": 0, "routes": []}, key=reach.key
    )
    path = f"/api/v1/route-changes/{change.json['id']}"
    problem_of(reach.request("POST", f"{path}/publish", {}, key=reach.key), 409, "conflict")


@pytest.mark.parametrize("different", [{"payload": {"n": 2}}, {"labels": {"a": "1"}}], ids=["payload", "labels"])
def test_idempotency_conflict(reach: Instance, new_agent: NewAgent, different: dict[str, Any]) -> None:
    agent = new_agent()
    first = agent.call({"n": 1}, idempotency_key=agent.capability)
    other = {"payload": {"n": 1}, "idempotency_key": agent.capability, **different}
    problem = problem_of(dispatch(reach, agent.capability, **other), 409, "idempotency_conflict")
    assert problem["call_id"] == first.json["call_id"]
    assert len(calls_where(reach, capability=agent.capability)) == len(agent.node.invocations) == 1


# --- What ends before any attempt ------------------------------------------------------------------------------------


def test_unknown_capability(reach: Instance) -> None:
    leaves_a_call(reach, dispatch(reach, "never_declared"), 404, "unknown_capability", "rejected")


def test_forbidden_by_the_capability(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(allow_callers=["ceo", "user:admin"])
    stranger = key_of(reach, "stranger", "dispatch")
    leaves_a_call(reach, agent.call(key=stranger), 403, "forbidden", "rejected")
    assert agent.call(key=key_of(reach, "ceo", "dispatch")).status == 200


def test_forbidden_by_the_route(reach: Instance, colleague_key: str, new_agent: NewAgent) -> None:
    agent = new_agent()
    match, strategy = {"capability": agent.capability}, {"type": "least_loaded"}
    rules = [
        {"op": "put", "id": "mine", "match": match, "strategy": strategy, "priority": 9, "allow_callers": ["ceo"]},
        {"op": "put", "id": "everybodys", "match": match, "strategy": strategy},
    ]
    publish(reach, colleague_key, operations=rules)
    leaves_a_call(reach, agent.call(), 403, "forbidden", "rejected")
    assert agent.call(key=key_of(reach, "ceo", "dispatch")).json["route_id"] == "mine"
    publish(reach, colleague_key, operations=[{"op": "delete", "id": rule["id"]} for rule in rules])


def test_loop_detected_by_depth(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    parent: dict[str, Any] = {}
    for hop in range(17):
        answer = agent.call({"hop": hop}, **parent)
        assert answer.status == 200, answer.body
        parent = {"parent_call_id": answer.json["call_id"]}
    leaves_a_call(reach, agent.call({"hop": 17}, **parent), 409, "loop_detected", "rejected")


def test_loop_detected_by_the_same_payload(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    heard: list[Answer] = []

    def asks_itself(invocation: Invocation) -> str:
        payload = {"n": invocation.payload["n"] - 1} if invocation.payload["n"] else invocation.payload
        heard.append(agent.call(payload, key=agent.key, parent_call_id=invocation.call_id))
        return "done"

    agent.node.behave = does(asks_itself)
    answer = agent.call({"n": 1})
    assert answer.status == 200
    refused, below = heard
    assert below.status == 200  # another payload is no loop
    problem = leaves_a_call(reach, refused, 409, "loop_detected", "rejected")
    assert problem["trace_id"] == answer.json["trace_id"]
    assert len(agent.node.invocations) == 2


def test_invalid_payload(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(input=SUMMARY_INPUT, sample=REPORT)
    problem = leaves_a_call(reach, agent.call({"content_type": "song"}), 422, "invalid_payload", "rejected")
    assert [error["path"] for error in problem["errors"]] == ["/payload/content_type"]
    assert agent.node.invocations == []


def test_no_available_node(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    path = f"/api/v1/services/{agent.service_id}/nodes/n1"
    assert reach.request("PATCH", path, {"admin_state": "disabled"}, key=reach.key).status == 200
    problem = leaves_a_call(reach, agent.call(), 503, "no_available_node", "rejected")
    assert problem["retry_after_ms"] == 1000
    assert "disabled by an operator" in problem["detail"]
    assert reach.request("DELETE", path, key=agent.key).status == 204
    leaves_a_call(reach, agent.call(), 503, "no_available_node", "rejected")  # once declared, known for ever


# --- What ends after an attempt --------------------------------------------------------------------------------------

BIG = 4_194_304

UPSTREAM: list[Any] = [
    pytest.param(fails(400, "bad", "no"), 1, False, id="4xx"),
    pytest.param(fails(500, "bug", "oops"), 1, False, id="5xx"),
    pytest.param(fails(502, "bad_gateway", "mine"), 1, False, id="502 of its own"),
    pytest.param(fails(429, "busy", "later"), 3, False, id="429: not started, and still not after two retries"),
    pytest.param(fails(503, "full", "later"), 3, False, id="503: likewise"),
    pytest.param(fails(503, "full", "never", retryable=False), 1, False, id="503 that says never"),
    pytest.param(says(500, "<html>"), 1, False, id="no error document"),
    pytest.param(says(500, '{"error": "text"}'), 1, False, id="an error that is no object"),
    pytest.param(says(500, '{"error": {"code": 5, "message": ["x"], "retryable": "yes"}}'), 1, False, id="wrong types"),
    pytest.param(fails(500, "nul", "a\x00b \ud800"), 1, False, id="NUL and half a surrogate pair in its words"),
    pytest.param(says(404, "nothing here", "text/plain"), 1, False, id="404"),
    pytest.param(says(502, "<html>bad gateway</html>", "text/html"), 1, True, id="502 from something in between"),
    pytest.param(says(504), 1, True, id="504 from something in between"),
    pytest.param(breaks(), 1, True, id="broken connection"),
    pytest.param(says(302, Location="http://127.0.0.1:1/"), 1, False, id="redirect"),
    pytest.param(says(307, Location="/reach/invoke"), 1, False, id="redirect to itself"),
    pytest.param(says(204), 1, False, id="204"),
    pytest.param(says(200, b'{"output": "' + b"x" * BIG + b'"}'), 1, False, id="oversized answer"),
    pytest.param(
        says(200, gzip.compress(b'{"output": "' + b"x" * BIG + b'"}'), **{"Content-Encoding": "gzip"}),
        1,
        False,
        id="oversized once unpacked",
    ),
]


@pytest.mark.parametrize(("behave", "attempts", "unknown"), UPSTREAM)
def test_upstream_error(reach: Instance, new_agent: NewAgent, behave: Behaviour, attempts: int, unknown: bool) -> None:
    agent = new_agent(behave)
    answer = agent.call(retry_base_delay_ms=1)
    problem = leaves_a_call(reach, answer, 502, "upstream_error", "failed")
    assert f"{agent.service_id}/n1" in problem["detail"]
    assert problem.get("outcome_unknown", False) is unknown
    assert len(agent.node.invocations) == call_of(reach, problem["call_id"])["attempts"] == attempts


def test_upstream_error_holds_the_nodes_own(reach: Instance, new_agent: NewAgent) -> None:
    error = {"code": "oom", "message": "out of memory", "retryable": False, "more": {"gpu": 3}}
    agent = new_agent(says(500, json.dumps({"error": error})))
    problem = leaves_a_call(reach, agent.call(), 502, "upstream_error", "failed")
    assert problem["upstream"] == error
    assert "oom" in problem["detail"] and "out of memory" in problem["detail"]


def test_upstream_error_of_a_node_that_is_gone(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    agent.node.go_away()
    problem = leaves_a_call(reach, agent.call(retry_base_delay_ms=1), 502, "upstream_error", "failed")
    assert "connection refused" in problem["detail"]
    assert "outcome_unknown" not in problem


@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(answers({"summary": 5}), id="wrong type"),
        pytest.param(says(200, '{"result": 1}'), id="no output"),
        pytest.param(says(200, "[]"), id="no object"),
        pytest.param(says(200, ""), id="nothing"),
        pytest.param(says(200, "<html>", "text/html"), id="not JSON"),
        pytest.param(says(200, '{"output": {"summary": NaN}}'), id="NaN"),
        pytest.param(says(200, b'{"output": {"summary": "\xff"}}'), id="invalid UTF-8"),
        pytest.param(says(200, r'{"output": {"summary": "\ud800"}}'), id="half a surrogate pair"),
        pytest.param(says(200, b'{"output": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), id="deep"),
    ],
)
def test_invalid_output(reach: Instance, new_agent: NewAgent, behave: Behaviour) -> None:
    agent = new_agent(behave, output=SUMMARY_OUTPUT, idempotent=True)
    leaves_a_call(reach, agent.call(), 502, "invalid_output", "failed")
    assert len(agent.node.invocations) == 1


def test_invalid_output_names_each_place(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(answers({"summary": 5, "keywords": ["a", 7]}), output=SUMMARY_OUTPUT)
    problem = leaves_a_call(reach, agent.call(), 502, "invalid_output", "failed")
    assert {error["path"] for error in problem["errors"]} == {"/output/summary", "/output/keywords/1"}


def test_deadline_exceeded(reach: Instance, new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate), idempotent=True)
    problem = leaves_a_call(reach, agent.call(timeout_ms=200), 504, "deadline_exceeded", "timed_out")
    assert problem["outcome_unknown"] is True
    gate.set()
    assert len(agent.node.invocations) == 1


def test_deadline_exceeded_while_resting_before_a_retry_is_the_last_attempts_error(
    reach: Instance, new_agent: NewAgent
) -> None:
    agent = new_agent(fails(503, "full", "later"))
    answer = agent.call(timeout_ms=100)
    assert answer.json["code"] in ("upstream_error", "deadline_exceeded")
    leaves_a_call(reach, answer, answer.status, answer.json["code"], {502: "failed", 504: "timed_out"}[answer.status])
