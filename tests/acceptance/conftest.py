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

from tests.acceptance.agents import Agent, NewAgent, as_person, registered
from tests.acceptance.instance import Instance
from tests.acceptance.kinds import PARTED, Reach, a_reach
from tests.bed import prepared
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
    """Instances of the test's own, not yet started: `new_instance("b", DATABASE_URL=…)`.

    They are like those that were started before and stopped, unless it is the `first_start` that matters.
    """
    made: list[Reach] = []

    def make(name: str = "home", *, first_start: bool = False, **environment: str) -> Reach:
        home = tmp_path / name
        made.append(Instance(home, environment, first_start=True) if first_start else a_reach(home, environment))
        return made[-1]

    yield make
    for instance in made:
        instance.remove()


@pytest.fixture
def database_url(postgresql: None) -> Iterator[str]:
    """A new database that several instances can share, as `reach_prepare` leaves it."""
    with new_database(prepared.database(created)) as url:
        yield url


@pytest.fixture
def empty_database_url(postgresql: None) -> Iterator[str]:
    """A new database with nothing in it."""
    with new_database() as url:
        yield url


@contextmanager
def new_database(like: str = "template1") -> Iterator[str]:
    name = f"reach_shared_{secrets.token_hex(4)}"
    yield created(name, like)
    on_the_server(f"DROP DATABASE {name} WITH (FORCE)")


def created(name: str, like: str = "template1") -> str:
    """The URL of a new database on the server of this run."""
    on_the_server(f"CREATE DATABASE {name} TEMPLATE {like}")
    given = settings.DATABASES["default"]
    password = f":{given['PASSWORD']}" if given["PASSWORD"] else ""
    where = urlencode(server_address())  # as parameters, since the host may be the folder of a socket
    return f"postgresql://{given['USER']}{password}@/{name}?{where}"


def on_the_server(statement: str) -> None:
    given = settings.DATABASES["default"]
    who = {"user": given["USER"], "password": given["PASSWORD"] or None}
    with psycopg.connect(**server_address(), **who, dbname="postgres", autocommit=True) as session:
        session.execute(statement)


def server_address() -> dict[str, Any]:
    given = settings.DATABASES["default"]
    return {"host": given["HOST"], "port": given["PORT"] or 5432}


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest) -> tuple[Instance, Instance]:
    """Two processes that dispatch, on one database. Who kills one starts it again.

    A file's own: what idles costs the tests of other files a tenth of a core.
    """
    if PARTED:
        first, second = request.getfixturevalue("reach").dispatchers
        return first, second
    return request.getfixturevalue("two_instances")


@pytest.fixture(scope="module")
def two_instances(postgresql: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Instance]]:
    """Two all-in-ones on one database."""
    folder = tmp_path_factory.mktemp("pair")
    with new_database(prepared.database(created)) as url:
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
