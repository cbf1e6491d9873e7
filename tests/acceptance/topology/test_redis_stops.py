"""Redis is away, or hangs: calls go on without an error, and probes begin again by themselves when it is back."""

import time
from collections.abc import Callable

import pytest

from tests.acceptance.agents import NewAgent
from tests.acceptance.topology.conftest import NewCallers
from tests.acceptance.topology.nodes import path_of, shown
from tests.acceptance.topology.steady import at_first_go, nothing_is_lost
from tests.bed.process import wait_until
from tests.bed.redis import Redis
from tests.bed.topology import Topology

PROBED_WITHIN_S = 10.0


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("go_away", "come_back"),
    [pytest.param(Redis.stop, Redis.start, id="stopped"), pytest.param(Redis.pause, Redis.resume, id="hanging")],
)
def test_calls_go_on_and_probes_begin_again(
    reach: Topology,
    callers: NewCallers,
    new_agent: NewAgent,
    outage_s: float,
    go_away: Callable[[Redis], object],
    come_back: Callable[[Redis], object],
) -> None:
    ill = new_agent()
    ill.node.ready = {"ready": False, "reason": "its model is being loaded"}
    wait_until(lambda: is_out(reach, ill), "its illness is noticed")
    with callers(rate_per_s=50) as calling:
        go_away(reach.redis)
        ill.node.ready = {"ready": True}
        gone_at = time.monotonic()
        time.sleep(max(0.0, gone_at + outage_s - time.monotonic()))  # the outage, not a wait for anything
        come_back(reach.redis)
        wait_until(lambda: shown(reach, ill)["status"] == "ready", "its recovery is noticed", PROBED_WITHIN_S)
    nothing_is_lost(calling)
    at_first_go(calling)


def is_out(reach, agent) -> bool:
    reach.request("POST", f"{path_of(agent)}/probe", key=reach.key)
    return shown(reach, agent)["status"] == "not_ready"
