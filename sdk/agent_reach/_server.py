"""What a node serves: invoke, live, ready, cancel. With _http.py the only file that knows the HTTP library."""

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from agent_reach import _wire
from agent_reach._lease import Lease
from agent_reach._outbox import Outbox, Receipt
from agent_reach._readiness import Readiness
from agent_reach._wire import Ending, failure
from agent_reach._workshop import Workshop
from agent_reach.models import Envelope

ENDPOINTS = {
    "invoke": "/reach/invoke",
    "live": "/reach/live",
    "ready": "/reach/ready",
    "cancel": "/reach/cancel",
}
MAX_BODY_BYTES = 16 * 1024 * 1024
REGISTERING_S = 2.0
"""A task that arrives while the answer to the registration is still on its way waits so long (s) for the secret."""
ARRIVED_AFTER_S = 1.0
"""A connection that closes sooner (s) after the answer may have died with whoever waited: the result is posted too."""


@dataclass(frozen=True, slots=True)
class Written:
    """An answer that has just been written; whether it arrived, its connection shows a moment later."""

    transport: asyncio.Transport
    envelope: Envelope
    ending: Ending
    look_back: asyncio.TimerHandle


class NodeServer:
    """Belongs to one event loop."""

    def __init__(self, workshop: Workshop, readiness: Readiness, lease: Lease, outbox: Outbox):
        self._workshop, self._readiness, self._lease, self._outbox = workshop, readiness, lease, outbox
        self._posting: set[asyncio.Task[Any]] = set()
        self._written: dict[object, Written] = {}
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(ENDPOINTS["invoke"], self._invoke)
        app.router.add_get(ENDPOINTS["live"], self._live)
        app.router.add_post(ENDPOINTS["ready"], self._ready)
        app.router.add_post(ENDPOINTS["cancel"], self._cancel)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=2.0)

    async def listen(self, bound: socket.socket) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, bound).start()

    async def close(self) -> None:
        """Close when the answers under way are written, and what has not arrived is posted."""
        for key in list(self._written):  # now: a connection that we close ourselves says nothing
            self._look_back(key)
        await self._runner.cleanup()
        for written in self._written.values():
            written.look_back.cancel()
        if self._posting:
            _posted, late = await asyncio.wait(self._posting, timeout=2.0)
            for task in late:
                task.cancel()

    async def _live(self, _request: web.Request) -> web.Response:
        return json_answer(200, {"live": True})

    async def _ready(self, request: web.Request) -> web.Response:
        """Signed, but answered as well while a registration is under way: the first probe overtakes its answer."""
        body = await request.read()
        secret = self._lease.secret
        if secret is not None and self._lease.is_settled and not _wire.is_signed(secret, request.headers, body):
            return answer(NOT_SIGNED)
        return json_answer(200, await self._readiness.answer())

    async def _invoke(self, request: web.Request) -> web.Response:
        received_s = time.monotonic()
        body = await request.read()
        if (refusal := await self._refusal(request.headers, body)) is not None:
            return answer(refusal)
        try:
            envelope = _wire.envelope(body, received_s=received_s, traceparent=request.headers.get("traceparent"))
        except _wire.BadEnvelope as exc:
            return answer(failure(400, "invalid_envelope", exc.detail, retryable=False))
        found = self._workshop.take(envelope)
        if isinstance(found, Ending):
            return answer(found)
        ending = await asyncio.shield(found.ended)
        if envelope.attempt == found.attempt or envelope.call_id != found.envelope.call_id:
            self._see_off(request, envelope, ending)
        return answer(ending)

    async def _cancel(self, request: web.Request) -> web.Response:
        body = await request.read()
        if (refusal := await self._refusal(request.headers, body)) is not None:
            return answer(refusal)
        try:
            call_id, attempt = _wire.cancelled_attempt(body)
        except _wire.BadEnvelope as exc:
            return answer(failure(400, "invalid_request", exc.detail, retryable=False))
        return json_answer(202 if self._workshop.cancel(call_id, attempt) else 404, {"call_id": call_id})

    async def _refusal(self, headers: Mapping[str, str], body: bytes) -> Ending | None:
        """Why the body is not acted on: nobody can have signed it yet, or Agent-Reach did not."""
        if self._lease.secret is None and not await self._lease.settled(REGISTERING_S):
            return failure(503, "not_registered", "this node is not registered yet", retryable=True)
        secret = self._lease.secret
        if secret is not None and _wire.is_signed(secret, headers, body):
            return None
        if not self._lease.is_settled:  # perhaps signed with a secret that is just arriving
            await self._lease.settled(REGISTERING_S)
            secret = self._lease.secret
        return None if secret is not None and _wire.is_signed(secret, headers, body) else NOT_SIGNED

    def _see_off(self, request: web.Request, envelope: Envelope, ending: Ending) -> None:
        """Make sure that the result arrives, if whoever waits for it is gone, or goes as it is being written."""
        transport = request.transport
        if transport is None or transport.is_closing():
            self._post(envelope, ending)
        elif request.keep_alive:
            key = object()
            look_back = asyncio.get_running_loop().call_later(ARRIVED_AFTER_S, self._look_back, key)
            self._written[key] = Written(transport, envelope, ending, look_back)

    def _look_back(self, key: object) -> None:
        written = self._written.pop(key)
        written.look_back.cancel()
        if written.transport.is_closing():
            self._post(written.envelope, written.ending)

    def _post(self, envelope: Envelope, ending: Ending) -> None:
        receipt = Receipt(envelope.call_id, envelope.attempt, ending.receipt(envelope.attempt), is_last=True)
        task = asyncio.create_task(self._outbox.post(receipt))
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)


NOT_SIGNED = failure(401, "not_signed", "the signature is not Agent-Reach's", retryable=False)


def answer(ending: Ending) -> web.Response:
    return web.Response(status=ending.status, body=ending.body, content_type="application/json")


def json_answer(status: int, document: Mapping[str, Any]) -> web.Response:
    return web.Response(status=status, body=json.dumps(document).encode(), content_type="application/json")
