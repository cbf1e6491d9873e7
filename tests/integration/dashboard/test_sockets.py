"""The sockets of live pages: who may watch, what comes, and who is cut off."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from django.db import connections
from django.test import Client

from dashboard.consumers import watchers
from receipts.trace import LIVE, WANTED, group_of

pytestmark = pytest.mark.django_db(transaction=True)
TRACE = "c" * 32
OURS = (b"origin", b"http://127.0.0.1:8080")


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    yield
    await until(lambda: not watchers.groups)
    await get_channel_layer().flush()
    await sync_to_async(connections.close_all)()


async def until(found: Any) -> None:
    async with asyncio.timeout(10):
        while not found():
            await asyncio.sleep(0.01)


def session_of(*permissions: str, staff: bool = True) -> tuple[bytes, bytes]:
    """The cookie of somebody logged in."""
    from django.contrib.auth.models import Permission, User

    user = User.objects.create_user("olga", password="x", is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return b"cookie", f"sessionid={client.cookies['sessionid'].value}".encode()


class Watcher(ApplicationCommunicator):
    """A browser's socket, without the server between."""

    def __init__(self, path: str, *headers: tuple[bytes, bytes], application: Any = None):
        from reach_project import asgi

        scope = {"type": "websocket", "path": path, "headers": list(headers), "query_string": b"", "subprotocols": []}
        super().__init__(application or asgi.application, scope)

    async def is_let_in(self) -> bool:
        await self.send_input({"type": "websocket.connect"})
        answer = await self.receive_output(timeout=10)
        return answer["type"] == "websocket.accept"

    async def leave(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(timeout=10)


async def test_who_may_see_calls_watches_them():
    cookie = await sync_to_async(session_of)("view_call")
    for path, group in (("/ws/calls", LIVE), (f"/ws/traces/{TRACE}", group_of(TRACE))):
        watcher = Watcher(path, OURS, cookie)
        assert await watcher.is_let_in()
        await get_channel_layer().group_send(group, {"type": "calls", "text": '{"calls": []}'})
        assert await watcher.receive_output(timeout=10) == {"type": "websocket.send", "text": '{"calls": []}'}
        await watcher.leave()


@pytest.mark.parametrize("who", ["nobody", "a stranger's page", "no permission", "no staff"])
async def test_nobody_else_does(who: str):
    made = await sync_to_async(session_of)(*(() if who == "no permission" else ("view_call",)), staff=who != "no staff")
    headers = {"nobody": [OURS], "a stranger's page": [(b"origin", b"http://evil.test"), made]}.get(who, [OURS, made])
    watcher = Watcher("/ws/calls", *headers)
    assert not await watcher.is_let_in()


async def test_other_paths_are_refused():
    watcher = Watcher("/ws/secrets", OURS, await sync_to_async(session_of)("view_call"))
    assert not await watcher.is_let_in()


async def test_watchers_make_themselves_known_while_there_are_any():
    layer = get_channel_layer()
    publisher = await layer.new_channel()
    await layer.group_add(WANTED, publisher)
    watcher = Watcher("/ws/calls", OURS, await sync_to_async(session_of)("view_call"))
    assert await watcher.is_let_in()
    assert await layer.receive(publisher) == {"type": "wanted", "groups": [LIVE]}
    await watcher.leave()
    await until(lambda: watchers.task is not None and watchers.task.done())


async def test_a_session_that_has_ended_sees_nothing_more(monkeypatch: pytest.MonkeyPatch):
    from django.contrib.sessions.models import Session

    from dashboard import consumers

    monkeypatch.setattr(consumers, "ASK_AGAIN_S", 0.0)
    watcher = Watcher("/ws/calls", OURS, await sync_to_async(session_of)("view_call"))
    assert await watcher.is_let_in()
    await sync_to_async(Session.objects.all().delete)()
    await get_channel_layer().group_send(LIVE, {"type": "calls", "text": "secret"})
    assert await watcher.receive_output(timeout=10) == {"type": "websocket.close", "code": 4403}
    assert LIVE not in watchers.groups


async def test_no_more_than_so_many_watch(settings: Any):
    settings.REACH_MAX_WATCHERS = 1
    cookie = await sync_to_async(session_of)("view_call")
    first, second = Watcher("/ws/calls", OURS, cookie), Watcher("/ws/calls", OURS, cookie)
    assert await first.is_let_in()
    assert not await second.is_let_in()
    await first.leave()


async def test_a_browser_that_does_not_read_is_cut_off(settings: Any):
    from reach_project.asgi import application

    settings.REACH_WATCHER_PATIENCE_S = 0.1
    cookie = await sync_to_async(session_of)("view_call")
    accepted = asyncio.Event()

    async def deaf(given: Any, receive: Any, _send: Any) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "websocket.accept":
                accepted.set()
            else:
                await asyncio.sleep(3600)

        await application(given, receive, send)

    watcher = Watcher("/ws/calls", OURS, cookie, application=deaf)
    await watcher.send_input({"type": "websocket.connect"})
    await asyncio.wait_for(accepted.wait(), 10)
    for _ in range(50):
        await get_channel_layer().group_send(LIVE, {"type": "calls", "text": "x"})
    await watcher.wait(timeout=10)
    assert LIVE not in watchers.groups
    assert LIVE not in get_channel_layer().groups
