"""One HTTP attempt at one node, as an Outcome. The only file that knows the client library."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import aiohttp
import msgspec

from receipts.core.journey import Ended, Journey, Outcome
from receipts.core.trace_context import attempt_span_id, is_sampled, traceparent_of
from registry import clock
from registry.connecting import GuardedResolver, Refused, make_socket
from registry.core.node import Node
from registry.signing import signature_headers
from routing.core.reports import Lines, Report


class InvokeBody(msgspec.Struct, gc=False):
    """The envelope as a node receives it (CONTRACT §6)."""

    call_id: str
    trace_id: str
    parent_call_id: str | None
    attempt: int
    caller: str
    origin_caller: str
    capability: str
    payload: Any
    idempotency_key: str | None
    deadline_millis: int
    forwarded_at_millis: int
    urgency: str
    labels: Any
    session_id: str | None
    context: Any
    mirror: bool | msgspec.UnsetType = msgspec.UNSET


class NodeAnswer(msgspec.Struct, gc=False):
    """A node's 200."""

    output: Any


Session = aiohttp.ClientSession
NDJSON = "application/x-ndjson"
Hear = Callable[[Report | Outcome], None]
"""Told of each line of an answer that comes line by line; the last is the attempt's outcome."""
encode = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(NodeAnswer).decode
decode_any = msgspec.json.Decoder().decode


class Forwarder:
    """The client of one process, over its one pool of connections."""

    def __init__(self, session: Session, *, max_response_bytes: int, lines_per_s: int, trace_sample: float = 1.0):
        self.session = session
        self.max_response_bytes, self.lines_per_s, self.trace_sample = max_response_bytes, lines_per_s, trace_sample

    async def close(self) -> None:
        await self.session.close()

    async def forward(self, journey: Journey, node: Node, attempt: int, secret: bytes | None, hear: Hear) -> Outcome:
        """Send the envelope once and read the answer. The caller bounds the time; cancelling closes the connection."""
        envelope = journey.envelope
        call_id = str(journey.call_id)
        now_millis = clock.now_millis()
        body = encode(
            InvokeBody(
                call_id,
                journey.trace_id,
                str(envelope.parent_call_id) if envelope.parent_call_id else None,
                attempt,
                envelope.caller,
                journey.origin_caller,
                envelope.capability,
                envelope.payload,
                envelope.idempotency_key,
                journey.deadline_millis or 0,
                now_millis,
                envelope.urgency,
                envelope.labels,
                envelope.session_id,
                envelope.context,
                msgspec.UNSET if journey.mirror_of is None else True,
            )
        )
        sampled = is_sampled(journey.trace_id, envelope.parent_span, self.trace_sample)
        headers = {
            "Content-Type": "application/json",
            "traceparent": traceparent_of(journey.trace_id, attempt_span_id(call_id, attempt), sampled=sampled),
        }
        if journey.mirror_of is not None:
            headers["X-Reach-Mirror"] = "1"
        if secret is not None:
            headers |= signature_headers(secret, f"{call_id}.{attempt}", now_millis // 1000, body)
        try:
            async with self.session.post(
                node.invoke_url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status == 200 and response.content_type == NDJSON:
                    return await self.read_lines(response, hear)
                content = await self.read(response)
                if content is None:
                    return Outcome(Ended.TOO_LARGE, f"its answer is larger than {self.max_response_bytes} bytes")
                return outcome_of(response.status, response.content_type, content)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
            return Outcome(Ended.NOT_STARTED, connect_sentence(exc), unreached=True)
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as exc:
            broke = f"the connection broke after the envelope was sent ({type(exc).__name__})"
            return Outcome(Ended.BROKEN, broke, unreached=True)
        except ValueError as exc:  # an address that is no URL
            return Outcome(Ended.NOT_STARTED, f"the address cannot be used: {exc}")

    async def tell_cancelled(self, url: str, call_id: str, attempt: int, secret: bytes | None) -> str | None:
        """Tell a node that an attempt's result is not wanted any more; what went wrong, if anything did.

        The caller bounds the time. A node that knows of no such attempt (404) has nothing to stop.
        """
        body = encode({"call_id": call_id, "attempt": attempt})
        headers = {"Content-Type": "application/json"}
        if secret is not None:
            headers |= signature_headers(secret, f"{call_id}.{attempt}.cancel", clock.now_millis() // 1000, body)
        try:
            async with self.session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                return None if response.status < 300 or response.status == 404 else f"answered {response.status}"
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
            return connect_sentence(exc)
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as exc:
            return f"the connection broke ({type(exc).__name__})"
        except ValueError as exc:
            return f"the address cannot be used: {exc}"

    async def call_back(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int | None, str]:
        """Send a callback: the answer's status if there is one, and what went wrong, if anything did.

        The caller bounds the time. Redirects are not followed; what the answer says is not read.
        """
        try:
            async with self.session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                return response.status, "" if response.status < 300 else f"answered {response.status}"
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
            return None, connect_sentence(exc)
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as exc:
            return None, f"the connection broke ({type(exc).__name__})"
        except ValueError as exc:
            return None, f"the address cannot be used: {exc}"

    async def read_lines(self, response: aiohttp.ClientResponse, hear: Hear) -> Outcome:
        """Pass on each line until there is a last word. Who talks faster than `lines_per_s` is not listened to for the
        rest of the second: TCP holds the node back, and other calls have their turn."""
        loop = asyncio.get_running_loop()
        lines = Lines(self.max_response_bytes)
        since, before = loop.time(), 0
        async for content in response.content.iter_any():
            for told in lines.feed(content):
                hear(told)
                if isinstance(told, Outcome):
                    return told
            if lines.number - before > self.lines_per_s:
                await asyncio.sleep(since + 1 - loop.time())
                since, before = loop.time(), lines.number
        for told in lines.end():
            hear(told)
        assert isinstance(told, Outcome), "the end of an answer is the end of the attempt"
        return told

    async def read(self, response: aiohttp.ClientResponse) -> bytes | None:
        """The whole answer, or None when it is too large."""
        limit = self.max_response_bytes
        if response.content_length is not None and "Content-Encoding" not in response.headers:
            return await response.read() if response.content_length <= limit else None
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > limit:
                return None
        return bytes(content)


def pooled_session(*, connect_timeout_s: float, keepalive_s: float, allowed: Collection[str]) -> Session:
    """Connections to nodes. Make it on the event loop that uses it."""
    return Session(
        connector=aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=keepalive_s,
            socket_factory=make_socket,
            resolver=GuardedResolver(allowed, timeout_s=connect_timeout_s),
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        skip_auto_headers={"User-Agent", "Accept", "Accept-Encoding"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def connect_sentence(exc: Exception) -> str:
    """Why there was no connection, without addresses of ours in it."""
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return "no connection in time"
    if isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, Refused):
        return f"not connected: {exc.os_error}"
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve"
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return f"its TLS certificate is not valid: {exc.certificate_error}"
    if isinstance(exc, aiohttp.ClientSSLError):
        return "TLS failed"
    if isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, ConnectionRefusedError):
        return "connection refused"
    return f"no connection: {getattr(exc, 'os_error', exc)}"


def outcome_of(status: int, content_type: str, content: bytes) -> Outcome:
    """What an HTTP answer says of the attempt (CONTRACT §6)."""
    if status == 200:
        return success_of(content)
    if status == 202:
        return Outcome(Ended.ACKNOWLEDGED, http_status=202)
    if 300 <= status < 400:
        return Outcome(Ended.FAILED, f"answered {status}; redirects are not followed", http_status=status)
    error = error_of(content)
    told = error.get("retryable") if error else None
    retryable = told if isinstance(told, bool) else status >= 500
    sentence = said(status, error)
    if status in (429, 503):
        explicit = told if isinstance(told, bool) else None
        return Outcome(Ended.NOT_STARTED, sentence, error=error, retryable=explicit, http_status=status)
    if status in (502, 504) and error is None:
        return Outcome(Ended.BROKEN, f"something before it answered {status}", http_status=status, unreached=True)
    return Outcome(Ended.FAILED, sentence, error=error, retryable=retryable, http_status=status)


def success_of(content: bytes) -> Outcome:
    try:
        return Outcome(Ended.SUCCEEDED, output=decode_answer(content).output, http_status=200)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        return Outcome(Ended.INVALID_OUTPUT, f'its answer is not {{"output": …}}: {exc}', http_status=200)


def error_of(content: bytes) -> dict[str, Any] | None:
    """The node's own error document, or None when the body holds none."""
    try:
        found = decode_any(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else None


def said(status: int, error: dict[str, Any] | None) -> str:
    if error is None:
        return f"answered {status}"
    words = [str(error[key])[:300] for key in ("code", "message") if error.get(key)]
    return f"answered {status}" + (f": {' – '.join(words)}" if words else "")
