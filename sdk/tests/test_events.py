"""Following a call: everything once and in order, whatever happens to the connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from fakes import until

from agent_reach import AsyncReachClient, Forbidden, NotAgentReach, NotFound, ReachClient, Unreachable, _wire, client

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(seq: int, kind: str = "running") -> bytes:
    return f"id: {seq}\ndata: {json.dumps({'seq': seq, 'kind': kind})}\n\n".encode()


def tells(*chunks: bytes, then_breaks: bool = False) -> Answer:
    """A stream of these bytes, that ends well or in the middle."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then_breaks:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def says(status: int, document: Any = None, text: str | None = None, **headers: str) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        body = json.dumps(document) if text is None else text
        return web.Response(status=status, text=body if status != 204 else None, headers=headers)

    return answer


class Server:
    """Answers one request after the other as `answers` says, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[web.Request] = []
        self.url = ""

    @property
    def came_back_with(self) -> list[str | None]:
        return [request.headers.get("Last-Event-ID") for request in self.asked]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        return await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_get("/api/v1/calls/{call_id}/events", made.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def told(server: Server, after: int = 0) -> list[int]:
    async with AsyncReachClient(server.url, "k") as reach:
        return [receipt["seq"] async for receipt in reach.events("c", after)]


RETRY_AT_ONCE = b"retry: 1\n\n"
GO_ON = b": this process is stopping: come back\n\n"


async def test_a_stream_ends_with_the_receipt_that_ends_the_call(server: Server):
    server.answers = [tells(RETRY_AT_ONCE, event(1), event(2), event(3, "succeeded"), event(4, "late_result"))]
    assert await told(server) == [1, 2, 3]
    assert server.asked[0].headers["Accept"] == "text/event-stream" and server.came_back_with == [None]


async def test_it_goes_on_where_it_was_after_every_kind_of_break(server: Server):
    server.answers = [
        tells(RETRY_AT_ONCE, event(1), then_breaks=True),
        says(503, {"code": "unavailable", "detail": "stopping", "retry_after_ms": 1}),
        says(502, text="<html>", **{"Content-Type": "text/html"}),
        tells(RETRY_AT_ONCE, event(2), event(3)[:20], then_breaks=True),
        tells(RETRY_AT_ONCE, GO_ON),
        says(429, {"code": "rate_limited", "detail": "too many", "retry_after_ms": 1}),
        tells(RETRY_AT_ONCE, b":\n\n", event(3), event(4, "failed")),
    ]
    assert await told(server) == [1, 2, 3, 4]
    assert server.came_back_with == [None, "1", "1", "1", "2", "2", "2"]


async def test_a_call_of_which_all_has_been_told_ends_at_once(server: Server):
    server.answers = [says(204)]
    assert await told(server, after=7) == []
    assert server.came_back_with == ["7"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (says(404, {"code": "not_found", "detail": "no call c"}), NotFound),
        (says(403, {"code": "forbidden", "detail": "not yours"}), Forbidden),
        (says(200, {"anything": 1}), NotAgentReach),
        (says(200, text="hello"), NotAgentReach),
        (tells(b"data: [1]\n\n"), NotAgentReach),
    ],
)
async def test_what_is_refused_at_first_is_told(server: Server, answer: Answer, kind: type, monkeypatch):
    monkeypatch.setattr(client, "RESUME_FOR_S", 0.0)
    server.answers = [answer]
    with pytest.raises(kind):
        await told(server)


async def test_a_refusal_in_the_middle_is_told_too(server: Server):
    server.answers = [tells(RETRY_AT_ONCE, event(1)), says(403, {"code": "forbidden", "detail": "revoked"})]
    with pytest.raises(Forbidden):
        await told(server)


async def test_it_is_not_sought_for_ever(server: Server, monkeypatch):
    monkeypatch.setattr(client, "RESUME_FOR_S", 0.05)
    server.answers = [tells(RETRY_AT_ONCE, event(1)), says(503, {"code": "unavailable", "detail": "away"})]
    async with AsyncReachClient(server.url, "k") as reach:
        stream = reach.events("c")
        assert (await anext(stream))["seq"] == 1
        with pytest.raises(client.Unavailable):
            async with asyncio.timeout(20):
                await anext(stream)


async def test_nobody_there_is_told_at_once(server: Server):
    async with AsyncReachClient("http://127.0.0.1:1", "k") as reach:
        with pytest.raises(Unreachable):
            await anext(reach.events("c"))


async def test_who_stops_listening_closes_the_connection(server: Server):
    closed = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(1))
        while request.transport is not None:
            await asyncio.sleep(0.01)
        closed.set()
        return response

    server.answers = [answer]
    async with AsyncReachClient(server.url, "k") as reach:
        stream = reach.events("c")
        assert (await anext(stream))["seq"] == 1
        await stream.aclose()
        await until(closed.is_set, "the connection is closed")


async def test_the_synchronous_twin_does_the_same(server: Server):
    server.answers = [tells(RETRY_AT_ONCE, event(1), then_breaks=True), tells(event(2), event(3, "succeeded"))]

    def use() -> tuple[list[int], int]:
        with ReachClient(server.url, "k") as reach:
            every = [receipt["seq"] for receipt in reach.events("c")]
            server.answers = [tells(event(1), event(2))]
            first = next(reach.events("c"))  # and the rest is left
            return every, first["seq"]

    assert await asyncio.to_thread(use) == ([1, 2, 3], 1)


def test_events_are_read_wherever_their_bytes_are_cut():
    text = (
        b"retry: 250\r\n\r\n" + event(1) + b":\n\n: words\n\nevent: x\n" + event(2) + b"id: 3\n\n" + event(4)
    ).replace(event(4), b'data: {"seq": 4,\ndata: "kind": "running"}\n\n')
    for size in (1, 2, 3, 7, len(text)):
        reader = _wire.EventReader()
        found = [r for at in range(0, len(text), size) for r in reader.feed(text[at : at + size])]
        assert [receipt["seq"] for receipt in found] == [1, 2, 4]
        assert reader.retry_s == 0.25
