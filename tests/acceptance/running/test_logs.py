"""What the log of a running reach says, and what it never says."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.acceptance.agents import NewAgent
from tests.acceptance.instance import Instance
from tests.fakes import breaks, fails, in_turn, says

CANARY = "canary-4f1d2c"
KEY = f"reach_{CANARY}_key"


@pytest.fixture(scope="module", params=["line", "json"])
def talkative(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A reach that logs all it can."""
    environment = {"REACH_LOG_FORMAT": request.param, "REACH_LOG_LEVEL": "DEBUG", "REACH_MAX_BODY_BYTES": "20000"}
    instance = Instance(tmp_path_factory.mktemp("talkative") / "home", environment)
    try:
        yield instance.start()
    finally:
        instance.remove()


def test_no_key_and_no_payload_is_ever_logged(talkative: Instance, new_agent: NewAgent) -> None:
    canary: dict[str, Any] = {"text": CANARY, CANARY: 1}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    kinds = (
        new_agent(at=talkative, input=schema),
        new_agent(fails(500, CANARY, CANARY, retryable=True), at=talkative, idempotent=True),
        new_agent(in_turn(breaks(), says(200, f'{{"output": {CANARY}')), at=talkative, idempotent=True),
        new_agent(says(200, json.dumps({"output": CANARY})), at=talkative, output=schema),
        new_agent(says(502, CANARY), at=talkative),
        new_agent(says(302, CANARY, Location=f"http://{CANARY}"), at=talkative),
    )
    statuses = set()
    for agent in kinds:
        for fields in (
            {},
            {"labels": {"tenant": CANARY, CANARY: CANARY}},
            {"labels": {"nul": f"{CANARY}\0"}},
            {"context": canary, "session_id": CANARY, "idempotency_key": f"{agent.capability} {CANARY}"},
            {"session_id": f"{CANARY}\0"},
            {"idempotency_key": f"{CANARY}\0"},
            {"payload": {"n": CANARY}},
            {"payload": {"nul": f"{CANARY}\0"}},
            {"payload": {"lone": f"{CANARY}\ud800"}},
            {"tags": [CANARY], "urgency": CANARY},
        ):
            payload = fields.pop("payload", canary)
            statuses.add(agent.call(payload, retry_base_delay_ms=1, **fields).status)
    agent = kinds[0]
    call_id = agent.call().json["call_id"]
    ask = talkative.request
    for key in (KEY, talkative.key):
        statuses |= {
            ask("POST", "/api/v1/dispatch", CANARY.encode(), key=key).status,
            ask("POST", "/api/v1/dispatch", json.dumps({"capability": CANARY, "payload": canary}), key=key).status,
            ask("POST", "/api/v1/dispatch", b'{"capability": "' + CANARY.encode() * 9, key=key).status,
            ask("POST", "/api/v1/dispatch", {"capability": "c", "payload": CANARY * 9000}, key=key).status,
            ask("POST", "/api/v1/dispatch", {"capability": f"Not {CANARY}", "payload": 1}, key=key).status,
            ask("POST", f"/api/v1/dispatch/explain?key={KEY}", {"intent": CANARY, "payload": canary}, key=key).status,
            ask("POST", f"/api/v1/calls/{call_id}/receipts", {"attempt": 1, "kind": CANARY}, key=key).status,
            ask("POST", f"/api/v1/calls/{call_id}/receipts", receipt(f"{CANARY}\0"), key=key).status,
            ask("POST", f"/api/v1/calls/{call_id}/receipts", receipt(CANARY), key=key).status,
            ask("GET", f"/api/v1/calls?label=k:{CANARY}%00&cursor={CANARY}", key=key).status,
            ask("GET", f"/api/v1/services/{CANARY}?key={KEY}", key=key).status,
            ask("GET", f"/nowhere?key={KEY}", key=key).status,
            ask("PUT", f"/api/v1/services/{CANARY}/nodes/n", {"address": CANARY, "metadata": canary}, key=key).status,
            ask("POST", "/api/v1/keys", {"service_id": f"{CANARY}\0", "scopes": [CANARY]}, key=key).status,
            ask("POST", "/api/v1/route-changes", {"title": f"{CANARY}\0", "routes": canary}, key=key).status,
            ask("GET", "/metrics", key=key).status,
            ask("GET", "/api/v1/nodes", headers={"Authorization": f"Basic {KEY}"}).status,
            ask("GET", "/api/v1/nodes", headers={"Host": CANARY, "Cookie": f"sessionid={KEY}"}).status,
        }
    statuses.add(ask("POST", "/admin/login/", f"username=a&password={CANARY}".encode()).status)
    with socket.create_connection(("127.0.0.1", talkative.port)) as raw:
        raw.sendall(f"NONSENSE {KEY}\r\n\r\n".encode())
        raw.recv(1000)
    assert {200, 400, 401, 404, 409, 413, 422, 502} <= statuses, statuses
    said = [line for line in talkative.output.splitlines() if CANARY in line]
    assert said == []
    welcome = f"operator key  {talkative.key}"  # printed once, on stdout
    assert talkative.key not in talkative.output.replace(welcome, "")


def receipt(text: str) -> dict[str, Any]:
    return {"attempt": 1, "kind": "failed", "error": {"code": text, "message": text}}


def test_every_line_is_a_document(new_instance: Callable[..., Instance]) -> None:
    reach = new_instance(REACH_LOG_FORMAT="json").start()
    assert reach.stop() == 0
    documents = [json.loads(line) for line in reach.output.splitlines() if line.startswith("{")]
    welcome = [line for line in reach.output.splitlines() if not line.startswith("{")]
    assert any(document["event"].startswith("stopping:") for document in documents)
    assert all(document.keys() >= {"timestamp", "level", "logger", "event", "pid"} for document in documents)
    assert not [line for line in welcome if "WARNING" in line or "INFO" in line or "Traceback" in line]


@pytest.mark.parametrize(("name", "value"), [("REACH_LOG_FORMAT", "xml"), ("REACH_LOG_LEVEL", "chatty")])
def test_an_unknown_word_is_refused(new_instance: Callable[..., Instance], name: str, value: str) -> None:
    refused = new_instance(**{name: value}).manage("reach_serve", check=False)
    assert refused.returncode != 0
    assert f"{name}={value!r} must be one of" in refused.stderr
