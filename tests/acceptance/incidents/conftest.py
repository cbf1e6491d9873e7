"""Nights of incident, replayed. Each test tells its report where it fails, and always with `make test ARGS=-s`."""

from collections.abc import Iterator

import pytest

from tests.acceptance.incidents.report import Report


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    made = Report(request.node.name)
    yield made
    print(made)  # pytest shows what was printed of a test that failed
