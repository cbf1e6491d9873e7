"""A stand-in for Agent-Reach, over real HTTP: it takes registrations and receipts, and sends signed envelopes."""

import asyncio
import base64
import json
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from agent_reach import AgentClient, Capability, _wire

SECRET = "whsec_" + base64.b64encode(b"the secret of one service").decode()
KEY = "reach_a_key_for_tests"


async def until(condition: Callable[[], Any], what: str = "the condition", timeout_s: float = 10) -> Any:
    """The first true value of `condition`; fails the test when none comes."""
    give_up_at = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < give_up_at, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.005)
    return value


@dataclass
class Said:
    """What a node answered."""

    status: int
    body: Any

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


@dataclass
class FakeReach:
    """Takes what agents send; `refuse` maps a kind of request to a problem (status, code) it is answered with."""

    port: int = 0
    secret: str = SECRET
    registrations: list[dict[str, Any]] = field(default_factory=list)
    heartbeats: list[dict[str, Any]] = field(default_factory=list)
    farewells: list[str] = field(default_factory=list)
    receipts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    dispatched: list[dict[str, Any]] = field(default_factory=list)
    traceparents: list[str | None] = field(default_factory=list)
    """Of what was dispatched, in the same order."""
    refuse: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    reregister: bool = False
    output: Any = "the child's output"
    before_registered: Callable[[dict[str, Any]], Any] | None = None
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        app = web.Application()
        node = "/api/v1/services/{service}/nodes/{node}"
        app.router.add_put(node, self._register)
        app.router.add_delete(node, self._delete)
        app.router.add_post(node + "/heartbeat", self._heartbeat)
        app.router.add_post("/api/v1/calls/{call_id}/receipts", self._receipt)
        app.router.add_post("/api/v1/dispatch", self._dispatch)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        self._session = self._session or aiohttp.ClientSession()

    async def go_away(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def close(self) -> None:
        await self.go_away()
        if self._session is not None:
            await self._session.close()

    # --- What agents ask --------------------------------------------------------------------------------------------

    def _refusal(self, kind: str) -> web.Response | None:
        if kind not in self.refuse:
            return None
        status, code = self.refuse[kind]
        return web.json_response({"code": code, "detail": f"{kind} refused", "status": status}, status=status)

    async def _register(self, request: web.Request) -> web.Response:
        if refusal := self._refusal("register"):
            return refusal
        declaration = await request.json()
        if self.before_registered is not None:
            await self.before_registered(declaration)
        self.registrations.append(declaration)
        self.reregister = False
        return web.json_response({"signing_secret": self.secret, "declaration_hash": "h1", "advisories": []})

    async def _delete(self, request: web.Request) -> web.Response:
        self.farewells.append(request.query["drain_s"])
        return web.Response(status=204)

    async def _heartbeat(self, request: web.Request) -> web.Response:
        if refusal := self._refusal("heartbeat"):
            return refusal
        self.heartbeats.append(await request.json())
        return web.json_response({"lease_expires_at": "", "reregister": self.reregister})

    async def _receipt(self, request: web.Request) -> web.Response:
        if refusal := self._refusal("receipt"):
            return refusal
        self.receipts.append((request.match_info["call_id"], await request.json()))
        return web.json_response({})

    async def _dispatch(self, request: web.Request) -> web.Response:
        self.dispatched.append(await request.json())
        self.traceparents.append(request.headers.get("traceparent"))
        if refusal := self._refusal("dispatch"):
            return refusal
        return web.json_response(
            {"call_id": "c", "trace_id": "t", "status": "succeeded", "output": self.output, "attempts": 1}
        )

    # --- What it asks of nodes --------------------------------------------------------------------------------------

    async def send(self, url: str, document: Any, *, secret: str | None = None, **headers: str) -> Said:
        """One signed request to a node."""
        assert self._session is not None
        body = json.dumps(document).encode()
        signed = signature_headers(secret or self.secret, body) | headers
        async with self._session.post(url, data=body, headers=signed) as response:
            return Said(response.status, await response.json())

    async def invoke(self, agent: AgentClient, envelope: dict[str, Any], **more: Any) -> Said:
        return await self.send(f"{agent.address}/reach/invoke", envelope, **more)

    async def probe(self, agent: AgentClient, **more: Any) -> Said:
        return await self.send(f"{agent.address}/reach/ready", {"probe": True, "capability": None}, **more)

    async def invoke_and_hang_up(self, agent: AgentClient, envelope: dict[str, Any], hang_up: asyncio.Event) -> None:
        """Send an envelope, and close the connection without waiting for the answer."""
        body = json.dumps(envelope).encode()
        host, port = str(agent.address).removeprefix("http://").split(":")
        _reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"{name}: {value}" for name, value in signature_headers(self.secret, body).items()]
        head = ["POST /reach/invoke HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *lines]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        await hang_up.wait()
        writer.close()
        await writer.wait_closed()


def signature_headers(secret: str, body: bytes) -> dict[str, str]:
    timestamp = str(int(time.time()))
    signature = _wire.signature(_wire.secret_bytes(secret), "msg", timestamp, body)
    return {"webhook-id": "msg", "webhook-timestamp": timestamp, "webhook-signature": signature}


def an_envelope(payload: Any = None, *, budget_ms: int = 30_000, **facts: Any) -> dict[str, Any]:
    """An envelope of a reach whose clock is a year ahead of ours: only differences may count."""
    now = int(time.time() * 1000) + 365 * 86_400_000
    return {
        "call_id": str(uuid.uuid4()),
        "trace_id": secrets.token_hex(16),
        "parent_call_id": None,
        "attempt": 1,
        "caller": "somebody",
        "origin_caller": "somebody",
        "capability": "work",
        "payload": {} if payload is None else payload,
        "idempotency_key": None,
        "deadline_millis": now + budget_ms,
        "forwarded_at_millis": now,
        "urgency": "normal",
        "labels": {"tenant": "emea"},
        "session_id": "s-1",
        "context": {},
    } | facts


def an_agent(reach: FakeReach, **facts: Any) -> AgentClient:
    """An agent that offers "work" and has no handler yet."""
    agent = AgentClient(**({"service_id": "worker", "reach_addr": reach.url, "api_key": KEY} | facts))
    agent.register_capability(Capability(name="work", input_schema={"type": "object"}))
    return agent
