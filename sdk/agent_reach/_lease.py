"""A node's place in the registry: obtained, kept by heartbeats, obtained anew when lost, given up at the end."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agent_reach import _wire
from agent_reach.errors import (
    InternalError,
    NotAgentReach,
    NotFound,
    Overloaded,
    RateLimited,
    ReachError,
    Unavailable,
    Unreachable,
)

log = logging.getLogger("agent_reach")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
PASSING = (Unavailable, Overloaded, RateLimited, InternalError)


class Lease:
    """Belongs to one event loop."""

    def __init__(
        self,
        ask: Callable[[_wire.Request], Awaitable[Any]],
        service_id: str,
        node_id: str,
        *,
        interval_s: float,
        declaration: Callable[[], Awaitable[Mapping[str, Any]]],
        in_flight: Callable[[], int],
    ):
        self._ask = ask
        self._service_id, self._node_id = service_id, node_id
        self._interval_s = interval_s
        self._declaration, self._in_flight = declaration, in_flight
        self._hash: str | None = None
        self._away_since: float | None = None
        self._settled = asyncio.Event()
        self.secret: bytes | None = None
        """Signs what Agent-Reach sends; None until the first registration."""

    @property
    def is_settled(self) -> bool:
        """False while a registration is under way: Agent-Reach may sign already with a secret not known here."""
        return self._settled.is_set()

    async def settled(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._settled.wait()
        except TimeoutError:
            return False

    async def obtain(self) -> None:
        """Register, however long Agent-Reach is away. Raises what it refuses for good: a key, a declaration."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await self._register()
            except ReachError as exc:
                if not is_passing(exc):
                    raise
                self._note_absence(exc)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def keep(self) -> None:
        """Heartbeats until cancelled; nothing that goes wrong ends them."""
        pause_s = self._interval_s
        while True:
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.0))
            try:
                await self._beat()
            except ReachError as exc:
                self._note_absence(exc)
                pause_s = min(self._interval_s, LONGEST_PAUSE_S, max(FIRST_PAUSE_S, pause_s / 4))
            else:
                pause_s = self._interval_s

    async def give_up(self, drain_s: float) -> None:
        """Take no new calls from now on. An Agent-Reach that is away finds out by the lease."""
        try:
            await self._ask(_wire.leave(self._service_id, self._node_id, drain_s=drain_s))
        except NotFound:
            pass
        except ReachError as exc:
            log.warning("Agent-Reach does not know that this node leaves: %s", exc.detail)

    async def _beat(self) -> None:
        request = _wire.heartbeat(
            self._service_id, self._node_id, in_flight=self._in_flight(), declaration_hash=self._hash
        )
        try:
            answer = await self._ask(request)
        except NotFound:
            answer = {"reregister": True}
        if answer.get("reregister"):
            await self._register()
        self._note_presence()

    async def _register(self) -> None:
        self._settled.clear()
        declaration = await self._declaration()
        try:
            answer = await self._ask(_wire.register(self._service_id, self._node_id, declaration))
            said = _wire.registration(answer)
        except (KeyError, TypeError, ValueError) as exc:
            raise NotAgentReach(f"the answer to the registration is not understood ({exc}): check reach_addr") from exc
        finally:
            if self.secret is not None:
                self._settled.set()
        self.secret, self._hash = said.signing_secret, said.declaration_hash
        self._settled.set()
        self._note_presence()
        offered = ", ".join(capability["name"] for capability in declaration["capabilities"])
        log.info("registered %s/%s at %s: %s", self._service_id, self._node_id, declaration["address"], offered)
        for advisory in said.advisories:
            log.warning("advice: %s; %s", advisory.get("message"), advisory.get("remedy"))

    def _note_absence(self, exc: ReachError) -> None:
        """One line when Agent-Reach goes away, or refuses; not one per attempt."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.warning("%s. This node goes on serving, and tries again until it is registered", exc)

    def _note_presence(self) -> None:
        if self._away_since is not None:
            log.info("Agent-Reach is back after %.0f s", time.monotonic() - self._away_since)
            self._away_since = None


def is_passing(exc: ReachError) -> bool:
    """Whether waiting may help: away, starting, overloaded. A refusal of the key or the declaration stays one."""
    if isinstance(exc, NotAgentReach):
        return (exc.status or 0) >= 500
    return isinstance(exc, (Unreachable, *PASSING)) or (exc.status or 0) >= 500
