"""The pooled connection of one event loop to Agent-Reach. With _server.py the only file that knows the HTTP library."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp

from agent_reach import _wire
from agent_reach.errors import NotAgentReach, ReachError, Unreachable

KEEPALIVE_S = 1.5
"""Below the time (s) after which common servers close an idle connection: a request must not meet a closing one."""


class NothingMore(Exception):
    """The stream has told all there will be."""


class Connection:
    """Make it on the event loop that uses it; close it there."""

    def __init__(self, address: str, api_key: str | None):
        self.address = address
        headers = {"User-Agent": "agent-reach-sdk"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, request: _wire.Request) -> Any:
        """The JSON of the answer. Raises a Problem, Unreachable or NotAgentReach."""
        status, headers, body = await self.exchange(request)
        return _wire.read(status, headers, body, address=self.address)

    async def stream(self, request: _wire.Request) -> AsyncGenerator[bytes, None]:
        """The body of an event stream as it comes. Raises NothingMore, a Problem, Unreachable or NotAgentReach."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=request.timeout_s)
        url = self.address + request.path
        try:
            async with self._session.request(
                request.method, url, headers=dict(request.headers), timeout=timeout, allow_redirects=False
            ) as response:
                if response.status == 204:
                    raise NothingMore
                if response.status != 200 or response.content_type != "text/event-stream":
                    headers = dict(response.headers)
                    _wire.read(response.status, headers, await response.read(), address=self.address)
                    raise _wire.stranger(response.status, self.address, headers)
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise unreachable(self.address, request, exc) from exc

    async def exchange(self, request: _wire.Request) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body, whatever they say. Raises Unreachable, NotAgentReach."""
        headers = dict(request.headers) | ({"Content-Type": "application/json"} if request.body is not None else {})
        timeout = aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=min(5.0, request.timeout_s))
        try:
            async with self._session.request(
                request.method,
                self.address + request.path,
                data=request.body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                return response.status, dict(response.headers), await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise unreachable(self.address, request, exc) from exc


def unreachable(address: str, request: _wire.Request, exc: Exception) -> ReachError:
    """Why there was no answer, and what to do."""
    start = "start it (`make run`), or correct reach_addr or REACH_ADDR"
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return Unreachable(f"the name in {address} does not resolve: correct reach_addr or REACH_ADDR")
    if isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError):
        return Unreachable(f"TLS with {address} fails ({exc}): is it https, and is its certificate valid?")
    if isinstance(exc, aiohttp.ClientConnectorError):
        why = "nothing listens there" if isinstance(exc.os_error, ConnectionRefusedError) else str(exc.os_error)
        return Unreachable(f"Agent-Reach cannot be reached at {address} ({why}): {start}")
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return Unreachable(f"Agent-Reach at {address} takes no connection in time: {start}")
    if isinstance(exc, aiohttp.InvalidURL):
        return Unreachable(f"{address} is no usable address: correct reach_addr or REACH_ADDR")
    if isinstance(exc, TimeoutError):
        return Unreachable(
            f"Agent-Reach at {address} did not answer within {request.timeout_s:g} s", outcome_unknown=True
        )
    if isinstance(exc, aiohttp.ClientResponseError):
        return NotAgentReach(
            f"what answers at {address} does not speak HTTP as Agent-Reach does ({exc.message}): "
            "check reach_addr or REACH_ADDR"
        )
    return Unreachable(
        f"the connection to Agent-Reach at {address} broke ({type(exc).__name__}): ask again, with an idempotency_key "
        "where running twice does harm",
        outcome_unknown=True,
    )


async def pause(seconds: float, stop: asyncio.Event) -> bool:
    """Wait for so long, or until `stop` is set: then True."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False
