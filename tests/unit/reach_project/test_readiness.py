import pytest

from reach_project.health import Readiness, Weight, readiness

WEIGHTS = {"broker": Weight.AFTER_START, "worker": Weight.ADVISORY}


@pytest.mark.parametrize(
    ("broken", "have_worked", "expected"),
    [
        pytest.param(set(), set(), Readiness.READY, id="all work"),
        pytest.param({"database"}, {"database"}, Readiness.NOT_READY, id="a vital part, whatever it did before"),
        pytest.param({"broker"}, set(), Readiness.NOT_READY, id="the broker has never been there"),
        pytest.param({"broker"}, {"broker"}, Readiness.DEGRADED, id="the broker is lost"),
        pytest.param({"broker", "database"}, {"broker"}, Readiness.NOT_READY, id="the vital part decides"),
        pytest.param({"worker"}, set(), Readiness.DEGRADED, id="another process's business"),
    ],
)
def test_readiness(broken: set[str], have_worked: set[str], expected: Readiness) -> None:
    found = {name: "gone" if name in broken else None for name in ("database", "broker", "worker", "snapshot")}
    assert readiness(found, WEIGHTS, have_worked) is expected
