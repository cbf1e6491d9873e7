"""What every test stands on: a real PostgreSQL.

The embedded server is started by the first test that asks for the database, unless DATABASE_URL names another.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("reach", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are shared
settings.load_profile("reach")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How `--dist loadfile` gives the tests to several workers."""
    from tests.distribution import ByFile

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def postgresql() -> Iterator[None]:
    """The server of this run, shared by all its processes; the last one out stops it."""
    from django.conf import settings

    from reach_project import embedded

    if settings.DATABASE_URL:
        yield
        return
    with embedded.running(settings.REACH_HOME):
        yield


@pytest.fixture(scope="session")
def django_db_setup(postgresql: None, django_db_setup: None) -> None:
    """pytest-django's own, once the server is up."""
