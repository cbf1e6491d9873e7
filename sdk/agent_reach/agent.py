"""For agents: init, register, handle."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from agent_reach import _schema, _wire
from agent_reach._handlers import Handler, bound, check_signature
from agent_reach._http import Connection
from agent_reach._lease import Lease
from agent_reach._outbox import Outbox
from agent_reach._readiness import Readiness, ReadyCheck
from agent_reach._server import ENDPOINTS, NodeServer
from agent_reach._signals import until_signalled
from agent_reach._where import bind_host, bound_socket, check_advertised, default_node_id, reachable_address
from agent_reach._workshop import Workshop
from agent_reach.client import address_from, key_from
from agent_reach.errors import ReachError, SetupError
from agent_reach.models import CallOptions, Capability

log = logging.getLogger("agent_reach")

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=ReadyCheck)
LONGEST_HEARTBEAT_S, HEARTBEATS_PER_LEASE = 1200, 3


class AgentClient:
    """One node of a service: it registers what it can do, does it when asked, and says how it goes.

    `heartbeat_interval` (s): 15 is a good value; a node that is silent for three of them is taken off the list.
    `running_interval_s`: how often a task at work says so. `stalled_after_s`: how long every task must have been
    silent before the node calls itself stalled. `drain_s`: how long tasks may finish after SIGTERM.
    """

    def __init__(
        self,
        service_id: str,
        reach_addr: str | None = None,
        *,
        api_key: str | None = None,
        heartbeat_interval: float = 15,
        host: str | None = None,
        port: int = 0,
        advertise: str | None = None,
        node_id: str | None = None,
        weight: int = 100,
        tags: Sequence[str] = (),
        max_concurrency: int = 32,
        version: str = "",
        requires: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        drain_s: float = 25,
        running_interval_s: float = 10,
        stalled_after_s: float = 30,
    ):
        if not 1 <= heartbeat_interval <= LONGEST_HEARTBEAT_S:
            raise SetupError(
                f"heartbeat_interval is seconds, from 1 to {LONGEST_HEARTBEAT_S}, not {heartbeat_interval}; 15 is good"
            )
        if max_concurrency < 1:
            raise SetupError(f"max_concurrency must be at least 1, not {max_concurrency}")
        self.service_id = _wire.check_name("service_id", service_id)
        self.node_id = None if node_id is None else _wire.check_name("node_id", node_id)
        self.reach_addr = address_from(reach_addr)
        self.address: str | None = None
        """Where others reach this node; known once it is registered."""
        self._api_key = key_from(api_key)
        self._heartbeat_interval_s = heartbeat_interval
        self._host, self._port, self._advertise = host, port, check_advertised(advertise)
        self._max_concurrency = max_concurrency
        self._facts = {"weight": weight, "tags": list(tags), "version": version, "requires": list(requires)}
        self._metadata = dict(metadata or {})
        self._drain_s, self._running_interval_s, self._stalled_after_s = drain_s, running_interval_s, stalled_after_s
        self._capabilities: dict[str, Capability] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._ready_check: ReadyCheck | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._stop_asked = False
        self._lease: Lease | None = None

    @property
    def is_registered(self) -> bool:
        """Whether Agent-Reach has this node on its list, as far as is known here."""
        return self._lease is not None and self._lease.secret is not None

    # --- Before the start -------------------------------------------------------------------------------------------

    def register_capability(self, capability: Capability) -> None:
        """Offer something. Raises SetupError."""
        _wire.check_name("capability", capability.name)
        if capability.name in self._capabilities:
            raise SetupError(f"{capability.name} is registered twice")
        self._capabilities[capability.name] = capability

    def handle(self, capability: str) -> Callable[[F], F]:
        """Decorates the function that does it: `async def f(payload, ctx)`, or `def`, which gets a thread."""

        def decorate(function: F) -> F:
            check_signature(capability, function)
            if capability in self._functions:
                raise SetupError(f"{capability} has two handlers; it can have one")
            self._functions[capability] = function
            return function

        return decorate

    def ready_check(self, check: C) -> C:
        """Decorates a function without arguments. False, an exception or silence mean: send nothing here now."""
        self._ready_check = check
        return check

    # --- The run ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop()`; blocks. A mistake in the setup ends the program with its message."""
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            asyncio.run(self.run())
        except ReachError as exc:
            if threading.current_thread() is not threading.main_thread():
                raise
            raise SystemExit(f"{self.service_id} cannot start: {exc}") from exc
        except KeyboardInterrupt:  # a second Ctrl-C: not even draining is wanted
            raise SystemExit(130) from None

    def stop(self) -> None:
        """Begin to drain: no new tasks, those at work may finish; then `run` and `start` return. From any thread."""
        self._stop_asked = True
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped already
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Serve in this event loop until SIGTERM or `stop()`. Raises SetupError, or what Agent-Reach refuses."""
        if self._loop is not None:
            raise SetupError("this AgentClient runs already; one process may hold several, each with its own node")
        handlers = bound(self._capabilities, self._functions)
        if self._api_key is None:
            raise SetupError(
                "no API key: pass api_key=… or set REACH_API_KEY; an operator makes one with "
                f"`manage.py reach_key create --service {self.service_id} --scopes register,dispatch`"
            )
        if not _schema.has_validator():
            log.info("payloads are checked by Agent-Reach alone; to check them here too: pip install jsonschema")
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._stop_asked:
            self._stopping.set()
        connection = Connection(self.reach_addr, self._api_key)
        try:
            with until_signalled(self._stopping):
                await self._serve(connection, handlers, self._stopping)
        finally:
            await connection.close()
            self._loop = self._stopping = self._lease = None
            self._stop_asked = False

    async def _serve(self, connection: Connection, handlers: Mapping[str, Handler], stopping: asyncio.Event) -> None:
        host = bind_host(self.reach_addr, self._host, self._advertise)
        listening = bound_socket(host, self._port)
        port = listening.getsockname()[1]
        self.node_id = self.node_id or default_node_id(port)

        async def dispatch(capability: str, payload: Any, options: CallOptions, traceparent: str | None) -> Any:
            request = _wire.dispatch(capability, payload, options, traceparent=traceparent)
            return (await connection.ask(request))["output"]

        async def declaration() -> Mapping[str, Any]:
            self.address = await reachable_address(self.reach_addr, host, port, self._advertise)
            return self._declaration(self.address)

        outbox = Outbox(connection.ask)
        workshop = Workshop(
            handlers,
            outbox,
            dispatch,
            max_concurrency=self._max_concurrency,
            running_interval_s=self._running_interval_s,
            stalled_after_s=self._stalled_after_s,
        )
        lease = self._lease = Lease(
            connection.ask,
            self.service_id,
            self.node_id,
            interval_s=self._heartbeat_interval_s,
            declaration=declaration,
            in_flight=lambda: workshop.in_flight,
        )
        server = NodeServer(workshop, Readiness(workshop, self._ready_check), lease, outbox)
        await server.listen(listening)
        background = [asyncio.create_task(outbox.run())]
        try:
            if await unless_stopped(lease.obtain(), stopping):
                background.append(asyncio.create_task(lease.keep()))
                await stopping.wait()
                await self._leave(workshop, lease, outbox)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await server.close()

    async def _leave(self, workshop: Workshop, lease: Lease, outbox: Outbox) -> None:
        """No new calls; what is at work finishes and is told; off the list. Takes `drain_s` and a moment at most."""
        log.info("stopping: no new tasks")
        give_up_at = time.monotonic() + self._drain_s
        await lease.give_up(self._drain_s if workshop.in_flight else 0)
        await workshop.drain(give_up_at - time.monotonic())
        if len(outbox) and not await outbox.emptied(max(1.0, give_up_at - time.monotonic())):
            log.error("%d receipts could not be delivered: Agent-Reach stayed away", len(outbox))
        await lease.give_up(0)
        log.info("stopped")

    def _declaration(self, address: str) -> dict[str, Any]:
        return {
            "address": address,
            "protocol": "reach-http",
            "endpoints": ENDPOINTS,
            "heartbeat_interval_s": self._heartbeat_interval_s,
            "lease_ttl_s": max(3, HEARTBEATS_PER_LEASE * self._heartbeat_interval_s),
            "max_concurrency": self._max_concurrency,
            "metadata": self._metadata,
            "capabilities": [_wire.capability_document(capability) for capability in self._capabilities.values()],
            **self._facts,
        }


async def unless_stopped(work: Awaitable[None], stopping: asyncio.Event) -> bool:
    """Do the work to its end, or give it up when `stopping` is set: then False. Raises what the work raises."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
