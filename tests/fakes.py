"""What stands round the reach in tests: agents' nodes over real HTTP."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

# --- Nodes -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Invocation:
    """One envelope that a node received. `over_at` is set when the node has done its work."""

    envelope: dict[str, Any]
    body: bytes
    headers: Mapping[str, str]
    received_at: float = field(default_factory=time.monotonic)
    received_at_millis: int = field(default_factory=lambda: int(time.time() * 1000))
    over_at: float | None = None

    @property
    def call_id(self) -> str:
        return self.envelope["call_id"]

    @property
    def attempt(self) -> int:
        return self.envelope["attempt"]

    @property
    def payload(self) -> Any:
        return self.envelope["payload"]


Behaviour = Callable[[Invocation], Awaitable[web.Response | None]]
"""What a node does with an envelope. None: it breaks the connection."""


def answers(output: Any = None) -> Behaviour:
    """200 with this output; without one, with the payload under `echo`."""

    async def behave(invocation: Invocation) -> web.Response:
        return web.json_response({"output": {"echo": invocation.payload} if output is None else output})

    return behave


def says(status: int, body: bytes | str = b"", content_type: str = "application/json", **headers: str) -> Behaviour:
    """These very bytes."""
    content = body.encode() if isinstance(body, str) else body

    async def behave(_invocation: Invocation) -> web.Response:
        return web.Response(status=status, body=content, content_type=content_type, headers=headers)

    return behave


def fails(status: int, code: str = "broken", message: str = "it is broken", **facts: Any) -> Behaviour:
    """An error document of the contract, with `retryable` where it is given."""
    return says(status, json.dumps({"error": {"code": code, "message": message, **facts}}))


def breaks() -> Behaviour:
    """The connection goes down in the middle of the work."""

    async def behave(_invocation: Invocation) -> None:
        return None

    return behave


def works(seconds: float, then: Behaviour | None = None) -> Behaviour:
    """Takes its time."""
    after = then or answers()

    async def behave(invocation: Invocation) -> web.Response | None:
        await asyncio.sleep(seconds)
        return await after(invocation)

    return behave


def waits_for(gate: threading.Event, then: Behaviour | None = None) -> Behaviour:
    """Works until the test opens the gate."""
    after = then or answers()

    async def behave(invocation: Invocation) -> web.Response | None:
        while not gate.is_set():
            await asyncio.sleep(0.005)
        return await after(invocation)

    return behave


def streams(*said: dict[str, Any] | bytes | float | threading.Event) -> Behaviour:
    """NDJSON, bit by bit: a document is a line, bytes are sent as they are; a number rests so long (s), an event is
    waited for."""

    async def lines() -> AsyncIterator[bytes]:
        for one in said:
            if isinstance(one, threading.Event):
                while not one.is_set():
                    await asyncio.sleep(0.005)
            elif isinstance(one, float):
                await asyncio.sleep(one)
            else:
                yield one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n"

    async def behave(_invocation: Invocation) -> web.Response:
        return web.Response(body=lines(), headers={"Content-Type": "application/x-ndjson"})

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One after the other; the last one for all that follow."""
    left = list(behaviours)

    async def behave(invocation: Invocation) -> web.Response | None:
        return await (left.pop(0) if len(left) > 1 else left[0])(invocation)

    return behave


def does(work: Callable[[Invocation], Any]) -> Behaviour:
    """Runs a blocking function in a thread of its own; what it returns is the output."""

    async def behave(invocation: Invocation) -> web.Response:
        return web.json_response({"output": await asyncio.to_thread(work, invocation)})

    return behave


class OwnLoop:
    """An event loop in a thread of its own, for what must go on whatever the test is doing."""

    def __init__(self, name: str):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout_s: float = 10) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        self.run(self._end_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()

    async def _end_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()


class FakeNode:
    """A node: `behave` decides what it does, `invocations` is what it was asked; both belong to the test."""

    def __init__(self, behave: Behaviour | None = None):
        self.behave = behave or answers()
        self.ready: dict[str, Any] = {"ready": True}
        self.invocations: list[Invocation] = []
        self.cancels: list[Invocation] = []
        """What it was told to stop."""
        self.on_cancel: Behaviour = says(202)
        self._own = OwnLoop("fake node")
        self._runner: web.AppRunner | None = None
        self.port = self._own.run(self._listen(0))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def runs_of(self, call_id: str) -> list[Invocation]:
        return [i for i in self.invocations if i.call_id == call_id]

    def go_away(self) -> None:
        """Listen no more: connections are refused."""
        self._own.run(self._unlisten())

    def come_back(self) -> None:
        """Listen again on the same port."""
        self._own.run(self._listen(self.port))

    def close(self) -> None:
        self.go_away()
        self._own.close()

    async def _listen(self, port: int) -> int:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_post("/reach/invoke", self._invoke)
        app.router.add_get("/reach/live", self._live)
        app.router.add_post("/reach/ready", self._ready)
        app.router.add_post("/reach/cancel", self._cancel)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        return self._runner.addresses[0][1]

    async def _unlisten(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({})

    async def _ready(self, _request: web.Request) -> web.Response:
        return web.json_response(self.ready)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        told = Invocation(json.loads(body), body, dict(request.headers))
        self.cancels.append(told)
        answer = await self.on_cancel(told)
        return web.Response(status=500) if answer is None else answer

    async def _invoke(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        invocation = Invocation(json.loads(body), body, dict(request.headers))
        self.invocations.append(invocation)
        answer = await self.behave(invocation)
        invocation.over_at = time.monotonic()
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return answer


# --- Receivers of callbacks ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Delivery:
    """One callback as it arrived."""

    document: dict[str, Any]
    body: bytes
    headers: Mapping[str, str]
    path: str
    received_at: float = field(default_factory=time.monotonic)

    @property
    def call_id(self) -> str:
        return self.document["call_id"]


Receive = Callable[[Delivery], Awaitable[web.Response]]


class FakeReceiver:
    """Where callbacks go: `receive` decides what it answers, `deliveries` is what came; both belong to the test."""

    def __init__(self, receive: Receive | None = None):
        self.receive = receive or receives(204)
        self.deliveries: list[Delivery] = []
        self._own = OwnLoop("fake receiver")
        self._runner: web.AppRunner | None = None
        self.port = self._own.run(self._listen())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/done"

    def of(self, call_id: str) -> list[Delivery]:
        return [delivery for delivery in self.deliveries if delivery.call_id == call_id]

    def close(self) -> None:
        self._own.run(self._unlisten())
        self._own.close()

    async def _listen(self) -> int:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_post("/{path:.*}", self._received)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self._runner.addresses[0][1]

    async def _unlisten(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _received(self, request: web.Request) -> web.Response:
        body = await request.read()
        delivery = Delivery(json.loads(body), body, dict(request.headers), request.path_qs)
        self.deliveries.append(delivery)
        return await self.receive(delivery)


def receives(*statuses: int, **headers: str) -> Receive:
    """Answers with these, one after the other; the last one for all that follow."""
    left = list(statuses)

    async def receive(_delivery: Delivery) -> web.Response:
        return web.Response(status=left.pop(0) if len(left) > 1 else left[0], headers=headers)

    return receive


def hangs() -> Receive:
    """Takes everything and never answers."""

    async def receive(_delivery: Delivery) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    return receive
