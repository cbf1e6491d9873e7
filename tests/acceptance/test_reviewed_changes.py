"""Route changes at a running reach: the impact of real calls before, and their fate after."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from tests.acceptance.agents import Agent, NewAgent, call_of, publish, receipts_of, wait_for_impact
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.kinds import Reach
from tests.fakes import fails

TAKEN_BACK_WITHIN_S = 60.0
CALLERS = 3


@pytest.fixture
def agents(reach: Reach, new_agent: NewAgent) -> tuple[Agent, Agent]:
    """Two services that offer the same; every call of the second one fails, and may not be repeated."""
    good = new_agent()
    return good, new_agent(fails(500, retryable=False), capability=good.capability)


def weighted(agents: tuple[Agent, Agent], good: int, bad: int) -> dict[str, Any]:
    weights = {agents[0].service_id: good, agents[1].service_id: bad}
    match = {"capability": agents[0].capability}
    return {"op": "put", "id": "shared", "match": match, "strategy": {"type": "weighted_random", "weights": weights}}


async def traffic(reach: Instance, capability: str, over: asyncio.Event) -> list[dict[str, Any]]:
    """What callers who ask without pause are told until `over`."""
    made: list[dict[str, Any]] = []

    async def caller(session: aiohttp.ClientSession) -> None:
        while not over.is_set():
            body = {"capability": capability, "payload": {}}
            async with session.post("/api/v1/dispatch", json=body) as response:
                made.append(await response.json(content_type=None))
            await asyncio.sleep(0.02)

    headers = {"Authorization": f"Bearer {reach.key}"}
    async with aiohttp.ClientSession(reach.url, headers=headers) as session:
        await asyncio.gather(*(caller(session) for _ in range(CALLERS)))
    return made


async def test_a_bad_change_takes_itself_back_within_a_minute(
    reach: Reach, agents: tuple[Agent, Agent], colleague_key: str
) -> None:
    """It sends 30 % of the calls to a service that fails; nobody touches anything, and the calls are well again."""

    def get(path: str) -> Any:
        return reach.request("GET", f"/api/v1/{path}", key=reach.key).json

    over = asyncio.Event()
    first = await asyncio.to_thread(publish, reach, colleague_key, operations=[weighted(agents, 100, 0)])
    calls = asyncio.create_task(traffic(reach, agents[0].capability, over))
    await asyncio.sleep(2)  # what is normal
    bad = await asyncio.to_thread(
        publish, reach, colleague_key, operations=[weighted(agents, 70, 30)], auto_revert=True
    )
    published_at = time.monotonic()
    change = next(c for c in get("route-changes")["results"] if c["published_revision"] == bad)
    await asyncio.to_thread(
        wait_until, lambda: get("routes")["revision"] > bad, "it is taken back", TAKEN_BACK_WITHIN_S
    )
    took_s = time.monotonic() - published_at
    await asyncio.sleep(2.5)  # every dispatcher uses it within two seconds
    over.set()
    made = await calls
    print(f"taken back {took_s:.1f} s after the publication, {len(made)} calls")

    restored = get("routes")
    assert restored["revision"] == bad + 1 == first + 2
    shown = get(f"route-changes/{change['id']}")
    assert (shown["watch"]["status"], shown["status"]) == ("reverted", "published")
    assert "fail or need a retry" in shown["watch"]["told"]
    undo = get(f"route-changes/{shown['reverted_by']}")
    assert (undo["author"], undo["reverts"], undo["published_revision"]) == ("reach-watch", change["id"], bad + 1)
    assert [step["action"] for step in shown["history"]][-2:] == ["publish", "alert"]

    def revision_of(call: dict[str, Any]) -> int:
        return call_of(reach, call["call_id"])["table_revision"]

    failed = [call for call in made if call.get("status") != "succeeded"]
    assert failed, "some calls went to the failing service"
    assert await asyncio.to_thread(revision_of, failed[0]) == bad
    assert await asyncio.to_thread(revision_of, made[-1]) == bad + 1
    assert [call.get("status") for call in made[-5:]] == ["succeeded"] * 5
    revisions = set()
    for call in (failed[0], made[-1]):
        receipts = await asyncio.to_thread(receipts_of, reach, call["call_id"])
        revisions.add(next(receipt for receipt in receipts if receipt["kind"] == "routed")["detail"]["table_revision"])
    assert revisions == {bad, bad + 1}


def test_the_impact_is_that_of_the_calls_that_were_made(reach: Reach, new_agent: NewAgent, colleague_key: str) -> None:
    """Five reports and three emails are called; a change for reports moves five of them, and names some to open."""
    one = new_agent()
    two = new_agent(capability=one.capability)
    everything = {"op": "put", "id": "everything", "match": {"capability": one.capability}}
    publish(reach, colleague_key, operations=[everything | {"strategy": {"type": "exact", "service": one.service_id}}])
    for kind in ["report"] * 5 + ["email"] * 3:
        assert one.call({"kind": kind}).status == 200
    match = {"capability": one.capability, "input.kind": "report"}
    reports = {"op": "put", "id": "reports", "match": match, "priority": 9}
    body = {
        "title": "reports elsewhere",
        "base_revision": reach.request("GET", "/api/v1/routes", key=reach.key).json["revision"],
        "operations": [reports | {"strategy": {"type": "exact", "service": two.service_id}}],
    }
    change = reach.request("POST", "/api/v1/route-changes", body, key=reach.key).json

    found = wait_for_impact(reach, f"/api/v1/route-changes/{change['id']}")
    assert found["moved"]["by_route"] == [{"from": "everything", "to": "reports", "calls": 5}]
    assert found["moved"]["by_service"] == [{"from": one.service_id, "to": two.service_id, "calls": 5}]
    assert found["shadowed_routes"] == []
    sample = found["samples"][0]
    assert call_of(reach, sample["call_id"])["capability"] == one.capability
