"""For callers: `AsyncReachClient`, and `ReachClient`, the same for code without an event loop."""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from agent_reach import _wire
from agent_reach._http import Connection, NothingMore
from agent_reach._tracing import current_traceparent
from agent_reach.errors import Overloaded, RateLimited, Unavailable, Unreachable
from agent_reach.models import CallOptions, Result

T = TypeVar("T")
DEFAULT_ADDRESS = "http://127.0.0.1:8080"
LONG_POLL_S = 25.0
RESUME_FOR_S = 60.0
"""So long (s) after its last sign of life a broken stream of events is sought again."""


def address_from(given: str | None) -> str:
    """The address given, or REACH_ADDR, or REACH_API, or the local default. Raises SetupError."""
    return _wire.reach_address(given or os.environ.get("REACH_ADDR") or os.environ.get("REACH_API") or DEFAULT_ADDRESS)


def key_from(given: str | None) -> str | None:
    return given or os.environ.get("REACH_API_KEY") or None


class AsyncReachClient:
    """Calls capabilities. `async with AsyncReachClient(…) as reach:`, or `await reach.close()` at the end."""

    def __init__(self, reach_addr: str | None = None, api_key: str | None = None):
        self.address = address_from(reach_addr)
        self._api_key = key_from(api_key)
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def request(self, request: _wire.Request) -> Any:
        """Any request to Agent-Reach; the JSON of its answer. Raises a Problem, Unreachable."""
        return await self._connected().ask(request)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self.address, self._api_key)
        return self._connection

    async def dispatch(self, capability: str | None, payload: Any, **options: Unpack[CallOptions]) -> Result:
        """Hand over a task and wait for its result. Raises the Problem it ends in, Unreachable, NotJson."""
        request = _wire.dispatch(capability, payload, options, traceparent=current_traceparent())
        return _wire.result(await self.request(request))

    async def submit(self, capability: str | None, payload: Any, **options: Unpack[CallOptions]) -> str:
        """Hand over a task and go on; its call_id. Raises a Problem, Unreachable, NotJson."""
        request = _wire.dispatch(capability, payload, options, mode="async", traceparent=current_traceparent())
        accepted = await self.request(request)
        return str(accepted["call_id"])

    async def wait(self, call_id: str, timeout_s: float | None = None) -> Result:
        """The call once it has ended, well or not; after `timeout_s` as it stands. Raises a Problem, Unreachable."""
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = LONG_POLL_S if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            found = _wire.result(await self.request(_wire.wait(call_id, min(LONG_POLL_S, left_s))))
            if found.ended or (give_up_at is not None and time.monotonic() >= give_up_at):
                return found

    async def explain(self, capability: str | None, payload: Any, **options: Unpack[CallOptions]) -> dict[str, Any]:
        """Where the call would go, and why; nothing is sent. Raises a Problem, Unreachable, NotJson."""
        found: dict[str, Any] = await self.request(_wire.explain(capability, payload, options))
        return found

    async def cancel(self, call_id: str) -> None:
        """Ask for the call's end. Raises Conflict when it has ended already, another Problem, Unreachable."""
        await self.request(_wire.cancel(call_id))

    async def receipts(self, call_id: str) -> list[dict[str, Any]]:
        """What has happened to the call, in order. Raises a Problem, Unreachable."""
        return list((await self.request(_wire.receipts(call_id)))["results"])

    async def events(self, call_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """Receipts as they come, from the first (or from the one after that `seq`) to the one that ends the call.

        A connection that breaks is made again and goes on where it was, for a minute of vain attempts.
        Raises a Problem, Unreachable.
        """
        retry_s, broken_at = 1.0, None
        while True:
            reader = _wire.EventReader()
            try:
                async with aclosing(self._connected().stream(_wire.events(call_id, after))) as chunks:
                    async for chunk in chunks:
                        broken_at = time.monotonic()
                        for receipt in reader.feed(chunk):
                            after = receipt["seq"]
                            yield receipt
                            if receipt["kind"] in _wire.TERMINAL:
                                return
                retry_s = reader.retry_s
            except NothingMore:
                return
            except (Unreachable, Unavailable, Overloaded, RateLimited) as exc:
                if broken_at is None or time.monotonic() - broken_at > RESUME_FOR_S:
                    raise
                retry_s = max(reader.retry_s, exc.retry_after_s or 0)
            await asyncio.sleep(retry_s)

    async def trace(self, trace_id: str) -> dict[str, Any]:
        """All calls of one trace as a tree, with their receipts. Raises a Problem, Unreachable."""
        found: dict[str, Any] = await self.request(_wire.trace(trace_id))
        return found


class ReachClient:
    """`AsyncReachClient` for code without an event loop; it keeps one in a thread of its own. Any thread may use it."""

    def __init__(self, reach_addr: str | None = None, api_key: str | None = None):
        self._client = AsyncReachClient(reach_addr, api_key)
        self.address = self._client.address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._starting:
            if self._loop is None or self._thread is None:
                return
            atexit.unregister(self.close)
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="agent-reach client", daemon=True)
                self._thread.start()
                atexit.register(self.close)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting: the request is given up too
            future.cancel()
            raise

    def request(self, request: _wire.Request) -> Any:
        return self._run(self._client.request(request))

    def dispatch(self, capability: str | None, payload: Any, **options: Unpack[CallOptions]) -> Result:
        """Hand over a task and wait for its result. Raises the Problem it ends in, Unreachable, NotJson."""
        return self._run(self._client.dispatch(capability, payload, **options))

    def submit(self, capability: str | None, payload: Any, **options: Unpack[CallOptions]) -> str:
        """Hand over a task and go on; its call_id. Raises a Problem, Unreachable, NotJson."""
        return self._run(self._client.submit(capability, payload, **options))

    def wait(self, call_id: str, timeout_s: float | None = None) -> Result:
        """The call once it has ended, well or not; after `timeout_s` as it stands. Raises a Problem, Unreachable."""
        return self._run(self._client.wait(call_id, timeout_s))

    def explain(self, capability: str | None, payload: Any, **options: Unpack[CallOptions]) -> dict[str, Any]:
        """Where the call would go, and why; nothing is sent. Raises a Problem, Unreachable, NotJson."""
        return self._run(self._client.explain(capability, payload, **options))

    def cancel(self, call_id: str) -> None:
        """Ask for the call's end. Raises Conflict when it has ended already, another Problem, Unreachable."""
        self._run(self._client.cancel(call_id))

    def receipts(self, call_id: str) -> list[dict[str, Any]]:
        """What has happened to the call, in order. Raises a Problem, Unreachable."""
        return self._run(self._client.receipts(call_id))

    def events(self, call_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Receipts as they come, from the first (or from the one after that `seq`) to the one that ends the call.

        A connection that breaks is made again and goes on where it was, for a minute of vain attempts.
        Raises a Problem, Unreachable.
        """
        told = self._client.events(call_id, after)
        try:
            while (receipt := self._run(_next(told))) is not None:
                yield receipt
        finally:
            if self._loop is not None:
                self._run(told.aclose())

    def trace(self, trace_id: str) -> dict[str, Any]:
        """All calls of one trace as a tree, with their receipts. Raises a Problem, Unreachable."""
        return self._run(self._client.trace(trace_id))


async def _next(told: AsyncGenerator[T, None]) -> T | None:
    """The next of them; None after the last."""
    return await anext(told, None)
