"""The network between one dispatcher and the database breaks: it connects again, and nothing is lost."""

from tests.acceptance.topology.conftest import NewCallers
from tests.acceptance.topology.steady import nothing_is_lost
from tests.bed.proxy import Proxy
from tests.bed.topology import Topology


def test_broken_connections_are_made_again(reach: Topology, line: Proxy, callers: NewCallers) -> None:
    with callers(rate_per_s=50) as calling:
        for _ in range(3):
            calling.long_ones_under_way()
            line.break_all()
            calling.go_on(50)
    nothing_is_lost(calling)
