"""Whether this node could really do a task now: found out by doing one that costs nothing."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from agent_reach._handlers import in_thread, is_async
from agent_reach._workshop import Workshop

SILENCE_S = 1.8
"""Agent-Reach waits 2 s for the answer; a check that takes longer must still be reported in time."""
MAX_HANGING = 4
"""Checks that hang in a thread cannot be stopped; so many may, before no further one is begun."""

ReadyCheck = Callable[[], Any]


class Readiness:
    """Belongs to one event loop."""

    def __init__(self, workshop: Workshop, check: ReadyCheck | None):
        self._workshop, self._check = workshop, check
        self._looking: asyncio.Task[str] | None = None
        self._hanging = 0

    async def answer(self) -> dict[str, Any]:
        """The body of the answer to a probe. Probes that come together share one look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        reason = await asyncio.shield(self._looking)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return {"ready": False, "reason": reason, "now": now} if reason else {"ready": True, "now": now}

    async def _look(self) -> str:
        """Why the node is not ready; empty when it is."""
        if self._workshop.is_closing:
            return "stopping"
        if self._workshop.is_stalled():
            return "stalled"
        try:
            async with asyncio.timeout(SILENCE_S):
                if any(not handler.is_async for handler in self._workshop.handlers.values()):
                    await in_thread(time.time)
                return await self._ask_check()
        except TimeoutError:
            return f"its ready check did not answer within {SILENCE_S:g} s"

    async def _ask_check(self) -> str:
        if self._check is None:
            return ""
        if self._hanging >= MAX_HANGING:
            return f"{self._hanging} ready checks hang"
        try:
            answer = await (self._check() if is_async(self._check) else in_thread(self._counted, self._check))
        except Exception as exc:
            return f"its ready check failed: {type(exc).__name__}: {exc}"[:200]
        return "" if answer is None or answer else "its ready check says no"

    def _counted(self, check: ReadyCheck) -> Any:
        self._hanging += 1
        try:
            return check()
        finally:
            self._hanging -= 1
