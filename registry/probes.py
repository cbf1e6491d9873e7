"""Live and ready probes: one code for the worker, for the sweeps and for "probe now"."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import aiohttp

from registry.addresses import ip_refusal
from registry.core.health import Heard, Reply, health_after
from registry.core.node import Health
from registry.signing import signature_headers

READY_BODY = b'{"probe":true,"capability":null}'
MAX_ANSWER = 16_384
AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Target:
    """What a probe must know of a node."""

    node_pk: int
    address: str
    live_path: str
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
    health: Health
    reason: str

    def document(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "checked_at": self.checked_at,
            "status": self.health.value,
            "status_reason": self.reason,
            "judged_by": "readiness" if self.ready else "liveness alone: the node declares no readiness endpoint",
            "live": self.live.document(),
            "ready": self.ready and self.ready.document(),
        }


class Refused(OSError):
    """The reach itself does not connect there."""


def probe(targets: Sequence[Target], *, timeout_s: float, allowed: Collection[str]) -> list[Evidence]:
    """Probe nodes side by side; blocks for about `timeout_s` for every `AT_ONCE` of them. Call from a plain thread."""
    return asyncio.run(probe_all(targets, timeout_s=timeout_s, allowed=allowed))


async def probe_all(targets: Sequence[Target], *, timeout_s: float, allowed: Collection[str]) -> list[Evidence]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(target: Target) -> Evidence:
        async with gate:
            return await probe_node(target, timeout_s=timeout_s, allowed=allowed)

    return await asyncio.gather(*map(one, targets))


async def probe_node(target: Target, *, timeout_s: float, allowed: Collection[str]) -> Evidence:
    """Ask one node whether it lives and whether it can work, both at once."""
    checked_at = datetime.now(UTC)
    connector = aiohttp.TCPConnector(socket_factory=guarded_sockets(target.address, allowed), force_close=True)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        asked = [ask(session, target, "GET", target.live_path, b"")]
        if target.ready_path is not None:
            asked.append(ask(session, target, "POST", target.ready_path, READY_BODY))
        live, *rest = await asyncio.gather(*asked)
    ready = rest[0] if rest else None
    health, reason = health_after(live.reply, ready.reply if ready else None)
    return Evidence(target.node_pk, target.address, checked_at, live, ready, health, reason)


def guarded_sockets(address: str, allowed: Collection[str]) -> Callable[[Any], socket.socket]:
    """A socket factory that looks at the very address that is about to be connected to."""
    host = urlsplit(address).hostname or ""

    def open_socket(info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _name, peer = info
        if why := ip_refusal(str(peer[0]), host=host, allowed=allowed):
            raise Refused(why)
        return socket.socket(family, kind, protocol)

    return open_socket


async def ask(session: aiohttp.ClientSession, target: Target, method: str, path: str, body: bytes) -> Exchange:
    """One signed request of a probe, whatever comes of it."""
    url = target.address + path
    headers = signature_headers(target.signing_secret, f"probe_{uuid4().hex}", int(time.time()), body)
    headers |= {"X-Reach-Probe": "1", "Content-Type": "application/json"}
    started, text = time.perf_counter(), ""
    try:
        async with session.request(method, url, data=body or None, headers=headers, allow_redirects=False) as response:
            text = (await response.content.read(MAX_ANSWER)).decode(errors="replace").replace("\x00", "\ufffd")
            reply = understood(response.status, text)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
        reply = failed(exc)
    return Exchange(method, url, reply, text, round((time.perf_counter() - started) * 1000, 1))


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
    if isinstance(cause, TimeoutError):
        return Reply(Heard.SILENCE)
    if isinstance(cause, ConnectionRefusedError):
        return Reply(Heard.REFUSED)
    if isinstance(cause, Refused):
        return Reply(Heard.FORBIDDEN, reason=f"not connected: {cause}")
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return Reply(Heard.UNREACHABLE, reason="its name does not resolve")
    if isinstance(exc, aiohttp.ClientSSLError):
        return Reply(Heard.UNREACHABLE, reason=printable(f"TLS fails: {exc}"))
    return Reply(Heard.UNREACHABLE, reason=printable(f"unreachable: {cause or type(cause).__name__}"))


def printable(text: str) -> str:
    """One line for people, of bounded length."""
    return "".join(c if c.isprintable() else " " for c in text[:200]).strip()
