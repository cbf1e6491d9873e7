"""What two targets cost beside each other."""

from bench.report import POSTGRES, SERVER, Cell, ratios, summaries, verdict


def a_cell(target: str, server_us: float, postgres_us: float, concurrency: int = 1) -> Cell:
    return Cell(target, concurrency, 100, 0, 50.0, 1.0, 2.0, {SERVER: server_us, POSTGRES: postgres_us})


def test_cost_is_compared_by_the_medians_of_the_rounds() -> None:
    now = [a_cell("now", 110, 100), a_cell("now", 900, 100), a_cell("now", 100, 100)]
    base = [a_cell("base", 100, 50)] * 3
    results = summaries([*now, *base, a_cell("now", 100, 100, 16), a_cell("base", 200, 100, 16)])
    assert ratios(results, "now", "base") == {1: 1.1, 16: 0.5}
    assert ratios(results, "now", "base", (SERVER, POSTGRES)) == {1: 1.4, 16: 2 / 3}
    assert ratios(results, "now", "not measured") == {}


def test_the_worst_is_said_first() -> None:
    assert verdict("now / base", {16: 0.5, 1: 1.1}) == "now / base = 1.10 (the worst of 1.10 at c=1, 0.50 at c=16)"
