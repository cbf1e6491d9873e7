"""Reads of one kind that share a statement: while one is under way, the next ones gather."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from registry.errors import Unavailable

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class Gathered(Generic[Key, Found]):
    """However many ask at once, one of them has a connection, and the others are answered by the next statement."""

    def __init__(
        self, read: Callable[[Sequence[Key]], Coroutine[Any, Any, Mapping[Key, Found]]], *, most: int, answer_s: float
    ):
        """`read` looks up so many keys at the most, and may leave out what it does not find."""
        self.read, self.most, self.answer_s = read, most, answer_s
        self.asked: dict[Key, list[asyncio.Future[Found | None]]] = {}
        self.task: asyncio.Task[None] | None = None

    async def __call__(self, key: Key) -> Found | None:
        """What is found under a key. Raises what `read` raises, and Unavailable when it does not answer in time."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Found | None] = loop.create_future()
        self.asked.setdefault(key, []).append(told)
        if self.task is None:
            self.task = loop.create_task(self.answer())
        return await told

    async def answer(self) -> None:
        """Read until nobody waits."""
        try:
            while self.asked:
                keys = list(islice(self.asked, self.most))
                waiting = {key: self.asked.pop(key) for key in keys}
                found: Mapping[Key, Found] | Exception
                try:
                    found = await in_time(self.read(keys), self.answer_s)
                except Exception as exc:  # whatever it is, those who wait must hear of it
                    found = exc
                async for key, told in by_turns([(key, told) for key, those in waiting.items() for told in those]):
                    if told.done():
                        continue
                    if isinstance(found, Exception):
                        told.set_exception(found)
                    else:
                        told.set_result(found.get(key))
        finally:
            self.task = None


TURN = 50
"""So many are woken by one turn of the loop: calls come in between, however many wait for the same thing."""


async def by_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a turn of the loop after every few."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % TURN == 0:
            await asyncio.sleep(0)


async def in_time(read: Coroutine[Any, Any, T], answer_s: float) -> T:
    """What a read brings. Raises Unavailable when that takes longer: a line that went dead says nothing for minutes.

    The read is left to itself then, since to cancel it is to wait for the database as well.
    """
    task = asyncio.ensure_future(read)
    try:
        done, _late = await asyncio.wait({task}, timeout=answer_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody is left to hear of it
        raise Unavailable()
    return task.result()
