"""Simulated nodes: what each does with an envelope, and its own log of what it has worked on.

A node is a plain object of the world: callbacks, no tasks. `mode` is what is wrong with it; `style` is how its service
answers when nothing is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from registry.core.node import Node
from routing.core.reports import PostedError, PostedReceipt
from tests.simulation.network import Envelope, Exchange
from tests.simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.simulation.world import World


class Style(StrEnum):
    """How a service answers (CONTRACT §6)."""

    ANSWER = "answer"
    """200 when the work is done."""
    ACKNOWLEDGE = "acknowledge"
    """202 at once, the rest by receipts."""
    STREAM = "stream"
    """NDJSON, line by line."""


class Mode(StrEnum):
    """What is wrong with a node."""

    GOOD = "good"
    SLOW = "slow"
    """Works, twenty times as long."""
    HALF_DEAD = "half-dead"
    """Accepts and never answers; nothing is done."""
    HANGS = "hangs"
    """Does the work and never answers."""
    REFUSES = "refuses"
    SWALLOWS = "swallows"
    """Packets to it vanish."""
    RESETS = "resets"
    """Breaks the connection when the work is done."""
    BREAKS_EARLY = "breaks early"
    """Breaks the connection before it has begun."""
    GATEWAY = "gateway"
    """Something before it answers 502, whether or not it has worked."""
    BUSY = "busy"
    """503: not started."""
    LIMITED = "limited"
    """429: not started."""
    FAILS = "fails"
    """500 with an error that may be retried."""
    GIVES_UP = "gives up"
    """500 with `retryable: false`."""
    GARBLED = "garbled"
    """Its output is not what it has declared."""
    LATE = "late"
    """Its answer comes after the deadline, as a receipt."""
    FALLS_SILENT = "falls silent"
    """Sends `running` once and no more."""


FIT = frozenset({Mode.GOOD, Mode.SLOW, Mode.LATE, Mode.RESETS, Mode.FAILS, Mode.GIVES_UP, Mode.GARBLED, Mode.BUSY})
"""With these wrong a probe finds nothing."""
HEARTBEAT_S = 10.0
OUTBOX_S = 90.0
"""So long a node tries to deliver a receipt."""
ERROR = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Work:
    """A service: how it answers, how long it works (s, on average)."""

    service_id: str
    capability: str
    style: Style
    work_s: float
    idempotent: bool


class SimulatedNode:
    """One node. `declared` is what the registry knows of it."""

    def __init__(self, world: "World", work: Work, declared: Node, chance: Random):
        self.world, self.work, self.declared, self.chance = world, work, declared, chance
        self.scheduler: Scheduler = world.scheduler
        self.key = declared.key
        self.mode = Mode.GOOD
        self.is_up = True
        self.life = 1
        """Counts its starts: what an earlier life had under way is gone."""
        self.at_work = 0
        self.open: dict[Exchange, None] = {}
        """Connections with a request in them."""

    # --- As the network sees it --------------------------------------------------------------------------------------

    @property
    def listens(self) -> bool:
        return self.is_up and self.mode is not Mode.REFUSES

    @property
    def swallows(self) -> bool:
        return self.mode is Mode.SWALLOWS

    def trouble(self) -> str:
        """What a probe finds; "" when nothing."""
        if not self.listens:
            return "connection refused"
        if self.mode in FIT or self.mode is Mode.LIMITED:
            return ""
        if self.mode is Mode.FALLS_SILENT or self.mode is Mode.BREAKS_EARLY:
            return ""
        return {
            Mode.SWALLOWS: "connects, does not answer",
            Mode.GATEWAY: "answers 502",
        }.get(self.mode, "lives, but readiness hangs")

    def stop(self) -> None:
        """It dies with all that it has under way; its connections break."""
        self.is_up = False
        self.life += 1
        self.at_work = 0
        left, self.open = self.open, {}
        for exchange in left:
            exchange.fail(aiohttp.ServerDisconnectedError())

    def start(self) -> None:
        self.is_up = True

    # --- Work --------------------------------------------------------------------------------------------------------

    def receive(self, exchange: Exchange, envelope: Envelope) -> None:
        mode = self.mode
        if mode is Mode.HALF_DEAD:
            return
        if mode is Mode.BREAKS_EARLY:
            exchange.fail(aiohttp.ServerDisconnectedError())
            return
        if mode is Mode.BUSY or mode is Mode.LIMITED:
            status = 503 if mode is Mode.BUSY else 429
            exchange.answer(status, ERROR({"error": {"code": "busy", "message": "no slot is free"}}))
            return
        if mode is Mode.GATEWAY and self.chance.random() < 0.5:
            exchange.answer(502, b"<html>Bad Gateway</html>", "text/html")
            return
        self.world.watch.executed(self, envelope)
        self.at_work += 1
        work_s = self.work.work_s * (0.3 + 1.4 * self.chance.random()) * (20 if mode is Mode.SLOW else 1)
        if mode is Mode.LATE:
            budget_s = (envelope.deadline_millis - envelope.forwarded_at_millis) / 1000
            work_s = max(work_s, budget_s + 0.5 + self.chance.random())
        job = Job(self, exchange, envelope, mode)
        match self.work.style:
            case Style.ACKNOWLEDGE:
                exchange.answer(202, b"{}")
                job.beat()
            case Style.STREAM:
                job.stream = exchange.answer(200, b"", "application/x-ndjson")
                job.beat()
        self.scheduler.after(work_s, job.end)


class Job:
    """One envelope at work."""

    __slots__ = ("envelope", "exchange", "is_over", "life", "mode", "node", "stream")

    def __init__(self, node: SimulatedNode, exchange: Exchange, envelope: Envelope, mode: Mode):
        self.node, self.exchange, self.envelope, self.mode = node, exchange, envelope, mode
        self.life = node.life
        self.stream: Any = None
        self.is_over = False

    @property
    def is_lost(self) -> bool:
        return self.life != self.node.life

    def beat(self) -> None:
        """A sign of life now, and again while the work goes on."""
        if self.is_lost or self.is_over:
            return
        self.tell(PostedReceipt("running", attempt=self.envelope.attempt))
        if self.mode is not Mode.FALLS_SILENT:
            self.node.scheduler.after(HEARTBEAT_S, self.beat)

    def end(self) -> None:
        if self.is_lost:
            return
        self.is_over = True
        node, mode = self.node, self.mode
        node.at_work -= 1
        if mode in (Mode.HANGS, Mode.FALLS_SILENT):
            return
        if mode is Mode.RESETS:
            self.exchange.fail(aiohttp.ServerDisconnectedError())
            if node.work.style is not Style.ACKNOWLEDGE:
                return
        attempt = self.envelope.attempt
        if mode in (Mode.FAILS, Mode.GIVES_UP):
            error = PostedError("broken", "it is broken", mode is Mode.FAILS)
            self.last_word(PostedReceipt("failed", error=error, attempt=attempt), 500)
        else:
            output: Any = {"of": self.envelope.call_id} if mode is not Mode.GARBLED else {"of": 7}
            self.last_word(PostedReceipt("succeeded", output=output, attempt=attempt), 200)

    def last_word(self, posted: PostedReceipt, status: int) -> None:
        """The end of the work, by the connection where somebody waits there, else as a receipt."""
        if self.stream is not None:
            if self.exchange.is_read:
                self.tell(posted)
                self.stream.send(None)
                return
        elif self.node.work.style is Style.ANSWER and self.exchange.is_open:
            if self.mode is Mode.GATEWAY:
                self.exchange.answer(502, b"<html>Bad Gateway</html>", "text/html")
            elif posted.error is not None:
                self.exchange.answer(status, ERROR({"error": msgspec.to_builtins(posted.error)}))
            else:
                self.exchange.answer(status, ERROR({"output": posted.output}))
            return
        self.post(posted)

    def tell(self, posted: PostedReceipt) -> None:
        """One more word, line by line or as a receipt."""
        if self.stream is None:
            self.post(posted)
        elif self.exchange.is_read:
            self.stream.send(msgspec.json.encode(posted) + b"\n")

    def post(self, posted: PostedReceipt, since_s: float | None = None) -> None:
        """A receipt, tried again until somebody takes it (agents keep theirs while the reach is away)."""
        node = self.node
        now_s = node.scheduler.now_s
        began_s = now_s if since_s is None else since_s
        if self.is_lost or now_s - began_s > OUTBOX_S:
            return

        def answered(is_taken: bool) -> None:
            if not is_taken:
                node.scheduler.after(0.5 + node.chance.random(), self.post, posted, began_s)

        taken: Callable[[bool], None] = answered
        node.world.take_receipt(node, self.envelope, posted, taken)
