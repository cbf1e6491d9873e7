"""The waiting room of an engine: who is placed, in which order, and how few looks that takes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from time import thread_time
from typing import Any, cast

import pytest
import uuid_utils.compat as uuids

from receipts.core.journey import Journey
from registry.clock import now_millis
from routing.core.plan import Policy, Stop
from routing.core.tables import Tables
from routing.dispatch import Parked
from routing.health import NodeLoad
from tests.factories import a_journey, a_node, an_envelope, an_offer, tables


class KnownCalls:
    """A journal in whose calls nobody else writes."""

    def following(self, _call_id: str, _moved: Callable[[], None]) -> Any:
        from contextlib import nullcontext

        return nullcontext()


class Parts:
    """What a room needs of the live parts."""

    def __init__(self, known: Tables):
        from random import Random

        self.tables, self.load, self.policy, self.chance = known, NodeLoad(decay_s=10), Policy(), Random(1)
        self.journal = KnownCalls()


@pytest.fixture
async def make_room() -> AsyncIterator[Callable[..., Any]]:
    from routing.waiting_room import WaitingRoom

    running: list[asyncio.Task[None]] = []

    def make(*nodes: Any, **facts: Any) -> Any:
        limits = {"places": 100, "held_at_most": 1000, "held_of_kind": 100, "poll_s": 0.25, "cpu_s": thread_time}
        limits |= facts
        room = WaitingRoom(cast(Any, Parts(tables(*nodes, known=("file_summary", "ocr", *"abcde")))), **limits)
        running.append(asyncio.create_task(room.run()))
        return room

    yield make
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def a_call(n: int = 0, *, timeout_ms: int = 60_000, **envelope: Any) -> Journey:
    now = now_millis()
    asked = an_envelope(payload={"n": n}, received_at_millis=now, is_async=True, **envelope)
    return replace(a_journey(asked), call_id=uuids.uuid7(), deadline_millis=now + timeout_ms)


async def entered(room: Any, *journeys: Journey) -> list[asyncio.Task[Any]]:
    """They ask for a place, one after the other."""
    tasks = []
    for journey in journeys:
        tasks.append(asyncio.create_task(room.place(Parked(journey))))
        await asyncio.sleep(0)
    return tasks


def number_of(placed: Any) -> int:
    return placed.journey.envelope.payload["n"]


async def test_a_free_node_takes_them_at_once(make_room: Callable[..., Any]) -> None:
    room = make_room(a_node())
    placed = await asyncio.gather(*await entered(room, *(a_call(n) for n in range(5))))
    assert [number_of(one) for one in placed] == list(range(5))
    assert room.parts.load.in_flight(("summarizer", "n1")) == 5
    assert (room.count, room.taken) == (0, 5)


async def test_a_full_one_as_places_come_free(make_room: Callable[..., Any]) -> None:
    room = make_room(a_node(max_concurrency=1))
    tasks = await entered(room, *(a_call(n) for n in range(3)))
    for n, task in enumerate(tasks):
        placed = await asyncio.wait_for(task, 5)
        assert number_of(placed) == n
        assert not any(later.done() for later in tasks[n + 1 :])
        room.parts.load.release(placed.attempt.chosen.node.key)
        room.leave(placed)


async def test_the_urgent_first_then_capabilities_in_turn(make_room: Callable[..., Any]) -> None:
    room = make_room()
    both = an_offer("file_summary"), an_offer("ocr")
    calls = [
        a_call(0, urgency="bulk"),
        a_call(1),
        a_call(2),
        a_call(3, capability="ocr"),
        a_call(4, urgency="interactive"),
        a_call(5, capability="ocr"),
    ]
    tasks = await entered(room, *calls)
    order: list[int] = []
    for task in tasks:
        task.add_done_callback(lambda done: order.append(number_of(done.result())))
    await asyncio.sleep(0.05)  # nobody is there
    assert not order
    room.parts.tables = tables(a_node("a", *both))
    room.moved.set()
    await asyncio.gather(*tasks)
    assert order == [4, 1, 3, 2, 5, 0]


async def test_calls_that_are_refused_alike_cost_one_look(
    make_room: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from routing import waiting_room

    room = make_room(a_node(max_concurrency=0), held_of_kind=1000)
    decided = 0

    def decide(journey: Journey, parts: Any) -> Any:
        nonlocal decided
        decided += 1
        return real(journey, parts)

    real = waiting_room.decide
    monkeypatch.setattr(waiting_room, "decide", decide)
    tasks = await entered(room, *(a_call(n) for n in range(500)))
    await asyncio.sleep(0.3)
    before = decided
    for _ in range(20):
        room.moved.set()
        await asyncio.sleep(0.02)
    print(f"{before} looks to learn of 500 calls, {decided - before} more while 20 things moved")
    assert decided - before < 500
    for task in tasks:
        task.cancel()


async def test_the_deadline_is_its_end(make_room: Callable[..., Any]) -> None:
    room = make_room()
    [task] = await entered(room, a_call(timeout_ms=150))
    end = await asyncio.wait_for(task, 5)
    assert isinstance(end, Stop) and end.ending.code == "no_available_node"


async def test_an_engine_full_of_one_capability_takes_another(make_room: Callable[..., Any]) -> None:
    both = an_offer("file_summary"), an_offer("ocr")
    room = make_room(a_node("a", *both), places=10)
    many = await entered(room, *(a_call(n) for n in range(20)))
    await asyncio.sleep(0.05)
    assert sum(task.done() for task in many) == 8, "four fifths"
    [other] = await entered(room, a_call(99, capability="ocr"))
    assert number_of(await asyncio.wait_for(other, 5)) == 99
    for task in many:
        task.cancel()


async def test_what_rests_is_not_placed_before(make_room: Callable[..., Any]) -> None:
    room = make_room(a_node())
    due = now_millis() + 200
    await asyncio.wait_for(room.place(Parked(a_call(), due)), 5)
    assert now_millis() >= due


async def test_a_closed_room_gives_all_back(make_room: Callable[..., Any]) -> None:
    from routing.waiting_room import Left

    room = make_room()
    tasks = await entered(room, a_call(), a_call())
    room.close()
    assert await asyncio.gather(*tasks) == [Left.GIVEN_BACK] * 2
    assert room.room() == 0


async def test_however_many_capabilities_wait_there_is_room_for_the_next_one(make_room: Callable[..., Any]) -> None:
    room = make_room(held_at_most=100, held_of_kind=40)
    held: dict[str, int] = {}
    for kind in ("a", "b", "c", "d", "e"):
        while room.rooms().get(kind, room.window) > 0:
            await entered(room, a_call(capability=kind))
            held[kind] = held.get(kind, 0) + 1
    print(f"held of each: {held}")
    assert held["a"] == held["b"] == 40 and all(held[kind] > 0 for kind in "abcd")
    assert room.is_crowded
