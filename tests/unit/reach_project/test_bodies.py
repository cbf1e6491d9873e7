"""What a process holds of bodies that are still coming in is bounded."""

import asyncio
from typing import Any

import pytest

from reach_project.lean import Incoming, TooManyBodies, read_body

CHUNK = b"x" * 1000


def arriving(chunks: int, then: asyncio.Event) -> Any:
    """A body whose last chunk comes when the event is set."""
    left = [CHUNK] * chunks

    async def receive() -> dict[str, Any]:
        if len(left) == 1:
            await then.wait()
        return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

    return receive


async def test_more_than_that_is_refused_and_what_was_taken_is_given_back(settings: Any) -> None:
    settings.REACH_MAX_BYTES_IN_FLIGHT = 10 * len(CHUNK)
    then = asyncio.Event()
    waiting = [asyncio.create_task(read_body(arriving(5, then), limit=10**6, timeout_s=10)) for _ in range(2)]
    while Incoming.held < 8 * len(CHUNK):
        await asyncio.sleep(0)
    with pytest.raises(TooManyBodies):
        await read_body(arriving(5, then), limit=10**6, timeout_s=10)
    assert Incoming.held == 8 * len(CHUNK)
    then.set()
    assert [len(body) for body in await asyncio.gather(*waiting)] == [5 * len(CHUNK)] * 2
    assert Incoming.held == 0


async def test_one_alone_may_not_take_it_all(settings: Any) -> None:
    settings.REACH_MAX_BYTES_IN_FLIGHT = 3 * len(CHUNK)
    then = asyncio.Event()
    then.set()
    with pytest.raises(TooManyBodies):
        await read_body(arriving(9, then), limit=10**6, timeout_s=10)
    assert Incoming.held == 0
