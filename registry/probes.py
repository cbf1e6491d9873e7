"""Live and ready probes: one code for the worker, for the sweeps and for "probe now"."""

import asyncio
import json
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import aiohttp

from registry import clock
from registry.addresses import spelled_refusal
from registry.connecting import GuardedResolver, Refused, connect, make_socket, place_of
from registry.core.health import Heard, Reply, trouble_of
from registry.signing import signature_headers

READY_BODY = b'{"probe":true,"capability":null}'
MAX_ANSWER = 16_384
AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Target:
    """What a probe must know of a node."""

    node_pk: int
    address: str
    live_path: str | None
    """None: the node has no such endpoint, and lives while it takes connections."""
    ready_path: str | None
    signing_secret: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a probe and what came of it, for people to look at."""

    method: str
    url: str
    reply: Reply
    body: str
    duration_ms: float

    def document(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "url": self.url,
            "status": self.reply.status,
            "body": self.body,
            "error": None if self.reply.heard is Heard.ANSWER else self.reply.reason or self.reply.heard.value,
            "duration_ms": self.duration_ms,
        }


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one probe of one node found."""

    node_pk: int
    address: str
    checked_at: datetime
    live: Exchange
    ready: Exchange | None
    trouble: str
    """Why it does not prove the node fit; "" when it does."""
    inconclusive: bool = False
    """The reach was too busy to hear an answer in time: the silence says nothing of the node."""

    @property
    def judge(self) -> Exchange:
        """The exchange that decides."""
        return self.ready or self.live

    @property
    def is_silence(self) -> bool:
        return self.judge.reply.heard is Heard.SILENCE

    @property
    def judged_by(self) -> str:
        if self.ready:
            return "readiness"
        if self.live.method == "CONNECT":
            return "its connection alone: the node declares neither readiness nor liveness endpoint"
        return "liveness alone: the node declares no readiness endpoint"

    def document(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "checked_at": self.checked_at.isoformat(),
            "passed": not self.trouble,
            "trouble": self.trouble,
            "inconclusive": self.inconclusive,
            "judged_by": self.judged_by,
            "live": self.live.document(),
            "ready": self.ready and self.ready.document(),
        }


def probe(targets: Sequence[Target], *, timeout_s: float, allowed: Collection[str]) -> list[Evidence]:
    """Probe nodes side by side; blocks for about `timeout_s` for every `AT_ONCE` of them. Call from a plain thread."""
    return asyncio.run(probe_all(targets, timeout_s=timeout_s, allowed=allowed))


async def probe_all(targets: Sequence[Target], *, timeout_s: float, allowed: Collection[str]) -> list[Evidence]:
    """Probe nodes on this loop. What a silence says is left open when the loop itself was too late to listen."""
    gate = asyncio.Semaphore(AT_ONCE)
    connector = aiohttp.TCPConnector(
        limit=0,
        force_close=True,
        socket_factory=make_socket,
        resolver=GuardedResolver(allowed, timeout_s=timeout_s * 0.75),
    )
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=timeout_s * 0.75),  # so that the two are told apart
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:

        async def one(target: Target) -> Evidence:
            async with gate:
                return await probe_node(session, target, allowed)

        async with Punctuality() as own:
            found = await asyncio.gather(*map(one, targets))
    if own.late_s > timeout_s / 4:
        return [replace(evidence, inconclusive=evidence.is_silence) for evidence in found]
    return found


class Punctuality:
    """How late this event loop was at worst (s) while the block ran: a busy reach must not call a node silent."""

    EVERY_S = 0.05

    def __init__(self) -> None:
        self.late_s = 0.0

    async def __aenter__(self) -> "Punctuality":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(self.EVERY_S)
            self.late_s = max(self.late_s, time.monotonic() - before - self.EVERY_S)


async def probe_node(session: aiohttp.ClientSession, target: Target, allowed: Collection[str]) -> Evidence:
    """Ask one node whether it lives and whether it can work, both at once."""
    checked_at = clock.now()
    if why := spelled_refusal(target.address, allowed=allowed):
        refused = Reply(Heard.FORBIDDEN, reason=f"not connected: {why}")
        live = Exchange("GET", target.address + (target.live_path or ""), refused, "", 0.0)
        ready = Exchange("POST", target.address + target.ready_path, refused, "", 0.0) if target.ready_path else None
    else:
        timeout_s = session.timeout.total or 0.0
        asking = [ask(session, target, "GET", path, b"") if (path := target.live_path) else touch(target, timeout_s)]
        if target.ready_path:
            asking.append(ask(session, target, "POST", target.ready_path, READY_BODY))
        live, *rest = await asyncio.gather(*asking)
        ready = rest[0] if rest else None
    return Evidence(
        target.node_pk, target.address, checked_at, live, ready, trouble_of(live.reply, ready.reply if ready else None)
    )


async def ask(session: aiohttp.ClientSession, target: Target, method: str, path: str, body: bytes) -> Exchange:
    """One signed request of a probe, whatever comes of it."""
    url = target.address + path
    headers = signature_headers(target.signing_secret, f"probe_{uuid4().hex}", int(clock.now_s()), body)
    headers |= {"X-Reach-Probe": "1", "Content-Type": "application/json"}
    started, status, said = time.perf_counter(), None, bytearray()
    try:
        async with session.request(method, url, data=body or None, headers=headers, allow_redirects=False) as response:
            status = response.status
            while len(said) < MAX_ANSWER and (piece := await response.content.read(MAX_ANSWER - len(said))):
                said += piece
        reply = understood(status, readable(said))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
        # liveness is in the status; what comes below it may be an event stream without an end
        reply = failed(exc) if status is None or method != "GET" else Reply(Heard.ANSWER, status)
    return Exchange(method, url, reply, readable(said), round((time.perf_counter() - started) * 1000, 1))


def readable(said: bytes | bytearray) -> str:
    """An answer's bytes as text that the database takes."""
    return said.decode(errors="replace").replace("\x00", "\ufffd")


async def touch(target: Target, timeout_s: float) -> Exchange:
    """A bare connection, for a node that declares no liveness endpoint."""
    started = time.perf_counter()
    try:
        await connect(await place_of(target.address, timeout_s * 0.75), timeout_s)
        reply = Reply(Heard.ANSWER, 200)
    except TimeoutError:
        reply = Reply(Heard.UNREACHABLE, reason="no connection in time")
    except OSError as exc:
        reply = failed(exc)
    return Exchange("CONNECT", target.address, reply, "", round((time.perf_counter() - started) * 1000, 1))


def understood(status: int, text: str) -> Reply:
    """An answer with what it says about readiness, if anything."""
    reply = Reply(Heard.ANSWER, status)
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return reply
    if not isinstance(said, dict) or not isinstance(said.get("ready"), bool):
        return reply
    reason = said.get("reason")
    return replace(reply, ready=said["ready"], reason=printable(reason) if isinstance(reason, str) else "")


def failed(exc: Exception) -> Reply:
    """Why no answer came."""
    cause = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return Reply(Heard.UNREACHABLE, reason="no connection in time")
    if isinstance(cause, TimeoutError):
        return Reply(Heard.SILENCE)
    if isinstance(cause, ConnectionRefusedError):
        return Reply(Heard.REFUSED)
    if isinstance(cause, Refused):
        return Reply(Heard.FORBIDDEN, reason=f"not connected: {cause}")
    if isinstance(cause, socket.gaierror):
        return Reply(Heard.UNREACHABLE, reason="its name does not resolve")
    if isinstance(exc, aiohttp.ClientSSLError):
        return Reply(Heard.UNREACHABLE, reason=printable(f"TLS fails: {exc}"))
    return Reply(Heard.UNREACHABLE, reason=printable(f"unreachable: {str(cause) or type(cause).__name__}"))


def printable(text: str) -> str:
    """One line for people, of bounded length."""
    return "".join(c if c.isprintable() else " " for c in text[:200]).strip()
