"""Which pg_dump fits which server."""

from pathlib import Path

import pytest

from reach_project.backup import Tools, fitting

PLACE = Path("/bin")


@pytest.mark.parametrize(
    ("server", "found", "expected"),
    [
        pytest.param(15, [18, 15, 16], 15, id="the server's own"),
        pytest.param(16, [18, 15, 17], 17, id="else the nearest newer"),
        pytest.param(18, [15, 17], None, id="never an older one"),
        pytest.param(15, [], None, id="none at all"),
    ],
)
def test_the_fitting_tools(server: int, found: list[int], expected: int | None):
    chosen = fitting(server, [Tools(PLACE, major) for major in found])
    assert (chosen and chosen.major) == expected
