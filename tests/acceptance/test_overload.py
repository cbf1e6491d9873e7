"""A dispatcher with too much to do: what can wait is refused at once, what is under way goes on."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.agents import NewAgent, as_person, calls_where, publish
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.test_errors import problem_of
from tests.fakes import answers, waits_for

MOST = 10


@pytest.fixture(scope="module")
def small_reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One process with little room, whatever stands for the reach elsewhere: bounds are each dispatcher's own."""
    instance = Instance(
        tmp_path_factory.mktemp("small") / "home", {"REACH_MAX_IN_FLIGHT": str(MOST), "REACH_RETRY_AFTER_MS": "2500"}
    )
    try:
        yield instance.start()
    finally:
        instance.remove()


def test_bulk_yields_first_and_what_is_under_way_goes_on(small_reach: Instance, new_agent: NewAgent) -> None:
    reach = small_reach
    gate = threading.Event()
    agent = new_agent(waits_for(gate), at=reach)
    asked = []

    with ThreadPoolExecutor(MOST) as people:

        def fill(count: int, urgency: str) -> None:
            asked.extend(people.submit(agent.call, urgency=urgency) for _ in range(count))
            wait_until(lambda: len(agent.node.invocations) == len(asked), f"{len(asked)} are under way")

        def refused(urgency: str) -> None:
            began = time.monotonic()
            answer = agent.call(urgency=urgency)
            problem = problem_of(answer, 503, "overloaded")
            assert time.monotonic() - began < 1
            assert (problem["retry_after_ms"], answer.headers["Retry-After"]) == (2500, "3")
            assert "call_id" not in problem and f"{len(asked)} calls are in flight" in problem["detail"]

        try:
            fill(8, "bulk")
            refused("bulk")
            fill(2, "normal")
            refused("normal")
            refused("interactive")
            call_id = agent.node.invocations[0].call_id
            assert agent.post_receipt(call_id, kind="running", progress=0.5).status == 200
            assert reach.request("GET", f"/api/v1/calls/{call_id}/wait?timeout_s=0", key=reach.key).status == 200
            body = {"capability": agent.capability, "payload": {}}
            assert reach.request("POST", "/api/v1/dispatch/explain", body, key=reach.key).status == 200
            metrics = reach.request("GET", "/metrics", key=reach.key).body.decode()
            assert 'code="overloaded"} 3.0' in metrics
        finally:
            gate.set()
        assert {one.result(timeout=10).status for one in asked} == {200}
    assert len(calls_where(reach, capability=agent.capability)) == len(asked) == MOST, "refusals leave no call"
    assert agent.call(urgency="bulk").status == 200, "there is room again"


def test_copies_yield_as_bulk_does(small_reach: Instance, new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate), at=small_reach)
    shadow = new_agent(answers("a copy's"), at=small_reach, capability=agent.capability)
    route = {
        "id": "mirrored",
        "match": {"capability": agent.capability},
        "strategy": {"type": "exact", "service": agent.service_id},
        "mirror": {"service": shadow.service_id, "percent": 100},
    }
    publish(small_reach, as_person(small_reach, "colleague", "approver"), routes=[route])
    with ThreadPoolExecutor(MOST) as people:
        try:
            asked = []
            for under_way in range(1, 10):
                asked.append(people.submit(agent.call))
                wait_until(lambda n=under_way: len(agent.node.invocations) == n, f"{under_way} are under way")
            wait_until(lambda: len(shadow.node.invocations) == 7, "there was room for seven copies")
            metrics = small_reach.request("GET", "/metrics", key=small_reach.key).body.decode()
            assert {'reach_mirrored_total{fate="copied"} 7.0', 'reach_mirrored_total{fate="full"} 2.0'} <= set(
                metrics.splitlines()
            )
        finally:
            gate.set()
        assert {one.result(timeout=10).status for one in asked} == {200}
    assert len(shadow.node.invocations) == 7
