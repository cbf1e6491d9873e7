"""What a test has committed is gone before the next one."""

from collections.abc import Iterator

import psycopg
import pytest


@pytest.fixture(autouse=True)
def no_calls_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Django empties what it manages after a test that commits; the two partitioned tables are not among that."""
    yield
    marker = request.node.get_closest_marker("django_db")
    if marker is not None and marker.kwargs.get("transaction"):
        from registry.database import conninfo

        with psycopg.connect(conninfo("tests")) as session:
            session.execute("TRUNCATE calls, receipts")
