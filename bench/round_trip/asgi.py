"""The producer of the Celery contestant: a bare ASGI service that enqueues a task and waits for its result.

Celery's client blocks, so each waiting request has a thread, as under any threaded server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.round_trip.app import ask_node

TIMEOUT_S = 10
threads = ThreadPoolExecutor(max_workers=64)
HEADERS = [(b"content-type", b"application/json")]


def round_trip(body: str) -> str:
    return ask_node.delay(body).get(timeout=TIMEOUT_S)


async def application(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = await asyncio.get_running_loop().run_in_executor(threads, round_trip, body.decode())
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": answer.encode()})
