"""Both dispatchers are restarted one after the other under load: callers who go to the other one lose nothing."""

from tests.acceptance.topology.conftest import NewCallers
from tests.acceptance.topology.steady import nothing_is_lost
from tests.bed.topology import Topology


def test_no_call_is_lost(reach: Topology, callers: NewCallers, rate_per_s: float) -> None:
    with callers(rate_per_s=rate_per_s) as calling:
        for dispatcher in reach.dispatchers:
            calling.long_ones_under_way()
            assert dispatcher.stop() == 0
            dispatcher.start()
            calling.go_on(50)
    nothing_is_lost(calling)
    assert {status for each in calling.asked for status in each.statuses} <= {200, None}
