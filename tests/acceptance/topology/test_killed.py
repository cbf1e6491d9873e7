"""`kill -9` of what carries no call changes no call."""

from tests.acceptance.topology.conftest import NewCallers
from tests.acceptance.topology.steady import at_first_go, nothing_is_lost
from tests.bed.topology import Topology


def test_calls_do_not_notice(reach: Topology, callers: NewCallers) -> None:
    with callers(rate_per_s=50) as calling:
        for victim in (reach.console, reach.workers[0], reach.beat):
            calling.long_ones_under_way()
            victim.kill()
            calling.go_on(50)
        for victim in (reach.console, reach.workers[0], reach.beat):
            victim.start()
    nothing_is_lost(calling)
    at_first_go(calling)
