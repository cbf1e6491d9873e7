"""`kill -9` of everything in the middle of mixed traffic: no call is ever without a traceable ending.

Judged from outside only: what the callers were told, what the nodes were asked, and what the receipts say.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.acceptance.agents import TERMINAL, Agent, NewAgent, calls_where, receipts_of
from tests.acceptance.instance import Instance, wait_until
from tests.fakes import Invocation

CALLERS = 48
BEFORE_S, AFTER_S = 3.0, 2.0
LONG_MS, SHORT_MS = 30_000, 1_500
PLAIN_MS = 8_000
"""What may not be repeated and cannot report waits until then."""


@dataclass(slots=True)
class Asked:
    """One request of a caller, and what came of it (no status: the connection broke)."""

    kind: str
    timeout_ms: int
    status: int | None = None
    body: dict[str, Any] | None = None


async def works(invocation: Invocation) -> web.Response:
    await asyncio.sleep(invocation.payload["work_ms"] / 1000)
    return web.json_response({"output": {"n": invocation.payload["n"]}})


def works_on(agent: Agent) -> Callable[[Invocation], Any]:
    """202, and the result as a receipt when it is done, delivered as soon as the reach takes it."""
    working: set[asyncio.Task[None]] = set()

    async def work(invocation: Invocation) -> None:
        await asyncio.sleep(invocation.payload["work_ms"] / 1000)
        receipt = {"kind": "succeeded", "attempt": invocation.attempt, "output": {"n": invocation.payload["n"]}}
        while True:
            with contextlib.suppress(OSError):
                answer = await asyncio.to_thread(agent.post_receipt, invocation.call_id, **receipt)
                if answer.status in (200, 409):
                    return
            await asyncio.sleep(0.2)

    async def behave(invocation: Invocation) -> web.Response:
        task = asyncio.get_running_loop().create_task(work(invocation))
        working.add(task)
        task.add_done_callback(working.discard)
        return web.Response(status=202)

    return behave


async def callers_at_work(agents: dict[str, Agent], asked: list[Asked], over: asyncio.Event, reach: Instance) -> None:
    """Callers who ask on and on until `over`, whatever they are told. Raises TimeoutError when one is told nothing."""
    chance = random.Random(11)

    async def caller(session: aiohttp.ClientSession) -> None:
        while not over.is_set():
            kind = chance.choice(list(agents))
            slow, short = chance.random() < 0.4, chance.random() < 0.1
            timeout_ms = SHORT_MS if short else PLAIN_MS if kind == "plain" else LONG_MS
            asked.append(each := Asked(kind, timeout_ms))
            work_ms = chance.randint(1000, 5000) if slow else chance.randint(10, 150)
            body = {
                "capability": agents[kind].capability,
                "payload": {"n": len(asked), "work_ms": work_ms},
                "timeout_ms": timeout_ms,
                "labels": {"kind": kind, "short": str(short)},
            }
            try:
                async with session.post("/api/v1/dispatch", json=body) as response:
                    each.status, each.body = response.status, await response.json(content_type=None)
            except (aiohttp.ClientError, ConnectionError, ValueError):
                each.status = None
                await asyncio.sleep(0.05)

    headers = {"Authorization": f"Bearer {reach.key}"}
    connector, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=LONG_MS / 1000 + 15)
    async with aiohttp.ClientSession(reach.url, headers=headers, connector=connector, timeout=patience) as session:
        await asyncio.gather(*(caller(session) for _ in range(CALLERS)))


def millis(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


@pytest.mark.timeout(180)
async def test_every_accepted_call_has_an_ending_after_kill_9(
    new_instance: Callable[..., Instance], new_agent: NewAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = await asyncio.to_thread(new_instance().start)
    agents = {
        "idempotent": await asyncio.to_thread(new_agent, works, at=reach, idempotent=True),
        "plain": await asyncio.to_thread(new_agent, works, at=reach),
        "background": await asyncio.to_thread(new_agent, at=reach),
    }
    agents["background"].node.behave = works_on(agents["background"])

    asked: list[Asked] = []
    over = asyncio.Event()
    traffic = asyncio.create_task(callers_at_work(agents, asked, over, reach))
    await asyncio.sleep(BEFORE_S)  # traffic, not a wait for anything
    killed_at = time.time() * 1000
    await asyncio.to_thread(reach.kill, postgresql_too=True)
    await asyncio.to_thread(reach.start)
    ready_at = time.time() * 1000
    await asyncio.sleep(AFTER_S)
    over.set()
    await traffic

    await asyncio.to_thread(judge, reach, agents, asked, killed_at, ready_at, capsys)


def judge(
    reach: Instance,
    agents: dict[str, Agent],
    asked: list[Asked],
    killed_at: float,
    ready_at: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def still_open() -> list[dict[str, Any]]:
        return [call for status in ("accepted", "running") for call in calls_where(reach, status=status)]

    latest = max([ready_at, *(millis(call["deadline"]) for call in still_open())]) + 10_000
    wait_until(lambda: not still_open(), "every call has ended", max(1.0, latest / 1000 - time.time()))

    calls = {call["call_id"]: call for call in calls_where(reach)}
    with ThreadPoolExecutor(4) as readers:
        receipts = dict(zip(calls, readers.map(lambda call_id: receipts_of(reach, call_id), calls), strict=True))
    kinds = {call_id: [receipt["kind"] for receipt in found] for call_id, found in receipts.items()}
    runs = Counter(run.call_id for agent in agents.values() for run in agent.node.invocations)
    attempts = Counter((run.call_id, run.attempt) for agent in agents.values() for run in agent.node.invocations)
    caught = {c for c, call in calls.items() if millis(call["accepted_at"]) < killed_at < millis(call["ended_at"])}
    recovered = {call_id for call_id in caught if "recovered" in kinds[call_id]}
    unknown = {call_id for call_id, call in calls.items() if (call["error"] or {}).get("outcome_unknown")}
    told = [each for each in asked if each.status == 200]
    counts = Counter((call["labels"]["kind"], call["status"], call_id in caught) for call_id, call in calls.items())
    with capsys.disabled():
        print(
            f"\nkill -9: {len(asked)} asked, {sum(e.status is None for e in asked)} connections broke or were refused,"
        )
        print(f"  {len(calls)} accepted, {len(told)} told `succeeded`, {len(unknown)} of unknown outcome;")
        print(f"  {len(caught)} were under way at the kill, {len(recovered)} of them taken over by the new process")
        for (kind, status, was_caught), count in sorted(counts.items()):
            print(f"  {count:5} {kind} {status}{', under way at the kill' if was_caught else ''}")

    for kind in agents:
        assert any(calls[call_id]["labels"]["kind"] == kind for call_id in caught), (
            f"nothing of {kind} was under way at the kill"
        )

    for call_id, call in calls.items():
        story = (call, receipts[call_id], runs[call_id])
        ended_by = max(millis(call["deadline"]), ready_at if millis(call["accepted_at"]) < killed_at else 0) + 10_000
        assert millis(call["ended_at"]) <= ended_by, story
        assert [kind for kind in kinds[call_id] if kind in TERMINAL] == [call["status"]], story
        assert [r["seq"] for r in receipts[call_id]] == list(range(1, len(receipts[call_id]) + 1)), story

        kind, had_time = call["labels"]["kind"], call["labels"]["short"] == "False"
        if call["status"] != "succeeded":
            assert call["status"] == "timed_out", story
            assert kind != "idempotent" or not had_time, story
        if had_time and call_id in unknown:
            assert kind != "idempotent" and "forwarded" in kinds[call_id], story
            assert kind != "background" or not runs[call_id], story  # its receipts come, whoever carries the call
        if kind != "idempotent":
            assert runs[call_id] <= 1, story
    assert max(attempts.values()) == 1, "one attempt ran twice"
    assert set(runs) <= set(calls), "a node was asked what was not accepted"

    for each in told:
        assert each.body is not None
        call = calls.get(each.body["call_id"])
        assert call is not None and call["status"] == "succeeded", each
        assert call["output"] == each.body["output"], each
    for each in asked:
        if each.body is not None and each.status != 200 and "call_id" in each.body:
            assert calls[each.body["call_id"]]["error"]["code"] == each.body["code"], each
