"""What targets cost beside each other, and what is measured of them."""

import pytest

from bench.goals import goals
from bench.plan import BASE, CELERY, DIRECT, STRICT, TARGETS, Leg, legs, rotated
from bench.report import POSTGRES, SERVER, SMALL, Cell, ratios, summaries, verdict
from bench.slow import SlowCalls


def a_cell(target: str, server_us: float, postgres_us: float, concurrency: int = 1, **facts) -> Cell:
    return Cell(target, concurrency, 100, 0, 50.0, 1.0, 2.0, {SERVER: server_us, POSTGRES: postgres_us}, **facts)


def test_cost_is_compared_by_the_medians_of_the_rounds() -> None:
    now = [a_cell("now", 110, 100), a_cell("now", 900, 100), a_cell("now", 100, 100)]
    base = [a_cell("base", 100, 50)] * 3
    others = [a_cell("now", 1, 1, processes=2), a_cell("now", 1, 1, payload="10 KB")]
    results = summaries([*now, *base, *others, a_cell("now", 100, 100, 16), a_cell("base", 200, 100, 16)])
    assert ratios(results, "now", "base") == {1: 1.1, 16: 0.5}
    assert ratios(results, "now", "base", (SERVER, POSTGRES)) == {1: 1.4, 16: 2 / 3}
    assert ratios(results, "now", "not measured") == {}


def test_the_worst_is_said_first() -> None:
    assert verdict("now / base", {16: 0.5, 1: 1.1}) == "now / base = 1.10 (the worst of 1.10 at c=1, 0.50 at c=16)"


def test_a_summary_shows_the_most_memory_and_all_errors() -> None:
    [found] = summaries([a_cell("now", 1, 1, uss_mib={SERVER: 90.0}), a_cell("now", 1, 1, uss_mib={SERVER: 70.0})])
    assert (found.uss_mib, found.succeeded) == ({SERVER: 90.0}, 200)


def test_a_run_varies_one_thing_at_a_time_unless_it_is_full() -> None:
    plan = legs(TARGETS, (1, 64), full=False)
    assert [(leg.processes, leg.concurrency, leg.payload) for leg in plan] == [
        (1, 1, SMALL),
        (1, 64, SMALL),
        (2, 64, SMALL),
        (1, 16, "10 KB"),
        (1, 16, "200 KB"),
    ]
    assert DIRECT not in plan[2].targets
    assert CELERY not in plan[3].targets
    assert len(legs(TARGETS, (1, 64), full=True)) == 2 * 3 * 2
    assert legs([STRICT, BASE], (1,), full=False) == [Leg(1, 1, SMALL, (STRICT, BASE))]


def test_nobody_is_always_measured_after_the_same_target() -> None:
    assert [rotated(("a", "b", "c"), turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("held_mib", "met"), [(399.0, True), (401.0, False)])
def test_goals_are_judged_by_what_was_measured(held_mib: float, met: bool) -> None:
    slow = SlowCalls(2000, 4000, 4000, 90.0, held_mib, 10.0, 19.0, 0)
    cells = [a_cell(STRICT, 599, 151, 64), a_cell(STRICT, 1, 1, 64, processes=2)]
    found = {goal.what: goal.met for goal in goals(summaries(cells), sync_ms=None, steady=None, slow=slow)}
    assert found == {
        "dispatcher CPU per durable call, c=64": True,
        "PostgreSQL CPU per durable call, c=64": False,
        "dispatcher's memory with 2000 slow calls in flight": met,
        "light calls' p99 beside them by that without": True,
    }
