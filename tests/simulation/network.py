"""The simulated ways to nodes, in the place of the HTTP client: connections refused, kept, broken, swallowed."""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from aiohttp.client_reqrep import ConnectionKey

from tests.simulation.scheduler import ProcessLoop, Scheduler

if TYPE_CHECKING:
    from tests.simulation.nodes import SimulatedNode

WAY_S = 0.0004
"""From a process to a node, on average."""


class Envelope(msgspec.Struct, gc=False):
    """What a node reads of what it is sent."""

    call_id: str
    attempt: int
    capability: str
    payload: Any
    idempotency_key: str | None
    deadline_millis: int
    forwarded_at_millis: int


decode = msgspec.json.Decoder(Envelope).decode


class Network:
    def __init__(self, scheduler: Scheduler, chance: Random, *, connect_timeout_s: float, keepalive_s: float):
        self.scheduler, self.chance = scheduler, chance
        self.connect_timeout_s, self.keepalive_s = connect_timeout_s, keepalive_s
        self.nodes: dict[str, SimulatedNode] = {}
        """By the address that envelopes are sent to."""
        self.parted: set[tuple[ProcessLoop, tuple[str, str]]] = set()
        """Processes and nodes between which packets vanish."""
        self.slowness = 1.0
        self.leaving: Callable[[ProcessLoop, SimulatedNode, Envelope, float], None] = lambda *told: None
        """Told of each envelope that leaves, and when its attempt had begun to connect."""
        self.posting: Callable[[ProcessLoop, SimulatedNode], None] = lambda *told: None
        """Told of each attempt as it begins."""

    def way_s(self) -> float:
        return WAY_S * self.slowness * (0.5 + self.chance.random())

    def is_parted(self, loop: ProcessLoop, node: "SimulatedNode") -> bool:
        return bool(self.parted) and (loop, node.key) in self.parted


class Client:
    """One process's pool of connections: as far as `routing.forwarder` uses an aiohttp session."""

    def __init__(self, network: Network, loop: ProcessLoop):
        self.network, self.loop = network, loop
        self.kept: dict[tuple[str, str], list[tuple[int, float]]] = {}
        """Idle connections: which life of the node they lead to, and until when (s) they are kept."""

    def post(self, url: str, *, data: bytes, headers: dict[str, str], allow_redirects: bool) -> "Exchange":
        return Exchange(self, url, data)

    async def close(self) -> None:
        self.kept.clear()


class Exchange:
    """One request and its answer."""

    __slots__ = ("answered", "client", "data", "is_closed", "node", "response", "url")

    def __init__(self, client: Client, url: str, data: bytes):
        self.client, self.url, self.data = client, url, data
        self.answered: asyncio.Future[Response] | None = None
        self.response: Response | None = None
        self.is_closed = False
        """Whether nobody reads the answer any more."""

    async def __aenter__(self) -> "Response":
        client, network = self.client, self.client.network
        self.node = node = network.nodes[self.url]
        began_s = network.scheduler.now_s
        network.posting(client.loop, node)
        life = self.kept_connection(began_s)
        if life is None:
            await self.connect()
            life = node.life
        network.leaving(client.loop, node, decode(self.data), began_s)
        self.answered = client.loop.create_future()
        if not network.is_parted(client.loop, node):
            network.scheduler.after(network.way_s(), self.arrive, life)
        try:
            return await self.answered
        except BaseException:
            self.close()
            raise

    async def connect(self) -> None:
        network, node = self.client.network, self.node
        if network.is_parted(self.client.loop, node) or node.swallows:
            await asyncio.sleep(network.connect_timeout_s)
            raise aiohttp.ConnectionTimeoutError("Connection timeout to host")
        await asyncio.sleep(2 * network.way_s())
        if not node.listens:
            raise aiohttp.ClientConnectorError(KEY, ConnectionRefusedError("refused"))

    def kept_connection(self, now_s: float) -> int | None:
        """The node's life that an idle connection leads to. Most notice by themselves when the other end goes."""
        kept = self.client.kept.get(self.node.key)
        while kept:
            life, until_s = kept.pop()
            if until_s >= now_s and (life == self.node.life or self.client.network.chance.random() < UNNOTICED):
                return life
        return None

    def arrive(self, life: int) -> None:
        node = self.node
        if life != node.life or not node.listens:
            self.fail(aiohttp.ServerDisconnectedError())
        elif not node.swallows:
            node.open[self] = None
            node.receive(self, decode(self.data))

    @property
    def is_open(self) -> bool:
        """Whether somebody still waits for the answer."""
        return self.answered is not None and not self.answered.done() and self.client.loop.is_alive

    @property
    def is_read(self) -> bool:
        """Whether somebody reads on in an answer that comes bit by bit."""
        return not self.is_closed and self.client.loop.is_alive

    def close(self) -> None:
        self.is_closed = True
        self.node.open.pop(self, None)

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> "Response":
        """The node's answer, on its way."""
        self.response = response = Response(self, status, body, content_type)
        network = self.client.network
        network.scheduler.after(network.way_s(), self.deliver, response)
        return response

    def deliver(self, response: "Response") -> None:
        if self.is_open and not self.client.network.is_parted(self.client.loop, self.node):
            assert self.answered is not None
            self.answered.set_result(response)

    def fail(self, exc: Exception) -> None:
        """The connection breaks."""
        network = self.client.network
        if self.response is not None:
            self.response.send(aiohttp.ClientPayloadError(str(exc)))
        network.scheduler.after(network.way_s(), self.broken, exc)

    def broken(self, exc: Exception) -> None:
        if self.is_open and not self.client.network.is_parted(self.client.loop, self.node):
            assert self.answered is not None
            self.answered.set_exception(exc)

    async def __aexit__(self, *exc: Any) -> None:
        self.close()
        if exc[0] is None and self.answered is not None and self.answered.done():
            network = self.client.network
            kept = self.client.kept.setdefault(self.node.key, [])
            kept.append((self.node.life, network.scheduler.now_s + network.keepalive_s))


UNNOTICED = 0.2
KEY = ConnectionKey("node.test", 80, False, True, None, None, None)


class Response:
    """As far as `routing.forwarder` reads an aiohttp response."""

    __slots__ = ("body", "content_type", "exchange", "last_at_s", "parts", "status", "waiting")

    def __init__(self, exchange: Exchange, status: int, body: bytes, content_type: str):
        self.exchange, self.status, self.body, self.content_type = exchange, status, body, content_type
        self.parts: deque[bytes | Exception | None] = deque()
        """Of an answer that comes bit by bit; None ends it."""
        self.waiting: asyncio.Future[None] | None = None
        self.last_at_s = 0.0

    @property
    def content_length(self) -> int:
        return len(self.body)

    @property
    def headers(self) -> dict[str, str]:
        return {}

    async def read(self) -> bytes:
        return self.body

    # --- Bit by bit --------------------------------------------------------------------------------------------------

    def send(self, part: bytes | Exception | None) -> None:
        """One more part, on its way behind those before it."""
        network = self.exchange.client.network
        self.last_at_s = max(self.last_at_s, network.scheduler.now_s + network.way_s())
        network.scheduler.at(self.last_at_s, self.come, part)

    def come(self, part: bytes | Exception | None) -> None:
        client = self.exchange.client
        if not client.loop.is_alive or client.network.is_parted(client.loop, self.exchange.node):
            return
        self.parts.append(part)
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    @property
    def content(self) -> "Response":
        return self

    def iter_any(self) -> "Response":
        return self

    def __aiter__(self) -> "Response":
        return self

    async def __anext__(self) -> bytes:
        while not self.parts:
            self.waiting = self.exchange.client.loop.create_future()
            await self.waiting
        part = self.parts.popleft()
        if part is None:
            raise StopAsyncIteration
        if isinstance(part, Exception):
            raise part
        return part
