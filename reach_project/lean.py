"""The ASGI handler of the hot endpoints, without thread hops, and why.

Django's own handler makes a thread executor per request, runs the sync halves of signals and `response.close` in it,
and walks the middleware: 450 µs for an empty answer (DESIGN §11). A bearer request to dispatch or receipts needs none
of that: no session, no CSRF, no ORM. This handler builds the same `ASGIRequest`, calls the same view, and writes the
same `HttpResponse`; requests without a bearer key to the same URLs go through stock Django.
"""

import asyncio
import logging
import random
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import aclosing
from functools import lru_cache, partial
from io import BytesIO
from time import time
from typing import Any, TypeVar

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.http.request import split_domain_port, validate_host
from django.http.response import HttpResponseBase

from reach_project import health
from reach_project.problems import problem_response
from registry import refusals
from registry.http import AsyncAPIView, EventStream

log = logging.getLogger(__name__)

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
DRAIN_BYTES = 8 * 1024 * 1024
"""Of a refused body so much is still read (bytes), so that the client sees the answer and not a reset connection."""

PIECE_BYTES = 65_536
"""What is handed to the server at once (bytes) of a stream: so much, and as much again, waits for a slow client."""


class BodyTooLarge(Exception):
    """The body is longer than the reach takes."""


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class TooManyBodies(Exception):
    """As much is coming in by others as this process takes."""


class ClientGone(Exception):
    """The client went away while sending."""


class Incoming:
    """Bytes of bodies that are not whole yet, of all requests of this process."""

    held = 0


async def read_body(receive: Receive, *, limit: int, timeout_s: float) -> bytes:
    """The whole body. Raises BodyTooLarge (after draining some of it), BodyTooSlow, TooManyBodies, ClientGone."""
    message = await first_message(receive, timeout_s)
    if not message.get("more_body"):  # nearly always: the body came with the headers
        body = message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge
        return body
    chunks, size, held = [message.get("body", b"")], len(message.get("body", b"")), 0
    try:
        async with asyncio.timeout(timeout_s):
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                size += len(message.get("body", b""))
                if size <= limit:
                    chunks.append(message.get("body", b""))
                    Incoming.held += size - held
                    held = size
                    if Incoming.held > settings.REACH_MAX_BYTES_IN_FLIGHT:
                        raise TooManyBodies
                elif size > limit + DRAIN_BYTES:
                    break
    except TimeoutError as exc:
        raise BodyTooLarge if size > limit else BodyTooSlow from exc
    finally:
        Incoming.held -= held
    if size > limit:
        raise BodyTooLarge
    return b"".join(chunks)


async def first_message(receive: Receive, timeout_s: float) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
    except TimeoutError as exc:
        raise BodyTooSlow from exc
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


REFUSED = (BodyTooLarge, BodyTooSlow, TooManyBodies)


def refused_body(exc: BodyTooLarge | BodyTooSlow | TooManyBodies) -> HttpResponse:
    """The answer to a body that was not taken; the connection is closed after it."""
    if isinstance(exc, BodyTooLarge):
        refusals.count("", "payload_too_large", time())
        response = problem_response(
            "payload_too_large", detail=f"the body is larger than {settings.REACH_MAX_BODY_BYTES} bytes"
        )
    elif isinstance(exc, TooManyBodies):
        response = problem_response("overloaded", detail="too much is coming in here; ask again")
    else:
        response = problem_response("invalid_request", detail="the body did not arrive in time")
    response["Connection"] = "close"
    return response


def request_id_of(scope: Scope) -> bytes:
    """The caller's X-Request-Id if it is harmless, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return value
    return b"%032x" % random.getrandbits(128)  # a name, no secret: no system call for it


@lru_cache(maxsize=256)
def host_allowed(host: str) -> bool:
    return validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)


async def answer(send: Send, response: HttpResponse, request_id: bytes) -> None:
    """Write a response whose bytes are ready."""
    content = response.content
    headers = head_of(response, request_id)
    if response.status_code != 204:
        headers.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def answer_events(receive: Receive, send: Send, response: EventStream, request_id: bytes) -> None:
    """Write a stream for as long as its client is there, no faster than it takes it."""
    take_little(send)
    try:
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": head_of(response, request_id)}
        )
        await while_connected(receive, write_chunks(send, response.chunks, stall_s=settings.REACH_EVENTS_STALL_S))
    except ClientGone:
        return
    except asyncio.CancelledError:  # the time to drain is over; nothing else cancels a request
        if not health.is_stopping():
            raise
    except Exception:  # the outermost loop of a request; half an event must not look like a whole stream
        log.exception("a stream failed")
        reset(send)


async def write_chunks(send: Send, chunks: AsyncGenerator[bytes, None], *, stall_s: float) -> None:
    """Hand a stream to the server, piece by piece; a client that takes nothing for `stall_s` is cut off."""
    async with aclosing(chunks):
        async for chunk in chunks:
            for first in range(0, len(chunk), PIECE_BYTES):
                piece = chunk[first : first + PIECE_BYTES]
                try:
                    async with asyncio.timeout(stall_s):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                except TimeoutError:
                    reset(send)
                    await asyncio.sleep(stall_s)  # until its client is known to be gone, which ends this too
                    return
    await send({"type": "http.response.body", "body": b""})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to. Raises ClientGone, and ends it, when its client goes away before."""
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        async with asyncio.timeout(None) as scope:
            leave = partial(end_now, scope)
            gone.add_done_callback(leave)
            try:
                return await work
            finally:
                gone.remove_done_callback(leave)
    except TimeoutError as exc:
        if scope.expired():
            raise ClientGone from exc
        raise
    finally:
        gone.cancel()


async def until_gone(receive: Receive) -> None:
    """Until the client has gone away; its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def end_now(scope: asyncio.Timeout, _gone: asyncio.Future[Any]) -> None:
    scope.reschedule(asyncio.get_running_loop().time())


def take_little(send: Send) -> None:
    """Have the system keep little for a client that is slow to take a stream: it would keep 4 MB for each, and a few
    hundred of them use up what it has for all connections of the machine.
    """
    if (transport := transport_of(send)) is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_BYTES)


def reset(send: Send) -> None:
    """Drop the connection and what waits to be sent on it; closing it would wait for the client."""
    if (transport := transport_of(send)) is not None:
        transport.abort()


def transport_of(send: Send) -> asyncio.Transport | None:
    """What ASGI has no word for. `send` is a method of uvicorn's request; under another server this is None."""
    return getattr(getattr(send, "__self__", None), "transport", None)


def head_of(response: HttpResponseBase, request_id: bytes) -> list[tuple[bytes, bytes]]:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    return headers + headers_of_every_answer(request_id)


def headers_of_every_answer(request_id: bytes) -> list[tuple[bytes, bytes]]:
    """While we stop, a connection kept open would carry the caller's next request to nobody."""
    if health.is_stopping():
        return [(b"x-request-id", request_id), (b"connection", b"close")]
    return [(b"x-request-id", request_id)]


class LeanRequest(ASGIRequest):
    """A request that must not leave the event loop: views look at `lean`."""

    lean = True


async def lean(
    scope: Scope, receive: Receive, send: Send, view: Callable[..., Coroutine[Any, Any, Any]], kwargs: dict[str, Any]
) -> None:
    """Answer one request with an async view. The caller has seen that it carries a bearer key."""
    request_id = request_id_of(scope)
    try:
        body = await read_body(receive, limit=settings.REACH_MAX_BODY_BYTES, timeout_s=settings.REACH_BODY_TIMEOUT_S)
    except ClientGone:
        return
    except REFUSED as exc:
        await answer(send, refused_body(exc), request_id)
        return
    request = LeanRequest(scope, EMPTY)
    request._body = body
    if not host_allowed(request.META.get("HTTP_HOST", "")):
        await answer(send, problem_response("invalid_request", detail="this host name is not served here"), request_id)
        return
    try:
        if getattr(view, "cls", AsyncAPIView).ends_with_client:
            response = await while_connected(receive, view(request, **kwargs))
        else:
            response = await view(request, **kwargs)
    except ClientGone:
        return
    except asyncio.CancelledError:  # the time to drain is over; nothing else cancels a request
        if not health.is_stopping():
            raise
        response = problem_response("unavailable", detail="the reach is stopping; ask again")
    except Exception:  # the outermost loop of a request: a bug of ours must not take the connection down
        log.exception("a request failed")
        response = problem_response("internal_error", detail="the reach made a mistake; its log has the details")
    if isinstance(response, EventStream):
        del request, body  # the stream may outlast them by far
        await answer_events(receive, send, response, request_id)
    else:
        await answer(send, response, request_id)


EMPTY = BytesIO()
