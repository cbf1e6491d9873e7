"""Sends callbacks that are due: signed, the same webhook-id each time, never more than a few to one host at once."""

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.conf import settings

from receipts import callbacks
from receipts.api import shown_call
from receipts.callbacks import Try
from receipts.errors import CallNotFound
from receipts.models import CallbackStatus
from registry import clock
from registry.errors import Unavailable
from registry.http import encode
from registry.log_context import enter_call
from registry.signing import signature_headers
from routing.core.callbacks import again_after_s
from routing.live import LiveParts

log = logging.getLogger(__name__)

GATHER_S = 0.005
"""Notices that come within so long make one look."""
HELD_BEYOND_S = 10.0
"""So much longer (s) than a sending may take is it the sender's own: what is written afterwards takes a moment, too."""


class CallbackSender:
    """Single-threaded: the engine's event loop owns it."""

    def __init__(self, parts: LiveParts):
        self.parts = parts
        self.due = asyncio.Event()
        self.flying: Counter[str] = Counter()
        """Sendings under way, by host."""
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send what is due, whenever something is."""
        while True:
            await self.due.wait()
            await asyncio.sleep(GATHER_S)
            self.due.clear()
            with suppress(Unavailable):  # the engine's next look tells
                while await self.send_some():
                    pass

    async def send_some(self) -> bool:
        """Begin to send as many as there is room for; whether more may be due. Raises Unavailable."""
        room = settings.REACH_CALLBACKS_AT_ONCE - len(self.tasks)
        if room <= 0 or self.parts.snapshot.tables is None:
            return False
        per_host = settings.REACH_CALLBACKS_PER_HOST
        rows = await callbacks.take_due(
            self.parts.journal,
            rooms={host: max(0, per_host - flying) for host, flying in self.flying.items()},
            window=per_host,
            at_most=room,
            held_s=settings.REACH_CALLBACK_TIMEOUT_S + HELD_BEYOND_S,
        )
        for row in rows:
            self.flying[row["host"]] += 1
            task = asyncio.get_running_loop().create_task(self.send(row))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return len(rows) == room

    async def send(self, row: dict[str, Any]) -> None:
        """One sending, and what came of it."""
        try:
            told = await self.tell(row)
            status, due_at = self.fate_of(row, told)
            await callbacks.record(self.parts.journal, row["call_id"], row["tries"], told, status=status, due_at=due_at)
            if status == CallbackStatus.GAVE_UP:
                log.warning("the callback of call %s is given up: %s", row["call_id"], told.error)
        except Unavailable:
            log.warning("what became of a callback could not be written; it is sent again")
        except Exception:  # the outermost loop of a sending: its turn comes again
            log.exception("a callback could not be sent")
        finally:
            self.flying[row["host"]] -= 1
            if not self.flying[row["host"]]:
                del self.flying[row["host"]]
            self.due.set()  # there is room for one more

    async def tell(self, row: dict[str, Any]) -> Try:
        """Send the call's document once. Raises Unavailable."""
        at, loop = clock.now(), asyncio.get_running_loop()
        began = loop.time()
        try:
            document = await shown_call(self.parts.journal, row["call_id"])
        except CallNotFound:
            return Try(at, 0, error=GONE_HERE)
        enter_call(str(row["call_id"]), document["trace_id"])
        body = encode(document)
        headers = {"Content-Type": "application/json", "webhook-id": f"{row['call_id']}.callback"}
        if (secret := self.parts.tables.secrets.get(row["caller"])) is not None:  # people have none
            headers |= signature_headers(secret, headers["webhook-id"], clock.now_millis() // 1000, body)
        status, error = None, f"no answer within {settings.REACH_CALLBACK_TIMEOUT_S:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.REACH_CALLBACK_TIMEOUT_S):
                status, error = await self.parts.forwarder.call_back(row["url"], body, headers)
        return Try(at, round((loop.time() - began) * 1000), status, error or None)

    def fate_of(self, row: dict[str, Any], told: Try) -> tuple[CallbackStatus, Any]:
        """What a try makes of a callback, and when it is tried again, if it is."""
        if told.status is not None and 200 <= told.status < 300:
            return CallbackStatus.DELIVERED, None
        if told.status == 410:
            return CallbackStatus.GONE, None
        after_s = again_after_s(
            row["tries"],
            base_s=settings.REACH_CALLBACK_RETRY_S,
            longest_s=settings.REACH_CALLBACK_RETRY_MAX_S,
            chance=self.parts.chance.random(),
        )
        due_at = clock.now() + timedelta(seconds=after_s)
        give_up_at = row["made_at"] + timedelta(seconds=settings.REACH_CALLBACK_GIVE_UP_S)
        if due_at > give_up_at or told.error == GONE_HERE:
            return CallbackStatus.GAVE_UP, None
        return CallbackStatus.PENDING, due_at

    async def stop(self) -> None:
        """Let what is being sent arrive; the rest is due later, for others."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=settings.REACH_CALLBACK_TIMEOUT_S)
        for task in self.tasks:
            task.cancel()


GONE_HERE = "the call is not kept any more"
