"""What was just written, told to whoever watches: at most a few messages a second, whatever the traffic.

A watcher is a member of a group: of all calls, or of one trace. Whoever has watchers says so every other second in the
group `WANTED`; processes that write hear it, and tell nothing while nobody watches. They only remember which calls they
have written to; now and then one of them reads these calls as they stand, and sends each group one message. So no
call waits for a watcher, and what is shown is what is stored.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic
from typing import Any

import msgspec
from django.conf import settings

from receipts.journal import Item, end, keep_running
from registry.errors import Unavailable

log = logging.getLogger(__name__)

LIVE = "live"
"""The group of those who watch all calls."""
WANTED = "live.wanted"
"""The group of those who have something to tell."""
WANTED_EVERY_S, WANTED_FOR_S = 2.0, 7.0
GROUPS_AT_MOST = 200
"""Of which a process keeps in mind that they are wanted."""
NOTED_AT_MOST, READ_AT_MOST = 2000, 500
"""Calls that are remembered between two messages, and those of them, the last ones, that are looked up."""
PATIENCE_S = 1.0
"""A channel layer that takes longer gets no message this time."""

CALLS = """
SELECT id AS call_id, trace_id, parent_call_id, mirror_of, caller, capability, status, service_id, node_id, attempts,
    seq, accepted_at, ended_at, error::json->>'code' AS error_code
FROM calls WHERE id = ANY(%s::uuid[]) ORDER BY id DESC
"""


def away_errors() -> tuple[type[Exception], ...]:
    if not settings.REDIS_URL:  # Redis's client is a tenth of a start, and most installations need none
        return OSError, TimeoutError
    from redis.exceptions import RedisError

    return OSError, TimeoutError, RedisError


AWAY = away_errors()
"""What a channel layer raises that cannot be reached."""
Read = Callable[..., Awaitable[list[dict[str, Any]]]]
encode = msgspec.json.Encoder().encode


def group_of(trace_id: str | None) -> str:
    """The group that watches one trace, or all calls."""
    return LIVE if trace_id is None else f"trace.{trace_id}"


def message(calls: Sequence[dict[str, Any]], *, at_most: int, unread: int = 0) -> dict[str, Any]:
    """One message for a group: the newest calls as JSON, and how many more there were."""
    shown = calls[:at_most]
    text = encode({"calls": shown, "left_out": len(calls) - len(shown) + unread}).decode()
    return {"type": "calls", "text": text}


def wanted(groups: Iterable[str]) -> dict[str, Any]:
    """The message by which watchers make themselves known."""
    return {"type": "wanted", "groups": sorted(groups)[:GROUPS_AT_MOST]}


class Publisher:
    """Tells watchers of the calls that this process writes to. Its loop owns all but `note`."""

    def __init__(self, layer: Any, read: Read, *, interval_s: float, calls_at_most: int, retry_s: float):
        self.layer, self.read, self.interval_s, self.calls_at_most = layer, read, interval_s, calls_at_most
        self.retry_s = retry_s
        self.wanted: dict[str, float] = {}
        """Groups that have watchers, and until when (s) that is known."""
        self.asked = asyncio.Event()
        self.noted: deque[str] = deque(maxlen=NOTED_AT_MOST)
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        works = (self.hear, self.tell)
        self.tasks = [
            asyncio.create_task(keep_running(work, self.retry_s), name=f"publisher {work.__name__}") for work in works
        ]

    async def stop(self) -> None:
        await end(self.tasks)

    def note(self, group: Sequence[Item[Any]]) -> None:
        """These rows are on disk. Any thread may say so; it costs nothing while nobody watches."""
        if self.wanted:
            self.noted.extend(item.row.id for item in group)

    async def hear(self) -> None:
        """Hear who is watching. The layer may be away: then nobody is."""
        while True:
            try:
                channel = await self.layer.new_channel("publisher.")
                await self.layer.group_add(WANTED, channel)
                while True:
                    self.want((await self.layer.receive(channel))["groups"])
            except AWAY as exc:
                log.debug("the channel layer is away: %s", exc)
                await asyncio.sleep(self.retry_s)

    def want(self, groups: Iterable[str]) -> None:
        until = monotonic() + WANTED_FOR_S
        for group in groups:
            if group in self.wanted or len(self.wanted) < GROUPS_AT_MOST:
                self.wanted[group] = until
        self.asked.set()

    async def tell(self) -> None:
        """One message a group and interval, while there are watchers and something to tell."""
        while True:
            await self.asked.wait()
            await asyncio.sleep(self.interval_s)
            now = monotonic()
            for group in [group for group, until in self.wanted.items() if until < now]:
                del self.wanted[group]
            if not self.wanted:
                self.asked.clear()
                self.noted.clear()
            elif self.noted:
                await self.tell_of(self.taken())

    def taken(self) -> list[str]:
        """The calls that were written to, each once, the last ones first."""
        taken = []
        while self.noted:
            taken.append(self.noted.pop())
        return list(dict.fromkeys(taken))

    async def tell_of(self, call_ids: Sequence[str]) -> None:
        at_most = self.calls_at_most if self.wanted.keys() == {LIVE} else READ_AT_MOST
        try:
            rows = await self.read(CALLS, list(call_ids[:at_most]))
        except Unavailable:
            return  # whoever watches sees by the clock that nothing comes
        unread = max(0, len(call_ids) - at_most)
        for group in list(self.wanted):
            calls = rows if group == LIVE else [row for row in rows if group_of(row["trace_id"]) == group]
            if calls:
                await self.send(
                    group, message(calls, at_most=self.calls_at_most, unread=unread if group == LIVE else 0)
                )

    async def send(self, group: str, told: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.layer.group_send(group, told)
        except AWAY as exc:
            log.debug("%s was not told: %s", group, exc)
