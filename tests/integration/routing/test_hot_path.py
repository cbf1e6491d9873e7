"""The hot path leaves the event loop for nothing: no thread, no executor, no ORM, no connection of Django's.

The ASGI application is called in this process, on the loop that serves in production, with traps where it must not
step. A trap raises and remembers, for somebody might swallow what it raises.
"""

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import asgiref.sync
import django.db.backends.base.base
import django.db.models.sql.compiler
import msgspec
import pytest
import uvloop

from tests.factories import SUMMARY_INPUT, SUMMARY_OUTPUT, a_capability
from tests.fakes import FakeNode, answers, fails, in_turn, says

pytestmark = pytest.mark.django_db(transaction=True)
REPORT = {"content_type": "report"}

FORBIDDEN = [
    (threading.Thread, "start", "a thread was started"),
    (concurrent.futures.ThreadPoolExecutor, "submit", "an executor was given work"),
    (asyncio.BaseEventLoop, "run_in_executor", "the loop's executor was given work"),
    (uvloop.Loop, "run_in_executor", "the loop's executor was given work"),
    (asgiref.sync.SyncToAsync, "__call__", "sync_to_async was called"),
    (asgiref.sync.AsyncToSync, "__call__", "async_to_sync was called"),
    (django.db.backends.base.base.BaseDatabaseWrapper, "ensure_connection", "Django connected to the database"),
    (django.db.backends.base.base.BaseDatabaseWrapper, "cursor", "Django spoke to the database"),
    (django.db.models.sql.compiler.SQLCompiler, "as_sql", "the ORM wrote SQL"),
]


@dataclass
class Traps:
    """Where the hot path must not step while they are set, and where it did."""

    monkeypatch: pytest.MonkeyPatch
    sprung: list[str] = field(default_factory=list)

    def set(self) -> None:
        for owner, name, what in FORBIDDEN:
            self.monkeypatch.setattr(owner, name, self.trap(what))

    def trap(self, what: str) -> Callable[..., Any]:
        def spring(*_arguments: Any, **_named: Any) -> Any:
            self.sprung.append(what)
            raise AssertionError(what)

        return spring


@pytest.fixture
def traps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traps]:
    with monkeypatch.context() as patch:
        yield Traps(patch)


@dataclass
class Reach:
    """The application in this process, as a client with one key sees it."""

    key: str

    async def __call__(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> tuple[int, Any]:
        from reach_project.asgi import application

        content = b"" if body is None else json.dumps(body).encode()
        headers = [
            (b"host", b"127.0.0.1"),
            (b"authorization", f"Bearer {key or self.key}".encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        path, _mark, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": f"/api/v1/{path}", "raw_path": f"/api/v1/{path}".encode(), "query_string": query.encode(),
            "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        body_comes = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return body_comes.pop() if body_comes else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            sent.append(message)

        await application(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        is_stream = any(header == (b"content-type", b"text/event-stream") for header in sent[0]["headers"])
        return sent[0]["status"], body if is_stream else json.loads(body)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    node = FakeNode(answers({"summary": "short"}))
    yield node
    node.close()


@pytest.fixture
def reach(node: FakeNode) -> Reach:
    """A ready agent and the keys to call it, all in the database before anything is measured."""
    from django.utils import timezone

    from registry import services
    from registry.models import Node
    from registry.serializers import NodeBody

    key = services.create_service_key("doc-summarizer", ("register", "dispatch", "observe"), by="test")
    by = services.Key("k", "doc-summarizer", None, None, frozenset({"register"}))
    offer = a_capability("file_summary", input=SUMMARY_INPUT, output=SUMMARY_OUTPUT, idempotent=True)
    declared = {"address": node.address, "capabilities": [offer]}  # only a host's name costs a thread, when connecting
    services.register_node("doc-summarizer", "n1", msgspec.convert(declared, NodeBody), by=by)
    Node.objects.update(health="ready", health_reason="", health_since=timezone.now())
    return Reach(key.text)


def on_the_loop_of_production(traps: Traps, journey: Callable[[], Awaitable[Any]]) -> Any:
    """Start the live parts, set the traps, run `journey`, and stop the parts when the traps are gone."""
    import reach_project.asgi  # noqa: F401  # it reads static files when it is first imported
    from routing import live

    async def run() -> Any:
        parts = await live.start_parts("test")
        try:
            async with asyncio.timeout(10):
                while parts.snapshot.tables is None:
                    await asyncio.sleep(0.01)
            live.current = parts
            await parts.journal.read("SELECT 1")  # its pool has connected
            traps.set()
            try:
                async with asyncio.timeout(20):
                    return await journey()
            finally:
                traps.monkeypatch.undo()
        finally:
            live.current = None
            await parts.stop()

    return uvloop.run(run())


CALL = {"capability": "file_summary", "payload": REPORT, "labels": {"tenant": "emea"}, "tags": []}


def test_a_call_from_its_request_to_its_answer(reach: Reach, traps: Traps, node: FakeNode) -> None:
    async def journey() -> Any:
        return [await reach("POST", "dispatch", CALL) for _ in range(3)]

    told = on_the_loop_of_production(traps, journey)
    assert traps.sprung == []
    assert [(status, body["output"]) for status, body in told] == [(200, {"summary": "short"})] * 3
    assert len(node.invocations) == 3


def test_many_calls_at_once(reach: Reach, traps: Traps, node: FakeNode) -> None:
    async def journey() -> Any:
        return await asyncio.gather(*(reach("POST", "dispatch", CALL) for _ in range(100)))

    assert {status for status, _body in on_the_loop_of_production(traps, journey)} == {200}
    assert traps.sprung == []


def test_keys_children_retries_and_refusals(reach: Reach, traps: Traps, node: FakeNode) -> None:
    node.behave = in_turn(fails(503), answers({"summary": "second try"}))

    async def journey() -> Any:
        keyed = CALL | {"idempotency_key": "k", "retry_base_delay_ms": 1}
        first = await reach("POST", "dispatch", keyed)
        again = await reach("POST", "dispatch", keyed)
        child = await reach("POST", "dispatch", CALL | {"parent_call_id": first[1]["call_id"]})
        return {
            "first": first,
            "again": again,
            "child": child,
            "explained": await reach("POST", "dispatch/explain", CALL),
            "other request": await reach("POST", "dispatch", keyed | {"payload": {"content_type": "email"}}),
            "bad payload": await reach("POST", "dispatch", CALL | {"payload": {}}),
            "unknown": await reach("POST", "dispatch", CALL | {"capability": "never_declared"}),
            "no envelope": await reach("POST", "dispatch", {"capability": 5}),
            "unknown key": await reach("POST", "dispatch", CALL, key="nobody-knows-this"),
            "wrong method": await reach("GET", "dispatch"),
        }

    told = on_the_loop_of_production(traps, journey)
    assert traps.sprung == []
    assert {name: status for name, (status, _body) in told.items()} == {
        "first": 200, "again": 200, "child": 200, "explained": 200, "other request": 409, "bad payload": 422,
        "unknown": 404, "no envelope": 400, "unknown key": 401, "wrong method": 405,
    }  # fmt: skip
    assert (told["first"][1]["attempts"], told["again"][1]["replayed"]) == (2, True)


def test_receipts_and_waiting(reach: Reach, traps: Traps, node: FakeNode) -> None:
    node.behave = says(202)

    async def journey() -> Any:
        asked = asyncio.ensure_future(reach("POST", "dispatch", CALL))
        while not node.invocations:
            await asyncio.sleep(0.005)
        path = f"calls/{node.invocations[0].call_id}"
        waited, streamed = (asyncio.ensure_future(reach("GET", f"{path}/{what}")) for what in ("wait", "events"))
        return [
            await reach("POST", f"{path}/receipts", {"attempt": 1, "kind": "running", "progress": 0.5}),
            await reach("GET", f"{path}/wait?timeout_s=0"),
            await reach("POST", f"{path}/receipts", {"attempt": 1, "kind": "succeeded", "output": {"summary": "late"}}),
            await asked,
            await reach("GET", f"{path}/wait"),
            await reach("GET", f"{path}/receipts"),
            await waited,
            await streamed,
            await reach("GET", f"{path}/events"),
        ]

    told = on_the_loop_of_production(traps, journey)
    assert traps.sprung == []
    assert [status for status, _body in told] == [200] * 9
    assert told[6][1]["status"] == "succeeded" and told[7][1] == told[8][1]
    events = [line.removeprefix("data: ") for line in told[8][1].decode().splitlines() if line.startswith("data")]
    assert [json.loads(data) for data in events] == told[5][1]["results"]
    assert told[3][1]["output"] == {"summary": "late"}
    assert [r["kind"] for r in told[5][1]["results"]][-2:] == ["running", "succeeded"]


def test_heartbeats(reach: Reach, traps: Traps) -> None:
    from registry.models import NodeLease

    path = "services/doc-summarizer/nodes/n1/heartbeat"

    async def journey() -> Any:
        return [
            await reach("POST", path),
            await reach("POST", path, {"in_flight": 3, "declaration_hash": "0" * 64}),
            await reach("POST", path, {"in_flight": -1}),
            await reach("POST", path.replace("doc", "other")),
        ]

    before = NodeLease.objects.get()
    told = on_the_loop_of_production(traps, journey)
    assert traps.sprung == []
    assert [status for status, _body in told] == [200, 200, 400, 403]
    assert (told[0][1]["reregister"], told[1][1]["reregister"]) == (False, True)
    after = NodeLease.objects.get()
    assert (after.in_flight, after.lease_expires_at > before.lease_expires_at) == (3, True)


def test_a_heartbeat_of_an_expired_node_revives_it_in_a_thread(reach: Reach, traps: Traps) -> None:
    from registry.models import Node, NodeLease

    NodeLease.objects.update(expired=True)

    async def journey() -> Any:
        traps.monkeypatch.undo()
        path = "services/doc-summarizer/nodes/{}/heartbeat"
        return [await reach("POST", path.format(name)) for name in ("n1", "n2", "n1")]

    told = on_the_loop_of_production(traps, journey)
    assert [status for status, _body in told] == [200, 404, 200]
    assert (Node.objects.get().health, NodeLease.objects.get().expired) == ("starting", False)


def test_the_traps_would_be_sprung(traps: Traps) -> None:
    """By each way out of the loop that there is."""

    async def journey() -> Any:
        from registry.models import Node

        ways_out: list[Callable[[], Any]] = [
            lambda: asyncio.to_thread(print),
            lambda: asgiref.sync.sync_to_async(print)(),
            Node.objects.acount,
            lambda: threading.Thread(target=print).start(),
            lambda: concurrent.futures.ThreadPoolExecutor(1).submit(print),
            lambda: str(Node.objects.all().query),
        ]
        for way in ways_out:
            before = len(traps.sprung)
            with pytest.raises(AssertionError):
                found = way()
                if asyncio.iscoroutine(found):
                    await found
            assert len(traps.sprung) > before

    on_the_loop_of_production(traps, journey)
