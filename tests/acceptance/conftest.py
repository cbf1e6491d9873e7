"""Real instances for the acceptance tests: all-in-ones, or one process a part."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from django.conf import settings
from psycopg.conninfo import make_conninfo

from tests.acceptance.agents import Agent, NewAgent, as_person, registered
from tests.acceptance.instance import Instance
from tests.acceptance.kinds import PARTED, Reach, a_reach
from tests.fakes import Behaviour, FakeNode

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests watch real clocks on machines that others use: one that fails is run once more, and the summary
    shows how it failed at first."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reach]:
    """One running reach, shared by the tests that do not harm it. What tests wait for is made short."""
    short = {"REACH_BODY_TIMEOUT_S": "2", "REACH_IDLE_TIMEOUT_S": "1.5"}
    short["REACH_METRICS_LABEL_VALUES"] = "10000"  # many tests, each with agents of its own
    instance = a_reach(tmp_path_factory.mktemp("reach") / "home", short)
    try:
        yield instance.start()
    finally:
        instance.remove()


@pytest.fixture
def new_instance(tmp_path: Path) -> Iterator[Callable[..., Reach]]:
    """Instances of the test's own, not yet started: `new_instance("b", DATABASE_URL=…)`."""
    made: list[Reach] = []

    def make(name: str = "home", **environment: str) -> Reach:
        made.append(a_reach(tmp_path / name, environment))
        return made[-1]

    yield make
    for instance in made:
        instance.remove()


@pytest.fixture
def database_url(postgresql: None) -> Iterator[str]:
    """A new, empty database that several instances can share."""
    with new_database() as url:
        yield url


@contextmanager
def new_database() -> Iterator[str]:
    given = settings.DATABASES["default"]
    name = f"reach_shared_{secrets.token_hex(4)}"
    address = {"host": given["HOST"], "port": given["PORT"] or 5432}
    server = make_conninfo(**address, user=given["USER"], password=given["PASSWORD"] or None, dbname="postgres")
    with psycopg.connect(server, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}")
        password = f":{given['PASSWORD']}" if given["PASSWORD"] else ""
        where = urlencode(address)  # as parameters, since the host may be the folder of a socket
        yield f"postgresql://{given['USER']}{password}@/{name}?{where}"
        session.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest) -> tuple[Instance, Instance]:
    """Two processes that dispatch, on one database. Who kills one starts it again."""
    if PARTED:
        first, second = request.getfixturevalue("reach").dispatchers
        return first, second
    return request.getfixturevalue("two_instances")


@pytest.fixture(scope="session")
def two_instances(postgresql: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Instance]]:
    """Two all-in-ones on one database."""
    folder = tmp_path_factory.mktemp("pair")
    with new_database() as url:
        instances = (Instance(folder / "a", {"DATABASE_URL": url}), Instance(folder / "b", {"DATABASE_URL": url}))
        try:
            for instance in instances:
                instance.spawn()
            for instance in instances:
                instance.wait_ready()
            yield instances
        finally:
            with ThreadPoolExecutor(2) as both:
                list(both.map(Instance.remove, instances))


@pytest.fixture
def new_agent(request: pytest.FixtureRequest) -> Iterator[NewAgent]:
    """Registered, ready agents of the test's own, each with a node over HTTP: `new_agent(fails(500), idempotent=True)`.

    They register with the shared `reach` unless `at` names another instance.
    """
    made: list[Agent] = []

    def make(behave: Behaviour | None = None, *, at: Instance | None = None, **declared: Any) -> Agent:
        instance = at or request.getfixturevalue("reach")
        made.append(registered(instance, FakeNode(behave), **declared))
        return made[-1]

    yield make
    for agent in made:
        agent.leave()


@pytest.fixture(scope="session")
def colleague_key(reach: Instance) -> str:
    """The key of a second person at the shared instance: who approves what the administrator proposes."""
    return as_person(reach, "colleague", "approver")
