"""Figures as text: medians of the rounds, aligned tables, the verdict. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

SERVER, WORKER, POSTGRES, NODE, LOAD = "server", "worker", "postgres", "node", "load"


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: one target at one concurrency in one round. CPU is in µs per call, by process."""

    target: str
    concurrency: int
    succeeded: int
    errors: int
    calls_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: dict[str, float]


def summary(cells: Sequence[Cell]) -> Cell:
    """Median of each figure over rounds of the same target and concurrency; counts are added up."""
    return Cell(
        target=cells[0].target,
        concurrency=cells[0].concurrency,
        succeeded=sum(cell.succeeded for cell in cells),
        errors=sum(cell.errors for cell in cells),
        calls_per_s=median(cell.calls_per_s for cell in cells),
        p50_ms=median(cell.p50_ms for cell in cells),
        p99_ms=median(cell.p99_ms for cell in cells),
        cpu_us={part: median(cell.cpu_us[part] for cell in cells) for part in cells[0].cpu_us},
    )


def summaries(cells: Sequence[Cell]) -> list[Cell]:
    """One summary for each (concurrency, target), in the order of first appearance in a table sorted by concurrency."""
    targets = list(dict.fromkeys(cell.target for cell in cells))
    keys = sorted({(cell.concurrency, targets.index(cell.target)) for cell in cells})
    return [
        summary([cell for cell in cells if (cell.concurrency, cell.target) == (concurrency, targets[index])])
        for concurrency, index in keys
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need be, set to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in ruled)


def results_table(results: Sequence[Cell]) -> str:
    head = ["target", "c", "calls/s", "p50 ms", "p99 ms", "errors"]
    head += ["server µs", "worker µs", "PostgreSQL µs", "node µs", "load µs"]
    rows = []
    for cell in results:
        parts = (SERVER, WORKER, POSTGRES, NODE, LOAD)
        cpu = [f"{cell.cpu_us[part]:.0f}" if part in cell.cpu_us else "-" for part in parts]
        rows.append(
            [
                cell.target,
                str(cell.concurrency),
                f"{cell.calls_per_s:.0f}",
                f"{cell.p50_ms:.2f}",
                f"{cell.p99_ms:.2f}",
                str(cell.errors),
                *cpu,
            ]
        )
    return table(head, rows)


def idle_lines(idle_ms_per_s: dict[str, float], results: Sequence[Cell], target: str) -> list[str]:
    """What the processes use while nobody calls, and how much of a call's figure that is: it is not subtracted."""
    share = "; ".join(
        f"{idle_ms_per_s[target] / cell.calls_per_s * 1e3:.0f} µs at c={cell.concurrency}"
        for cell in results
        if cell.target == target and cell.calls_per_s
    )
    lines = [f"idle CPU of {name}: {used:.1f} ms per second" for name, used in idle_ms_per_s.items()]
    return [*lines, f"of that in each call's server µs of {target} (not subtracted): {share}"] if share else lines


def ratios(results: Sequence[Cell], above: str, below: str, parts: Sequence[str] = (SERVER,)) -> dict[int, float]:
    """Concurrency → CPU per call of these processes of `above`, as a multiple of those of `below`."""
    cost = {(cell.target, cell.concurrency): sum(cell.cpu_us.get(part, 0.0) for part in parts) for cell in results}
    return {
        concurrency: cpu_us / base
        for (target, concurrency), cpu_us in cost.items()
        if target == above and (base := cost.get((below, concurrency), 0.0))
    }


def verdict(what: str, by_concurrency: dict[int, float]) -> str:
    """A line that is looked at first; the figure is the worst of the concurrencies."""
    each = ", ".join(f"{ratio:.2f} at c={concurrency}" for concurrency, ratio in sorted(by_concurrency.items()))
    return f"{what} = {max(by_concurrency.values()):.2f} (the worst of {each})"
