"""Receipts on their way: in order, bounded, and not for ever."""

import asyncio
import contextlib
import json

import pytest

from agent_reach import Unreachable, _wire
from agent_reach._memory import Memory
from agent_reach._outbox import Delivery, Outbox, Receipt
from agent_reach.errors import Conflict, Forbidden, PayloadTooLarge, Unauthenticated, Unavailable


class Line:
    """What Agent-Reach would say to each receipt; `down` says that it is away."""

    def __init__(self):
        self.answers: list[Exception] = []
        self.down = False
        self.taken: list[dict] = []

    async def ask(self, request: _wire.Request):
        if self.down:
            raise Unreachable("away")
        if self.answers:
            raise self.answers.pop(0)
        self.taken.append(json.loads(request.body))


def a_receipt(number=1, *, is_last=False, call_id="c"):
    body = _wire.success(number).receipt(1) if is_last else _wire.running_receipt(1, message=str(number))
    return Receipt(call_id, 1, body, is_last)


@pytest.fixture
def line():
    return Line()


@contextlib.asynccontextmanager
async def delivering(outbox: Outbox):
    task = asyncio.create_task(outbox.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_waits_is_delivered_in_order(line):
    outbox = Outbox(line.ask)
    line.down = True
    for number in range(3):
        assert await outbox.post(a_receipt(number)) is Delivery.AWAY
    await outbox.post(a_receipt(3, is_last=True))
    line.down = False
    await outbox.post(a_receipt(4))  # joins the queue, does not overtake
    async with delivering(outbox):
        assert await outbox.emptied(5)
    assert [taken.get("message", taken.get("output")) for taken in line.taken] == ["0", "1", "2", 3, "4"]


@pytest.mark.parametrize("refusal", [Conflict("over", status=409), Forbidden("not yours", status=403)], ids=str)
async def test_a_refused_receipt_is_dropped(line, refusal):
    outbox = Outbox(line.ask)
    line.answers = [refusal]
    assert await outbox.post(a_receipt()) is Delivery.REFUSED
    assert len(outbox) == 0


@pytest.mark.parametrize("passing", [Unavailable("db", status=503), Unauthenticated("key", status=401)], ids=str)
async def test_what_may_pass_is_kept(line, passing):
    outbox = Outbox(line.ask)
    line.answers = [passing]
    assert await outbox.post(a_receipt()) is Delivery.AWAY
    assert len(outbox) == 1


async def test_too_many_cost_progress_before_results(line):
    outbox = Outbox(line.ask, max_kept=2)
    line.down = True
    await outbox.post(a_receipt(1, is_last=True))
    await outbox.post(a_receipt(2))
    await outbox.post(a_receipt(3, is_last=True))
    line.down = False
    async with delivering(outbox):
        assert await outbox.emptied(5)
    assert [taken["output"] for taken in line.taken] == [1, 3]


async def test_a_heartbeat_is_not_kept(line):
    outbox = Outbox(line.ask)
    line.down = True
    assert await outbox.beat("c", 1) is Delivery.AWAY
    assert len(outbox) == 0


async def test_a_result_too_large_for_a_receipt_ends_the_call_all_the_same(line):
    outbox = Outbox(line.ask)
    line.answers = [PayloadTooLarge("too large", status=413)]
    await outbox.post(a_receipt(1, is_last=True))
    assert line.taken[0]["kind"] == "failed" and line.taken[0]["error"]["code"] == "result_too_large"


# --- Memory ----------------------------------------------------------------------------------------------------------


def test_memory_forgets_the_oldest_first():
    memory = Memory(max_entries=2)
    endings = [_wire.success(number) for number in range(3)]
    for number, ending in enumerate(endings):
        memory.remember(number, ending)
    assert [memory.recall(number) for number in range(3)] == [None, endings[1], endings[2]]


def test_memory_is_bounded_in_bytes():
    memory = Memory(max_bytes=100)
    for number in range(10):
        memory.remember(number, _wire.success("x" * 40))
    assert sum(memory.recall(number) is not None for number in range(10)) == 1
