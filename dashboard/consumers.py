"""The sockets of live pages: one trace, or all calls, as `receipts.trace` tells of them.

Who may see calls in the admin may watch; that is asked again each minute. A browser that does not read is cut off.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, MutableMapping
from importlib import import_module
from time import monotonic
from typing import Any

from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.layers import get_channel_layer
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest
from django.urls import re_path

from receipts.trace import AWAY, PATIENCE_S, WANTED, WANTED_EVERY_S, group_of, message, wanted
from registry.database import give_back

ASK_AGAIN_S = 60.0
NOT_ALLOWED, TOO_MANY = 4403, 4429
"""Close codes, after the HTTP statuses."""


class Watchers:
    """Which groups the sockets of this process watch; while there are any, it says so every other second."""

    def __init__(self) -> None:
        self.groups: Counter[str] = Counter()
        self.task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        return self.groups.total() >= settings.REACH_MAX_WATCHERS

    def add(self, group: str) -> None:
        self.groups[group] += 1
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self.announce(), name="watchers")
        elif self.groups[group] == 1:
            self.stirred.set()

    def discard(self, group: str) -> None:
        self.groups[group] -= 1
        if not self.groups[group]:
            del self.groups[group]

    async def announce(self) -> None:
        self.stirred = asyncio.Event()
        while self.groups:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await get_channel_layer().group_send(WANTED, wanted(self.groups))
            except AWAY:
                pass  # said again soon
            self.stirred.clear()
            try:
                async with asyncio.timeout(WANTED_EVERY_S):
                    await self.stirred.wait()
            except TimeoutError:
                continue


watchers = Watchers()


BEAT = message([], at_most=0)
"""A message without calls."""


class TraceConsumer(AsyncWebsocketConsumer):
    """One browser that watches one trace, or all calls. It has nothing to say."""

    group: str | None = None
    allowed_at = 0.0
    beating: asyncio.Task[None] | None = None

    async def dispatch(self, message: MutableMapping[str, Any]) -> None:
        """As Channels does it, without a thread for database sessions at every message: we hold none."""
        handler: Callable[[Any], Any] = getattr(self, message["type"].replace(".", "_"))
        await handler(message)

    async def connect(self) -> None:
        if not await self.may_watch():
            await self.close(NOT_ALLOWED)
        elif watchers.full:
            await self.close(TOO_MANY)
        else:
            self.group = group_of(self.scope["url_route"]["kwargs"].get("trace_id"))
            await self.channel_layer.group_add(self.group, self.channel_name)
            watchers.add(self.group)
            await self.accept()
            self.beating = asyncio.create_task(self.beat(), name="beat of a watcher")

    async def disconnect(self, code: int) -> None:
        await self.leave()

    async def beat(self) -> None:
        """Tell the browser now and then that the line stands: a browser does not notice by itself when it does not."""
        while True:
            await asyncio.sleep(settings.REACH_LIVE_BEAT_S)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self.channel_layer.send(self.channel_name, BEAT)
            except AWAY:
                pass  # whose silence the browser then hears

    async def leave(self) -> None:
        if self.beating is not None:
            self.beating.cancel()
        if self.group is not None:
            group, self.group = self.group, None
            watchers.discard(group)
            await self.channel_layer.group_discard(group, self.channel_name)

    async def calls(self, event: dict[str, Any]) -> None:
        """What `receipts.trace` tells; the text is JSON already."""
        if self.group is None:
            return
        try:
            async with asyncio.timeout(settings.REACH_WATCHER_PATIENCE_S):
                if not await self.may_watch():
                    await self.leave()
                    await self.close(NOT_ALLOWED)
                else:
                    await self.send(text_data=event["text"])
        except TimeoutError:  # it does not read: nothing more is kept for it, and the server closes the connection
            await self.leave()
            raise StopConsumer from None

    async def may_watch(self) -> bool:
        """Whether the session still stands, and its user may see calls."""
        now = monotonic()
        if now - self.allowed_at > ASK_AGAIN_S or not self.allowed_at:
            if not await database_sync_to_async(may_see_calls)(self.scope["session"].session_key):
                return False
            self.allowed_at = now
        return True


def may_see_calls(session_key: str | None) -> bool:
    """Asks the database: a session that has ended, or a user who has lost a right, sees nothing more."""
    try:
        request = HttpRequest()
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
        user = get_user(request)
        return user.is_active and user.is_staff and user.has_perm("receipts.view_call")
    finally:
        give_back()


watched_paths = [
    re_path(r"^ws/calls$", TraceConsumer.as_asgi()),
    re_path(r"^ws/traces/(?P<trace_id>[0-9a-f]{32})$", TraceConsumer.as_asgi()),
]
