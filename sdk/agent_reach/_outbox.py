"""Receipts on their way to Agent-Reach. While it is away they are kept, in order, and delivered when it is back."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agent_reach import _wire
from agent_reach.errors import NotAgentReach, Problem, Unreachable

log = logging.getLogger("agent_reach")

MAX_KEPT = 1000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
AWAY = (408, 429)


class Delivery(StrEnum):
    """What came of offering a receipt."""

    TAKEN = "taken"
    REFUSED = "refused"
    """The call or the attempt is over, or unknown: offering it again changes nothing."""
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Receipt:
    call_id: str
    attempt: int
    body: bytes
    is_last: bool


class Outbox:
    """Belongs to one event loop; `run` delivers what has been kept, until cancelled."""

    def __init__(self, ask: Callable[[_wire.Request], Awaitable[Any]], *, max_kept: int = MAX_KEPT):
        self._ask = ask
        self._max_kept = max_kept
        self._kept: deque[Receipt] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._kept)

    async def post(self, receipt: Receipt) -> Delivery:
        """Deliver it, or keep it for later behind those that wait already."""
        delivery = Delivery.AWAY if self._kept else await self.offer(receipt)
        if delivery is Delivery.AWAY:
            self._keep(receipt)
        return delivery

    async def beat(self, call_id: str, attempt: int) -> Delivery:
        """A sign of life; one that cannot be delivered is not worth keeping."""
        return await self.offer(Receipt(call_id, attempt, _wire.running_receipt(attempt), is_last=False))

    async def offer(self, receipt: Receipt) -> Delivery:
        """Try once."""
        try:
            await self._ask(_wire.post_receipt(receipt.call_id, receipt.body))
        except (Unreachable, NotAgentReach):
            return Delivery.AWAY
        except Problem as refusal:
            status = refusal.status or 500
            if status >= 500 or status in AWAY or status == 401:  # a key can be given back, a database too
                return Delivery.AWAY
            if status == 413 and receipt.is_last:
                return await self._offer_less(receipt)
            log.info("a receipt of call %s was not taken: %s", receipt.call_id, refusal.detail)
            return Delivery.REFUSED
        return Delivery.TAKEN

    async def _offer_less(self, receipt: Receipt) -> Delivery:
        """A result that is too large to be posted ends the call as failed, so that nobody waits for it."""
        log.error("the result of call %s is too large to be delivered as a receipt", receipt.call_id)
        message = "the result is larger than a receipt may be, and the connection that waited for it is gone"
        told = _wire.failure(500, "result_too_large", message, retryable=False)
        return await self.offer(Receipt(receipt.call_id, receipt.attempt, told.receipt(receipt.attempt), is_last=False))

    def _keep(self, receipt: Receipt) -> None:
        if len(self._kept) >= self._max_kept:
            lost = next((kept for kept in self._kept if not kept.is_last), self._kept[0])  # results are worth more
            self._kept.remove(lost)
            log.error("more than %d receipts wait: one of call %s is given up", self._max_kept, lost.call_id)
        self._kept.append(receipt)
        self._emptied.clear()
        self._filled.set()

    async def run(self) -> None:
        """Deliver what is kept, in order; pauses grow while Agent-Reach is away."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._filled.wait()
            receipt = self._kept[0]
            if await self.offer(receipt) is Delivery.AWAY:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
                continue
            pause_s = FIRST_PAUSE_S
            if self._kept and self._kept[0] is receipt:
                self._kept.popleft()
            if not self._kept:
                self._filled.clear()
                self._emptied.set()

    async def emptied(self, timeout_s: float) -> bool:
        """Whether everything kept has been delivered within so long."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._emptied.wait()
        except TimeoutError:
            return False
