import pytest

from registry.core.health import Heard, Reply, health_after
from registry.core.node import AdminState, Health, visible_status

UP = Reply(Heard.ANSWER, 200)
SILENT = Reply(Heard.SILENCE)
REFUSED = Reply(Heard.REFUSED)


def answer(status, ready=None, reason=""):
    return Reply(Heard.ANSWER, status, ready, reason)


@pytest.mark.parametrize(
    ("live", "ready", "reason"),
    [
        pytest.param(REFUSED, REFUSED, "connection refused", id="nobody listens"),
        pytest.param(SILENT, SILENT, "connects, does not answer", id="hangs wholly"),
        pytest.param(UP, SILENT, "lives, but readiness hangs", id="a dependency hangs"),
        pytest.param(UP, answer(503), "answers 503", id="says 503"),
        pytest.param(UP, answer(503, False, "loading"), "says it is not ready: loading", id="503 with its reason"),
        pytest.param(UP, answer(200, False, "stalled"), "says it is not ready: stalled", id="stalled"),
        pytest.param(UP, answer(200, False), "says it is not ready", id="gives no reason"),
        pytest.param(UP, answer(200), 'answers 200 without {"ready": true}', id="something else answers"),
        pytest.param(UP, answer(500, True), "answers 500", id="contradicts itself"),
        pytest.param(UP, Reply(Heard.UNREACHABLE, reason="no route"), "no route", id="the network's words"),
        pytest.param(answer(404), None, "answers 404", id="judged by liveness, which fails"),
        pytest.param(SILENT, None, "connects, does not answer", id="judged by liveness, which hangs"),
    ],
)
def test_a_failure_takes_the_node_out_and_says_why(live, ready, reason):
    assert health_after(live, ready) == (Health.NOT_READY, reason)


@pytest.mark.parametrize(("live", "ready"), [(UP, answer(200, True)), (UP, None), (answer(404), answer(200, True))])
def test_one_success_is_enough(live, ready):
    assert health_after(live, ready) == (Health.READY, "")


def test_the_strongest_refusal_is_shown():
    seen = [
        visible_status(Health.READY, "", AdminState.DISABLED, expired=True).name,
        visible_status(Health.READY, "", AdminState.DRAINING, expired=True).name,
        visible_status(Health.READY, "", AdminState.ENABLED, expired=True).name,
        visible_status(Health.NOT_READY, "why", AdminState.ENABLED, expired=False).reason,
        visible_status(Health.READY, "stale", AdminState.ENABLED, expired=False).reason,
    ]
    assert seen == ["disabled", "draining", "expired", "why", ""]
