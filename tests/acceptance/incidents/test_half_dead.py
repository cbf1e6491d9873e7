"""5,000 calls while one of three nodes restarts half-dead: it accepts calls, says it is ready, and answers none."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.acceptance.agents import Agent, calls_where, registered
from tests.acceptance.incidents.callers import epoch_s, history_of, told
from tests.acceptance.incidents.report import Report
from tests.acceptance.instance import Instance
from tests.fakes import FakeNode, Invocation, OwnLoop, works

CALLS, RATE_PER_S = 5000, 125
WORK_S = 0.02
TIMEOUT_MS = 1500
DIES_AFTER, COMES_BACK_AFTER, RECOVERS_AFTER = 1250, 1375, 3500
"""Calls: it is gone for a second, then half-dead for 17 s."""
EXTRA_SHARE, EXTRA_FLOOR = 0.2, 10
"""Retries may be a fifth of the calls of a service, and this many every ten seconds whatever the calls."""
QUIET_P99_S = 0.1
"""On a busy machine: what is quicker than that is not worse for having been quicker still."""
FAILED_AT_MOST = 0.02
"""Of all calls: least_loaded soon avoids the node whose calls stay at work, the breaker then ends it."""
OPEN_S, REPORTED_WITHIN_S = 5.0, 0.3
"""How long a breaker stays open; how much earlier or later its history may say so."""
KINDS = ("idempotent", "plain")


@dataclass(slots=True)
class Told:
    """One call as its caller saw it."""

    kind: str
    at: float
    late_s: float
    """How much later than meant it was asked: by so much the machine held everybody up."""
    took_s: float
    status: int
    body: dict[str, Any]


@pytest.fixture
def reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("half-dead") / "home")
    try:
        yield instance.start()
    finally:
        instance.remove()


async def hangs(_invocation: Invocation) -> web.Response:
    await asyncio.sleep(10 * TIMEOUT_MS / 1000)
    return web.json_response({"output": "too late"})


@pytest.fixture
def agents(reach: Instance) -> Iterator[dict[str, Agent]]:
    """Three nodes of one service, with one capability that may run twice and one that may not."""
    offers = [
        {
            "name": f"half_dead_{kind}",
            "description": kind,
            "input": {},
            "output": {},
            "idempotent": kind == "idempotent",
        }
        for kind in KINDS
    ]
    made = {}
    try:
        for node_id in "abc":
            made[node_id] = registered(
                reach,
                FakeNode(works(WORK_S)),
                service_id="half-dead",
                node_id=node_id,
                capability="half_dead_plain",
                about_node={"capabilities": offers},
            )
        yield made
    finally:
        for agent in made.values():
            agent.leave()


@pytest.mark.timeout(240)
def test_a_node_that_restarts_half_dead(reach: Instance, agents: dict[str, Agent], report: Report) -> None:
    node = agents["a"].node
    moments = {}

    def happen(number: int) -> None:
        match number:
            case n if n == DIES_AFTER:
                moments["dies"] = report.note("a goes down")
                node.go_away()
            case n if n == COMES_BACK_AFTER:
                node.behave = hangs
                moments["returns"] = report.note("a is back, half-dead")
                node.come_back()
            case n if n == RECOVERS_AFTER:
                node.behave = works(WORK_S)
                moments["recovers"] = report.note("a works again")

    answers = ask_steadily(reach, report, happen)
    told(report, agents["a"])

    # None lost: every call was answered, and is written as it was answered.
    assert len(answers) == CALLS
    assert {one.status for one in answers} <= {200, 502, 503, 504}, Counter(one.status for one in answers)
    for kind in KINDS:
        written = Counter(call["status"] for call in calls_where(reach, capability=f"half_dead_{kind}"))
        assert written["accepted"] == written["running"] == 0, written
        assert written["succeeded"] == sum(one.kind == kind and one.status == 200 for one in answers)
        assert written.total() == CALLS / 2

    # None run twice that may not be; few more attempts than calls.
    runs = Counter(
        run.payload["n"]
        for agent in agents.values()
        for run in agent.node.invocations
        if run.payload["kind"] == "plain"
    )
    assert max(runs.values()) == 1
    attempts = sum(one.body.get("attempts", 1) - 1 for one in answers)
    spent_s = answers[-1].at - answers[0].at
    assert attempts <= EXTRA_SHARE * CALLS + EXTRA_FLOOR * spent_s / 10
    report.note(f"{attempts} extra attempts")

    # The others do not suffer, and hardly anybody waits for the one that is ill.
    healthy = [one for one in answers if one.body.get("node_id") in ("b", "c") and one.body["attempts"] == 1]
    before = p99([one.took_s for one in healthy if one.at < moments["dies"]])
    during = [one for one in healthy if moments["dies"] <= one.at < moments["recovers"]]
    meanwhile, late = p99([one.took_s for one in during]), p99([one.late_s for one in during])
    report.note(f"p99 of b and c: {before * 1000:.0f} ms before, {meanwhile * 1000:.0f} ms meanwhile")
    report.note(f"p99 of how late they were asked: {late * 1000:.0f} ms")
    assert meanwhile < 3 * max(before, QUIET_P99_S, late)
    failed = [one for one in answers if one.status != 200]
    report.note(f"{len(failed)} of {CALLS} calls failed: {dict(Counter(one.status for one in failed))}")
    assert len(failed) <= FAILED_AT_MOST * CALLS

    # Its breaker opens, and while it is open nothing is sent; later it is used again.
    ejected_at = next(epoch_s(change["at"]) for change in history_of(agents["a"]) if change["status"] == "ejected")
    asked = [run.received_at_millis / 1000 for run in node.invocations]
    assert moments["returns"] < ejected_at < moments["recovers"]
    assert not [at for at in asked if ejected_at + REPORTED_WITHIN_S < at < ejected_at + OPEN_S - REPORTED_WITHIN_S]
    assert report.total("a", since=moments["recovers"]) > 0


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100]


def ask_steadily(reach: Instance, report: Report, happen: Callable[[int], None]) -> list[Told]:
    """All calls, one every so often whatever becomes of the others; `happen` is told the number of each."""
    answers: list[Told] = []

    async def ask(session: aiohttp.ClientSession, number: int, late_s: float) -> None:
        kind = KINDS[number % 2]
        body = {"capability": f"half_dead_{kind}", "payload": {"n": number, "kind": kind}, "timeout_ms": TIMEOUT_MS}
        began, at = time.perf_counter(), time.time()
        async with session.post(f"{reach.url}/api/v1/dispatch", json=body) as answer:
            document = await answer.json(content_type=None)
        answers.append(Told(kind, at, late_s, time.perf_counter() - began, answer.status, document))
        report.count(document["node_id"] if answer.status == 200 else f"told {answer.status}")

    async def ask_all() -> None:
        loop = asyncio.get_running_loop()
        headers = {"Authorization": f"Bearer {reach.key}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(headers=headers, connector=connector) as session,
            asyncio.TaskGroup() as calls,
        ):
            at = loop.time()
            for number in range(CALLS):
                await asyncio.to_thread(happen, number)
                calls.create_task(ask(session, number, max(0.0, loop.time() - at)))
                at += 1 / RATE_PER_S
                await asyncio.sleep(at - loop.time())

    own = OwnLoop("steady callers")
    try:
        own.run(ask_all(), timeout_s=100)
    finally:
        own.close()
    return sorted(answers, key=lambda one: one.at)
