from random import Random

import pytest

from registry.core.health import Heard, Reply, Standing, next_probe_s, standing_after, trouble_of
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
def test_what_does_not_prove_a_node_fit_says_why(live, ready, reason):
    assert trouble_of(live, ready) == reason


@pytest.mark.parametrize(("live", "ready"), [(UP, answer(200, True)), (UP, None), (answer(404), answer(200, True))])
def test_what_proves_it_fit(live, ready):
    assert trouble_of(live, ready) == ""


READY, ONCE = Standing(Health.READY, ""), Standing(Health.READY, "", failures=1)
STARTING, SUSPECT = Standing(Health.STARTING, "new"), Standing(Health.SUSPECT, "connection refused")
OUT = Standing(Health.NOT_READY, "hangs", failures=2)


@pytest.mark.parametrize(
    ("before", "trouble", "after"),
    [
        pytest.param(READY, "hangs", ONCE, id="one failure is an accident"),
        pytest.param(ONCE, "hangs", OUT, id="two in a row are not"),
        pytest.param(ONCE, "", READY, id="a success between them clears it"),
        pytest.param(OUT, "", READY, id="one success brings it back"),
        pytest.param(OUT, "refused", Standing(Health.NOT_READY, "refused", 3), id="out, now for another reason"),
        pytest.param(STARTING, "hangs", Standing(Health.NOT_READY, "hangs", 1), id="never proven: no credit"),
        pytest.param(SUSPECT, "hangs", Standing(Health.NOT_READY, "hangs", 1), id="the probe confirms a suspicion"),
        pytest.param(SUSPECT, "", READY, id="the probe clears a suspicion"),
    ],
)
def test_a_standing_after_one_more_probe(before, trouble, after):
    assert standing_after(before, trouble, failures_out=2) == after


@pytest.mark.parametrize(
    ("standing", "longest"), [(READY, 10), (ONCE, 2), (OUT, 2), (SUSPECT, 2), (STARTING, 2)], ids=str
)
def test_who_is_doubted_is_probed_soon(standing, longest):
    waits = [next_probe_s(standing, interval_s=10, out_interval_s=2, chance=chance) for chance in (0, 0.5, 0.999)]
    assert waits[0] == longest
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] > longest * 0.8


def test_random_failures_take_out_one_node_at_a_time_and_not_for_long():
    """Three nodes, 1,000 probes, one in twenty of which fails."""
    chance = Random(20261201)
    standing = dict.fromkeys("abc", READY)
    due_s = {name: chance.random() * 10 for name in standing}
    out_since: dict[str, float] = {}
    longest_s, most_out = 0.0, 0
    for _ in range(1000):
        name = min(due_s, key=due_s.__getitem__)
        now_s = due_s[name]
        trouble = "hangs" if chance.random() < 0.05 else ""
        standing[name] = standing_after(standing[name], trouble, failures_out=2)
        if standing[name].health is Health.NOT_READY:
            out_since.setdefault(name, now_s)
        elif name in out_since:
            longest_s = max(longest_s, now_s - out_since.pop(name))
        most_out = max(most_out, len(out_since))
        due_s[name] += next_probe_s(standing[name], interval_s=10, out_interval_s=2, chance=chance.random())
    assert most_out == 1
    assert 0 < longest_s <= 10 + 2


def test_the_strongest_refusal_is_shown():
    seen = [
        visible_status(Health.READY, "", AdminState.DISABLED, expired=True).name,
        visible_status(Health.READY, "", AdminState.DRAINING, expired=True).name,
        visible_status(Health.READY, "", AdminState.ENABLED, expired=True).name,
        visible_status(Health.NOT_READY, "why", AdminState.ENABLED, expired=False).reason,
        visible_status(Health.READY, "stale", AdminState.ENABLED, expired=False).reason,
    ]
    assert seen == ["disabled", "draining", "expired", "why", ""]
