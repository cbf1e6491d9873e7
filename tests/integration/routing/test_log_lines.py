"""What is logged while a call is carried belongs to it."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import FakeNode
from tests.integration.routing.test_hot_path import CALL, Reach, Traps, node, on_the_loop_of_production, reach, traps

__all__ = ["node", "reach", "traps"]
pytestmark = pytest.mark.django_db(transaction=True)


class Chatty:
    """An observer that logs a line a call and a line an attempt."""

    log = logging.getLogger("tests.chatty")

    def attempted(self, *_facts: Any) -> None:
        self.log.warning("attempted")

    def ended(self, *_facts: Any) -> None:
        self.log.warning("ended")


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What has been logged, as JSON."""
    from reach_project.logs import formatter
    from routing import observing

    lines: list[dict[str, Any]] = []
    handler = logging.Handler()
    handler.setFormatter(formatter("json"))
    handler.emit = lambda record: lines.append(json.loads(handler.format(record)))  # type: ignore[method-assign]
    chatty = Chatty()
    Chatty.log.addHandler(handler)
    observing.observers.append(chatty)
    yield lines
    observing.observers.remove(chatty)
    Chatty.log.removeHandler(handler)


def test_each_line_names_its_call(reach: Reach, traps: Traps, node: FakeNode, lines: list[dict[str, Any]]) -> None:
    async def journey() -> Any:
        return await asyncio.gather(*(asyncio.ensure_future(reach("POST", "dispatch", CALL)) for _ in range(20)))

    answers = [body for _status, body in on_the_loop_of_production(traps, journey)]
    told = {(line["call_id"], line["trace_id"]) for line in lines}
    assert told == {(body["call_id"], body["trace_id"]) for body in answers}
    assert sorted(line["event"] for line in lines) == ["attempted"] * 20 + ["ended"] * 20
