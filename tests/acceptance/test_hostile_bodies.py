"""Bodies made to hurt: a problem document each, and nobody else notices."""

import contextlib
import json
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.acceptance.agents import Agent, NewAgent, calls_where, registered
from tests.acceptance.instance import Answer, Instance, wait_until
from tests.acceptance.test_errors import leaves_no_call
from tests.factories import a_capability
from tests.fakes import FakeNode

SLOW_S = 0.1
MIB = 1_048_576
DEEP = 10_000


@dataclass(frozen=True)
class Endpoint:
    """Where bodies are taken; `around` and what follows it is a good body but for one field that takes any JSON."""

    method: str
    path: str
    good: dict[str, Any]
    around: str

    def holding(self, text: bytes) -> bytes:
        """The good body with this very text in that field."""
        before, after = self.around.encode().split(b"HERE")
        return before + text + after


CALL = "01890a5d-ac96-774b-bcce-b302099a8057"  # nobody's: a body is judged before its call is looked for
ENDPOINTS = {
    "dispatch": Endpoint(
        "POST",
        "/api/v1/dispatch",
        {"capability": "hostile", "payload": 1},
        '{"capability": "hostile", "payload": HERE}',
    ),
    "registration": Endpoint(
        "PUT",
        "/api/v1/services/hostile/nodes/n1",
        {"address": "http://127.0.0.1:1", "capabilities": [a_capability("hostile")]},
        '{"address": "http://127.0.0.1:1", "capabilities": [], "metadata": {"x": HERE}}',
    ),
    "receipts": Endpoint(
        "POST",
        f"/api/v1/calls/{CALL}/receipts",
        {"attempt": 1, "kind": "running"},
        '{"attempt": 1, "kind": "succeeded", "output": HERE}',
    ),
    "route changes": Endpoint(
        "POST",
        "/api/v1/route-changes",
        {"title": "t", "base_revision": 0, "routes": []},
        '{"title": "t", "base_revision": 0, "routes": [HERE]}',
    ),
}


def hostile_bodies(endpoint: Endpoint) -> dict[str, bytes]:
    good, holding = json.dumps(endpoint.good).encode(), endpoint.holding
    return {
        "not JSON": b"<xml/>",
        "half of it": good[:-1],
        "twice": good + good,
        "a list": b"[" + good + b"]",
        "a number": b"17",
        "null": b"null",
        "NaN": holding(b"NaN"),
        "Infinity": holding(b"-Infinity"),
        "a number out of range": holding(b"1e999"),
        "an integer of a million digits": holding(b"9" * 1_000_000),
        "half a surrogate pair": holding(rb'"\ud800"'),
        "half a surrogate pair as key": holding(rb'{"\udfff": 1}'),
        "NUL": holding(rb'"a\u0000b"'),
        "NUL as key": holding(rb'{"\u0000": 1}'),
        "NUL behind much else": holding(b"[" + b"0," * 500_000 + rb'"\u0000"]'),
        "a raw control character": holding(b'"a\x00b"'),
        "invalid UTF-8": holding(b'"\xff\xfe"'),
        "UTF-16": json.dumps(endpoint.good).encode("utf-16"),
        "deep lists": holding(b"[" * DEEP + b"]" * DEEP),
        "deep objects": holding(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
        "deep and never closed": b"[" * DEEP,
        "a million brackets": b"[" * 1_000_000,
        "a string of escaped quotes that never ends": holding(b"[" * 100 + b'"' + rb"\"" * 400_000),
    }


NAMES = list(hostile_bodies(ENDPOINTS["dispatch"]))


# --- A parallel healthy call -----------------------------------------------------------------------------------------


class Healthy:
    """Another caller on a connection of its own, who must not notice what somebody else sends."""

    def __init__(self, agent: Agent):
        self._agent = agent
        self._connection = HTTPConnection("127.0.0.1", agent.reach.port)

    def took_s(self) -> float:
        """The time of one call, which must succeed."""
        body = json.dumps({"capability": self._agent.capability, "payload": {}})
        headers = {"Authorization": f"Bearer {self._agent.reach.key}", "Content-Type": "application/json"}
        started = time.perf_counter()
        self._connection.request("POST", "/api/v1/dispatch", body, headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.status == 200, content
        return time.perf_counter() - started

    def is_undisturbed(self) -> bool:
        return max(self.took_s() for _ in range(3)) < SLOW_S / 2

    def close(self) -> None:
        self._connection.close()
        self._agent.leave()


@pytest.fixture(scope="module")
def healthy(reach: Instance) -> Iterator[Healthy]:
    caller = Healthy(registered(reach, FakeNode()))
    yield caller
    caller.close()


def sent_beside_a_healthy_call(healthy: Healthy, send: Callable[[], Answer]) -> Answer:
    """What `send` returns. Healthy calls go on all the while, and the body slows none of them.

    A machine with two busy cores takes 100 ms from anybody now and then, so one slow call convicts nobody. A round
    begins at a moment when calls are quick without the body; the body is guilty when it slows one in each of five
    rounds, as whatever blocks the loop does.
    """
    slowest: list[float] = []
    for _round in range(5):
        wait_until(healthy.is_undisturbed, "calls are quick when nobody disturbs them")
        times: list[float] = []
        with ThreadPoolExecutor(1) as stranger:
            sending = stranger.submit(send)
            while not sending.done():
                times.append(healthy.took_s())
            times.append(healthy.took_s())
        slowest.append(max(times))
        if slowest[-1] < SLOW_S:
            return sending.result()
    raise AssertionError(f"a parallel healthy call took {min(slowest):.3f} s or more each time")


# --- What comes as one piece -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS.keys())
def test_a_problem_document_and_nobody_else_notices(
    reach: Instance, healthy: Healthy, endpoint: Endpoint, name: str
) -> None:
    body = hostile_bodies(endpoint)[name]
    answer = sent_beside_a_healthy_call(
        healthy, lambda: reach.request(endpoint.method, endpoint.path, body, key=reach.key)
    )
    leaves_no_call(answer, 400, "invalid_request")


def chunked(reach: Instance, method: str, path: str, pieces: Iterator[bytes]) -> Answer:
    """Send a body without saying how long it will be."""
    connection = HTTPConnection("127.0.0.1", reach.port, timeout=30)
    headers = {"Authorization": f"Bearer {reach.key}", "Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.request(method, path, pieces, headers, encode_chunked=True)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


@pytest.mark.parametrize("by_chunks", [False, True], ids=["its length told", "in chunks"])
@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS.keys())
def test_one_byte_too_many(reach: Instance, healthy: Healthy, endpoint: Endpoint, by_chunks: bool) -> None:
    method, path = endpoint.method, endpoint.path
    start = json.dumps(endpoint.good).encode()
    body = start + b" " * (MIB + 1 - len(start))
    pieces = [body[i : i + 65536] for i in range(0, len(body), 65536)]

    def send() -> Answer:
        if by_chunks:
            return chunked(reach, method, path, iter(pieces))
        return reach.request(method, path, body, key=reach.key)

    leaves_no_call(sent_beside_a_healthy_call(healthy, send), 413, "payload_too_large")


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS.keys())
def test_far_too_much_is_refused_without_being_read_to_the_end(reach: Instance, endpoint: Endpoint) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    with contextlib.suppress(ConnectionError):  # the answer may be lost when we are still sending: that is our loss
        leaves_no_call(chunked(reach, endpoint.method, endpoint.path, endless()), 413, "payload_too_large")
    assert sent < 200 * MIB


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS.keys())
def test_a_body_that_trickles_is_given_up(reach: Instance, healthy: Healthy, endpoint: Endpoint) -> None:
    """The shared instance waits 2 s for a body. Healthy calls are timed while it does."""
    times = []
    with socket.create_connection(("127.0.0.1", reach.port), timeout=30) as line:
        head = f"{endpoint.method} {endpoint.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {reach.key}\r\n"
        line.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n".encode())
        line.settimeout(0.1)
        received = b""
        started = time.monotonic()
        while not received and time.monotonic() - started < 10:
            line.sendall(b" ")
            times.append(healthy.took_s())
            with contextlib.suppress(TimeoutError):
                received = line.recv(65536)
        while b"\r\n\r\n" not in received or not received.endswith(b"}"):
            received += line.recv(65536)
    head, _gap, content = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in head
    problem = json.loads(content)
    assert (problem["status"], problem["code"]) == (400, "invalid_request")
    assert statistics.median(times) < SLOW_S


def test_many_that_trickle_hold_up_nobody(reach: Instance, healthy: Healthy) -> None:
    head = f"POST /api/v1/dispatch HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {reach.key}\r\n"
    start = f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode()
    with contextlib.ExitStack() as lines:
        for _ in range(100):
            lines.enter_context(socket.create_connection(("127.0.0.1", reach.port))).sendall(start)
        assert statistics.median(healthy.took_s() for _ in range(20)) < SLOW_S


# --- Wrong types, field by field -------------------------------------------------------------------------------------

VALUES: list[Any] = [None, True, 0, -1, 1.5, "", "text", [], [None], {}, {"a": None}, 10**30, [[]], "x" * 5000]

FIELDS: dict[str, tuple[list[str], dict[str, list[Any]]]] = {
    "dispatch": (
        ["capability", "tags", "urgency", "timeout_ms", "idempotency_key", "mode", "trace_id", "parent_call_id",
         "labels", "session_id", "context", "max_retries", "retry_base_delay_ms", "callback_url"],
        {
            "capability": ["text", None],
            "tags": [[]],
            "timeout_ms": [None],
            "idempotency_key": [None, "text"],
            "trace_id": [None],
            "parent_call_id": [None],
            "labels": [None, {}],
            "session_id": [None, "text"],
            "context": [None, {}, {"a": None}],
            "max_retries": [None, 0],
            "retry_base_delay_ms": [None, 0],
            "callback_url": [None, "", "text"],
        },
    ),
    "registration": (
        ["address", "capabilities", "weight", "tags", "version", "protocol", "endpoints", "heartbeat_interval_s",
         "lease_ttl_s", "max_concurrency", "metadata", "requires"],
        {
            "weight": [0],
            "tags": [[]],
            "version": ["", "text"],
            "endpoints": [{}, {"a": None}],
            "heartbeat_interval_s": [None, 1.5],
            "lease_ttl_s": [None],
            "max_concurrency": [None],
            "metadata": [{}, {"a": None}],
            "requires": [[]],
            "capabilities": [[]],
        },
    ),
    "receipts": (
        ["attempt", "kind", "progress", "message", "error"],
        {"progress": [None, 0], "message": [None, "", "text"], "error": [None, {}, {"a": None}]},
    ),
    "route changes": (
        ["title", "description", "base_revision", "routes", "operations", "fallback_rules"],
        {
            "title": ["text"],
            "description": ["", "text", "x" * 5000],
            "base_revision": [0],
            "routes": [[]],
            "operations": [None],
            "fallback_rules": [None, []],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDPOINTS)
def test_wrong_types_on_every_field(reach: Instance, name: str) -> None:
    """Each value that a field does not take is a 400 that names the field; no value is a mistake of ours."""
    endpoint = ENDPOINTS[name]
    fields, taken = FIELDS[name]
    for field in fields:
        for value in VALUES:
            if any(type(value) is type(fine) and value == fine for fine in taken.get(field, [])):
                continue
            body = {k: v for k, v in endpoint.good.items() if (k, field) != ("routes", "operations")} | {field: value}
            answer = reach.request(endpoint.method, endpoint.path, body, key=reach.key)
            problem = leaves_no_call(answer, 400, "invalid_request")
            places = [error["path"] for error in problem["errors"]]
            assert any(place.startswith(f"/{field}") for place in places), (field, value, problem)


def test_of_a_duplicate_key_the_last_value_counts_and_every_one_is_checked(new_agent: NewAgent) -> None:
    agent = new_agent()
    reach, name = agent.reach, json.dumps(agent.capability).encode()

    def send(body: bytes) -> Answer:
        return reach.request("POST", "/api/v1/dispatch", body, key=reach.key)

    assert send(b'{"capability": "x", "payload": 1, "payload": 2, "capability": %s}' % name).json["output"] == {
        "echo": 2
    }
    leaves_no_call(send(b'{"capability": 5, "payload": 1, "capability": %s}' % name), 400, "invalid_request")
    leaves_no_call(send(b'{"capability": %s, "payload": 1, "capability": 5}' % name), 400, "invalid_request")


def test_no_hostile_body_has_left_a_call(reach: Instance) -> None:
    assert calls_where(reach, capability="hostile") == []
