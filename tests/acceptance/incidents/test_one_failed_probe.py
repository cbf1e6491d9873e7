"""A probe that fails once removes nobody: it is asked again, and its calls go on."""

import asyncio
from collections.abc import Iterator

import pytest
from aiohttp import web

from tests.acceptance.agents import Agent, registered
from tests.acceptance.incidents.callers import Callers, told
from tests.acceptance.incidents.report import Report
from tests.acceptance.instance import Instance, wait_until
from tests.fakes import FakeNode, works

HANGS_S = 3.0
"""Longer than a probe waits."""


class ShakyNode(FakeNode):
    """Its readiness fails once, in its own way, when it is told to."""

    def __init__(self, way: str, report: Report):
        self.way, self.report, self.fails_next = way, report, False
        self.failed_at = 0.0
        self.proven = 0
        """So often since it failed."""
        super().__init__(works(0.02))

    async def _ready(self, request: web.Request) -> web.Response:
        if not self.fails_next:
            self.proven += 1
            self.report.count(f"{self.way}: proven")
            return await super()._ready(request)
        self.fails_next, self.proven = False, 0
        self.failed_at = self.report.note(f"the probe of {self.way} fails")
        if self.way == "hangs":
            await asyncio.sleep(HANGS_S)
        return web.json_response({"ready": False, "reason": "a moment"}, status=500 if self.way == "breaks" else 200)


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("shaky") / "home", {"REACH_PROBE_INTERVAL_S": "2"})
    try:
        yield instance.start()
    finally:
        instance.remove()


def test_a_probe_that_fails_once(reach: Instance, report: Report) -> None:
    nodes = {way: ShakyNode(way, report) for way in ("breaks", "hangs", "denies")}
    agents: list[Agent] = []
    try:
        for way, node in nodes.items():
            agents.append(registered(reach, node, service_id="shaky", node_id=way, capability="shaky_task"))
        with Callers(reach, "shaky_task", report, threads=3, name="calls of ") as callers:
            for way, node in nodes.items():
                report.wait_for(f"calls of {way}", 5)
                node.fails_next = True
            # The next regular turn fails; two good ones after it, calls all the time.
            wait_until(
                lambda: all(node.failed_at and node.proven >= 2 for node in nodes.values()), "all are proven", 30
            )
        statuses = {agent.node_id: told(report, agent) for agent in agents}
    finally:
        for agent in agents:
            agent.leave()
    for way, node in nodes.items():
        assert report.total(f"calls of {way}", since=node.failed_at) >= 20, "it was called all the time"
    assert all(seen == ["starting", "ready"] for seen in statuses.values()), statuses
    assert {answer.status for answer in callers.answers} == {200}
    assert {answer.json["attempts"] for answer in callers.answers} == {1}
