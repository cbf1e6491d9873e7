"""The ASGI application: the lean handler for hot bearer requests, stock Django for all else, and the lifespan."""

import asyncio
import gc
import logging
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any
from uuid import UUID

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "reach_project.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # sets Django up: what follows imports models

# ruff: noqa: E402
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from channels.sessions import SessionMiddlewareStack
from django.conf import settings
from django.urls import re_path

from dashboard.consumers import watched_paths
from reach_project import health, metrics, tracing
from reach_project.lean import (
    REFUSED,
    ClientGone,
    Receive,
    Scope,
    Send,
    answer,
    headers_of_every_answer,
    lean,
    read_body,
    refused_body,
    request_id_of,
)
from receipts import waiting
from registry import refusals
from registry.api import HeartbeatView
from registry.errors import Unavailable
from routing import live
from routing.api import DispatchView, ExplainView, ReceiptsView
from routing.events import EventsView, WaitView

log = logging.getLogger(__name__)

STORE_REFUSALS_EVERY_S = 10.0
COUNT_WHAT_WAITS_EVERY_S = 10.0
SNAPSHOT_STALE_AFTER_S = 10.0
FIRST_TABLES_S = 5.0

View = Callable[..., Coroutine[Any, Any, Any]]
HOT: dict[str, View] = {
    "/api/v1/dispatch": DispatchView.as_view(),
    "/api/v1/dispatch/explain": ExplainView.as_view(),
    "/metrics": metrics.MetricsView.as_view(),  # lean, so that it answers while the database is away
}
HOT_OF_A_CALL: dict[str, View] = {
    "receipts": ReceiptsView.as_view(),
    "wait": WaitView.as_view(),
    "events": EventsView.as_view(),
}
UUID_TEXT = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
OF_A_CALL = re.compile(rf"/api/v1/calls/({UUID_TEXT})/({'|'.join(HOT_OF_A_CALL)})")
HEARTBEAT: View = HeartbeatView.as_view()
OF_A_NODE = re.compile(r"/api/v1/services/([a-z0-9][a-z0-9_.-]*)/nodes/([a-z0-9][a-z0-9_.-]*)/heartbeat")


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Dispatch by protocol and path."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "http":
        found = hot_view(scope)
        if found is not None:
            await lean(scope, receive, send, *found)
        else:
            await stock(scope, receive, send)
    elif scope["type"] == "websocket":
        await sockets(scope, receive, send)


async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "websocket.close", "code": 4404})


def watching() -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Live pages: from our own pages only, for who is logged in to this process's admin."""
    if settings.REACH_ROLE == "dispatcher":
        return refuse
    routes = URLRouter([*watched_paths, re_path("", refuse)])  # type: ignore[arg-type]  # an ASGI application, as Channels routes them
    return AllowedHostsOriginValidator(SessionMiddlewareStack(routes))


sockets = watching()


def hot_view(scope: Scope) -> tuple[View, dict[str, Any]] | None:
    """The view of a hot endpoint when the request carries a bearer key; None sends it through stock Django."""
    path = scope["path"]
    view = HOT.get(path)
    kwargs: dict[str, Any] = {}
    if view is None:
        if (found := OF_A_CALL.fullmatch(path)) is not None:
            view, kwargs = HOT_OF_A_CALL[found[2]], {"call_id": UUID(found[1])}
        elif (found := OF_A_NODE.fullmatch(path)) is not None:
            view, kwargs = HEARTBEAT, {"service_id": found[1], "node_id": found[2]}
        else:
            return None
    bearer = any(name == b"authorization" for name, _value in scope["headers"])
    return (view, kwargs) if bearer else None


async def stock(scope: Scope, receive: Receive, send: Send) -> None:
    """Stock Django behind a bounded body, with X-Request-Id on every answer."""
    request_id = request_id_of(scope)

    async def send_with_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers_of_every_answer(request_id)]}
        await send(message)

    try:
        body = await read_body(receive, limit=settings.REACH_MAX_BODY_BYTES, timeout_s=settings.REACH_BODY_TIMEOUT_S)
    except ClientGone:
        return
    except REFUSED as exc:
        await answer(send, refused_body(exc), request_id)
        return
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_read() -> Any:
        return given.pop() if given else await receive()

    await django_application(dict(scope), receive_read, send_with_id)


COLLECT_AFTER = (10_000, 20, 20)
"""Python's own 700 means a collection for every other call, which finds nothing: what a call leaves behind has no
cycles, and goes by counting. With 10,000 a call costs 6 to 19 % less CPU (c=16, 64), and no process grows by it."""


async def lifespan(receive: Receive, send: Send) -> None:
    """Start the live parts before the first request, stop them after the last."""
    await receive()
    parts = await live.start_parts(settings.REACH_ROLE)
    live.current = parts
    await first_tables(parts)
    metrics.start(settings.REACH_ROLE)
    tracing.start(settings.REACH_ROLE)
    health.parts["snapshot"] = lambda: snapshot_trouble(parts)
    health.start()
    background = [asyncio.create_task(store_refusals(parts))]
    if settings.REACH_ROLE != "dispatcher":
        background.append(asyncio.create_task(count_what_waits(parts)))
    gc.collect()
    gc.freeze()  # what is loaded by now stays: no collection has to walk it again while calls wait
    gc.set_threshold(*COLLECT_AFTER)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    health.stop()
    metrics.stop()
    live.current = None
    for task in background:
        task.cancel()
    await parts.stop()
    await asyncio.to_thread(tracing.stop)
    await send({"type": "lifespan.shutdown.complete"})


async def first_tables(parts: live.LiveParts) -> None:
    """Listen to nobody before the tables are there, where the database can give them: no call is refused for it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_TABLES_S):
            while parts.snapshot.tables is None:
                await asyncio.sleep(0.01)


def snapshot_trouble(parts: live.LiveParts) -> str | None:
    if parts.snapshot.tables is None:
        return "not loaded yet"
    age_s = parts.snapshot.age_s()
    return f"last known to be current {age_s:.0f} s ago" if age_s > SNAPSHOT_STALE_AFTER_S else None


async def count_what_waits(parts: live.LiveParts) -> None:
    """Ask the database now and then what waits, for the metrics: a scrape asks it nothing."""
    while True:
        try:
            metrics.what_waits = await waiting.count_what_waits(parts.journal)
        except Unavailable:
            metrics.what_waits = None
        await asyncio.sleep(COUNT_WHAT_WAITS_EVERY_S)


async def store_refusals(parts: live.LiveParts) -> None:
    """Bring this process's counts of refusals to the database now and then; what cannot be stored is only a count."""
    while True:
        await asyncio.sleep(STORE_REFUSALS_EVERY_S)
        if rows := refusals.taken():
            try:
                await parts.journal.read(refusals.store_sql, *refusals.columns(rows))
            except Unavailable:
                log.warning("%d counts of refusals were lost: the database is away", len(rows))
