"""PostgreSQL is away for a while: what was accepted ends, what is new is refused, and no node pays for it."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.acceptance.agents import NewAgent, call_of, dispatch, kinds_of
from tests.acceptance.test_errors import leaves_no_call
from tests.acceptance.topology.conftest import NewCallers
from tests.acceptance.topology.nodes import heart_beating, shown
from tests.acceptance.topology.steady import nothing_is_lost
from tests.bed.process import Process, wait_until
from tests.bed.topology import Topology
from tests.fakes import waits_for

LEASE_S = 3
"""Shorter than the outage: it must not run out by it."""
BACK_WITHIN_S = 5.0


@contextmanager
def stopped(server: Process) -> Iterator[None]:
    """Inside the block it is away."""
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.timeout(240)
def test_everything_goes_on_when_it_is_back(
    reach: Topology, callers: NewCallers, new_agent: NewAgent, outage_s: float
) -> None:
    assert reach.postgresql is not None
    gate = threading.Event()
    declared = {"lease_ttl_s": LEASE_S, "heartbeat_interval_s": LEASE_S / 4}
    agent = new_agent(waits_for(gate), about_node=declared, idempotent=True)
    patient_ms, hasty_ms = int(outage_s * 1000) + 20_000, 3_000
    pids = [dispatcher.pid for dispatcher in reach.dispatchers]
    with (
        heart_beating(agent, every_s=LEASE_S / 4),
        callers(rate_per_s=20, timeout_ms=patient_ms) as calling,
        ThreadPoolExecutor(2) as waiting,
    ):
        calling.long_ones_under_way()
        patient = waiting.submit(agent.call, {"n": 1}, timeout_ms=patient_ms)
        hasty = waiting.submit(agent.call, {"n": 2}, timeout_ms=hasty_ms)
        wait_until(lambda: len(agent.node.invocations) == 2, "both are at work")
        with stopped(reach.postgresql):
            stopped_at = time.monotonic()
            for dispatcher in reach.dispatchers:
                asked = {"capability": agent.capability, "payload": {}}
                refused = dispatcher.request("POST", "/api/v1/dispatch", asked, key=reach.key)
                leaves_no_call(refused, 503, "unavailable")
            gate.set()
            not_written = hasty.result(timeout=30)
            assert (not_written.status, not_written.json["code"]) == (503, "unavailable")
            time.sleep(max(0.0, stopped_at + outage_s - time.monotonic()))  # the outage, not a wait for anything
            assert not patient.done(), "a success was told that is not on disk"

        back_at = time.monotonic()
        statuses: set[str] = set()
        for dispatcher in reach.dispatchers:
            wait_until(lambda at=dispatcher: dispatch(at, agent.capability).status == 200, "a good call")
            statuses.add(shown(reach, agent)["status"])
        assert time.monotonic() - back_at <= BACK_WITHIN_S
        told = patient.result(timeout=BACK_WITHIN_S)
        while time.monotonic() < back_at + LEASE_S + 1:  # until a lease that had not been extended would have run out
            statuses.add(shown(reach, agent)["status"])
            time.sleep(0.1)
    assert [dispatcher.pid for dispatcher in reach.dispatchers if dispatcher.is_running] == pids
    assert statuses == {"ready"}
    assert (told.status, told.json["output"]) == (200, {"echo": {"n": 1}})
    assert kinds_of(reach, told.json["call_id"]) == ["accepted", "routed", "forwarded", "succeeded"]
    wait_until(lambda: call_of(reach, not_written.json["call_id"])["ended_at"], "the end of the other is written")
    nothing_is_lost(calling)
