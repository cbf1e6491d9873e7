"""What was promised of speed, beside what a run has measured. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.plan import CELERY, DIRECT, FORWARDER, MANY, RELAXED, STRICT
from bench.report import POSTGRES, SERVER, SMALL, Cell
from bench.slow import SlowCalls


@dataclass(frozen=True, slots=True)
class Goal:
    """One promise: what it says, its bound, what was measured."""

    what: str
    bound: str
    measured: str
    met: bool


def goals(results: Sequence[Cell], *, sync_ms: float | None, steady: Cell | None, slow: SlowCalls | None) -> list[Goal]:
    """The promises that this run can judge."""
    return list(judged(results, sync_ms, steady, slow))


def judged(
    results: Sequence[Cell], sync_ms: float | None, steady: Cell | None, slow: SlowCalls | None
) -> Iterator[Goal]:
    found = {(cell.target, cell.setting): cell for cell in results}

    def cell(target: str, processes: int, concurrency: int) -> Cell | None:
        return found.get((target, (processes, concurrency, SMALL)))

    if strict := cell(STRICT, 1, MANY):
        yield below("dispatcher CPU per durable call, c=64", strict.cpu_us[SERVER], 600, "µs")
        yield below("PostgreSQL CPU per durable call, c=64", strict.cpu_us[POSTGRES], 150, "µs")
    two, forwarders, queue = (cell(name, 2, MANY) for name in (STRICT, FORWARDER, CELERY))
    if two and forwarders:
        yield times("two dispatchers' calls/s by two bare forwarders'", two.calls_per_s, forwarders.calls_per_s, 1.5)
    if two and queue:
        yield times("two dispatchers' calls/s by two Celery round trips'", two.calls_per_s, queue.calls_per_s, 5)
    direct, alone, relaxed = (cell(name, 1, 1) for name in (DIRECT, STRICT, RELAXED))
    if direct and relaxed:
        yield below("latency added to a direct call, relaxed, c=1, p50", relaxed.p50_ms - direct.p50_ms, 2, "ms")
    if direct and alone and sync_ms is not None:
        what = "latency added to a direct call, strict, c=1, p50 (2 ms and two syncs)"
        yield below(what, alone.p50_ms - direct.p50_ms, 2 + 2 * sync_ms, "ms")
    if steady:
        ratio = steady.p99_ms / steady.p50_ms if steady.p50_ms else 0.0
        yield below(f"p99 by p50, c={steady.concurrency}, the long run", ratio, 4, "times")
    if slow:
        yield below(f"dispatcher's memory with {slow.in_flight} slow calls in flight", slow.held_mib, 400, "MiB")
        ratio = slow.light_p99_beside_ms / slow.light_p99_ms if slow.light_p99_ms else 0.0
        yield below("light calls' p99 beside them by that without", ratio, 2, "times")


def below(what: str, measured: float, bound: float, unit: str) -> Goal:
    return Goal(what, f"< {shown(bound)} {unit}", f"{shown(measured)} {unit}", measured < bound)


def shown(figure: float) -> str:
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"


def times(what: str, measured: float, base: float, least: float) -> Goal:
    ratio = measured / base if base else 0.0
    return Goal(what, f"≥ {least:g}", f"{ratio:.2f}", ratio >= least)
