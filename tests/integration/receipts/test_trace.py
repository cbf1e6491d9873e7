"""What watchers are told of calls: a few messages, however many calls, and no call waits for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from channels.layers import InMemoryChannelLayer

from receipts import journal as journals
from receipts.journal import Journal
from receipts.trace import LIVE, WANTED, Publisher, group_of, wanted
from tests.integration.receipts.conftest import MakeJournal, a_call, a_move, an_end, opening

INTERVAL_S = 0.1
TRACE = "c" * 32


class Layer(InMemoryChannelLayer):
    """An in-memory layer that remembers what it was given, and may hang."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.hangs = False

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        if self.hangs:
            await asyncio.sleep(3600)
        if group != WANTED:
            self.sent.append((group, json.loads(message["text"])))
        await super().group_send(group, message)

    def shown(self, group: str = LIVE) -> list[str]:
        """The calls that a group was told of, in order."""
        return [call["call_id"] for to, told in self.sent if to == group for call in told["calls"]]


NewPublisher = Callable[..., Awaitable[Publisher]]


@pytest.fixture
async def new_publisher(journal: Journal) -> AsyncIterator[NewPublisher]:
    made: list[Publisher] = []

    async def make(layer: Layer, *, watched: tuple[str, ...] = (), calls_at_most: int = 100) -> Publisher:
        publisher = Publisher(layer, journal.read, interval_s=INTERVAL_S, calls_at_most=calls_at_most, retry_s=0.05)
        publisher.start()
        journals.written.append(publisher.note)
        made.append(publisher)
        if watched:
            await until(lambda: bool(layer.groups.get(WANTED)))
            await layer.group_send(WANTED, wanted(watched))
            await until(lambda: publisher.wanted.keys() == set(watched))
        return publisher

    yield make
    for publisher in made:
        journals.written.remove(publisher.note)
        await publisher.stop()


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not found():
            await asyncio.sleep(0.01)


async def test_nothing_is_told_or_kept_while_nobody_watches(new_publisher: NewPublisher, journal: Journal):
    publisher = await new_publisher(layer := Layer())
    await journal.accept(*opening(a_call(journal)))
    await asyncio.sleep(3 * INTERVAL_S)
    assert (layer.sent, list(publisher.noted)) == ([], [])


async def test_a_call_is_told_of_as_it_stands(new_publisher: NewPublisher, journal: Journal):
    await new_publisher(layer := Layer(), watched=(LIVE,))
    await journal.accept(*opening(row := a_call(journal)))
    await until(lambda: layer.shown() == [row.id])
    assert layer.sent[0][1]["calls"][0]["status"] == "running"
    await journal.move(*an_end(row))
    await until(lambda: layer.shown() == [row.id, row.id])
    told = layer.sent[-1][1]["calls"][0]
    assert (told["status"], told["capability"], told["error_code"]) == ("succeeded", "file_summary", None)
    assert told["ended_at"] > told["accepted_at"]


async def test_many_calls_are_one_message(new_publisher: NewPublisher, journal: Journal):
    await new_publisher(layer := Layer(), watched=(LIVE,), calls_at_most=10)
    rows = [a_call(journal) for _ in range(200)]
    await asyncio.gather(*(journal.accept(*opening(row)) for row in rows))
    await asyncio.gather(*(journal.move(*an_end(row)) for row in rows))
    await until(lambda: sum(len(told["calls"]) + told["left_out"] for _, told in layer.sent) >= 200)
    assert len(layer.sent) <= 20, "400 writes came to a few messages"
    assert all(len(told["calls"]) <= 10 for _, told in layer.sent)


async def test_who_watches_a_trace_hears_of_it_alone(new_publisher: NewPublisher, journal: Journal):
    await new_publisher(layer := Layer(), watched=(group_of(TRACE),))
    other, mine = a_call(journal), a_call(journal, trace_id=TRACE)
    await journal.accept(*opening(other))
    await journal.accept(*opening(mine))
    await until(lambda: layer.shown(group_of(TRACE)) == [mine.id])
    assert {group for group, _told in layer.sent} == {group_of(TRACE)}


async def test_another_process_s_writes_are_told_by_it(new_publisher: NewPublisher, new_journal: MakeJournal):
    """A thread of this process may be that other one: an engine beside the server."""
    await new_publisher(layer := Layer(), watched=(LIVE,))
    other = await new_journal()
    await other.accept(*opening(row := a_call(other)))
    await until(lambda: row.id in layer.shown())


async def test_a_layer_that_hangs_holds_no_call_up(new_publisher: NewPublisher, journal: Journal):
    publisher = await new_publisher(layer := Layer(), watched=(LIVE,))
    layer.hangs = True
    async with asyncio.timeout(10):
        for _ in range(20):
            await journal.accept(*opening(row := a_call(journal)))
            await journal.move(*an_end(row))
    layer.hangs = False
    await journal.accept(*opening(last := a_call(journal)))
    await until(lambda: last.id in layer.shown())
    assert len(publisher.noted) <= 1


async def test_a_crowd_is_bounded(new_publisher: NewPublisher, journal: Journal):
    from receipts.trace import GROUPS_AT_MOST, NOTED_AT_MOST

    publisher = await new_publisher(layer := Layer(), watched=(LIVE,))
    publisher.want(f"trace.{number:032x}" for number in range(10_000))
    assert len(publisher.wanted) == GROUPS_AT_MOST
    await publisher.stop()
    item = type("Item", (), {"row": a_move(a_call(journal))[0]})()
    publisher.note([item] * (NOTED_AT_MOST + 100))
    assert len(publisher.noted) == NOTED_AT_MOST
    assert layer.sent == []


async def test_watchers_that_have_gone_are_told_nothing(new_publisher: NewPublisher, journal: Journal):
    publisher = await new_publisher(layer := Layer(), watched=(LIVE,))
    publisher.wanted[LIVE] = 0.0  # long ago
    await until(lambda: not publisher.wanted)
    await journal.accept(*opening(a_call(journal)))
    await asyncio.sleep(3 * INTERVAL_S)
    assert (layer.sent, list(publisher.noted)) == ([], [])
