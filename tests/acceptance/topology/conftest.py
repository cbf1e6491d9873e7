"""One reach of real processes for all tests of this folder; each leaves it whole."""

import os
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.acceptance.agents import NewAgent
from tests.acceptance.topology.steady import SteadyCallers
from tests.bed.process import wait_until
from tests.bed.proxy import Proxy
from tests.bed.topology import Topology

NewCallers = Callable[..., SteadyCallers]


@pytest.fixture(scope="package")
def reach_and_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Topology, Proxy]]:
    reach = Topology(tmp_path_factory.mktemp("topology") / "reach", {"REACH_PROCESS_LEASE_S": "2"})
    assert reach.postgresql is not None
    line = Proxy(reach.postgresql.port)
    reach.dispatchers[1].environment["DATABASE_URL"] = reach.postgresql.url_at(line.port)
    try:
        yield reach.start(), line
    finally:
        reach.remove()
        line.close()


@pytest.fixture(scope="package")
def reach(reach_and_line: tuple[Topology, Proxy]) -> Topology:
    """Two dispatchers, two workers, beat, console, Redis, PostgreSQL."""
    return reach_and_line[0]


@pytest.fixture(scope="package")
def line(reach_and_line: tuple[Topology, Proxy]) -> Proxy:
    """The second dispatcher's way to PostgreSQL."""
    return reach_and_line[1]


@pytest.fixture(autouse=True)
def left_whole(reach: Topology) -> Iterator[None]:
    """A test that fails half-way is not to spoil the others."""
    yield
    reach.mend()
    wait_until(reach.is_whole, f"the test left it whole: {reach.console.request('GET', '/readyz').body!r}")


@pytest.fixture
def callers(reach: Topology, new_agent: NewAgent) -> NewCallers:
    """`with callers(rate_per_s=100): …`"""
    return partial(SteadyCallers, reach, new_agent)


@pytest.fixture(scope="session")
def outage_s() -> float:
    """How long what is stopped stays away."""
    return float(os.environ.get("REACH_TEST_OUTAGE_S", "6"))


@pytest.fixture(scope="session")
def rate_per_s() -> float:
    """How many calls a second the restart of all dispatchers must not lose."""
    return float(os.environ.get("REACH_TEST_RATE_PER_S", "100"))
