"""Figures as text: medians of the rounds, aligned tables, the verdict. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

SERVER, WORKER, POSTGRES, REDIS, NODE, LOAD = "server", "worker", "postgres", "redis", "node", "load"
PARTS = (SERVER, WORKER, POSTGRES, REDIS, NODE, LOAD)
SMALL = "0.3 KB"
Setting = tuple[int, int, str]
"""Processes, concurrency, payload."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: one target in one setting in one round. CPU is in µs per call, by part; so is memory (MiB)."""

    target: str
    concurrency: int
    succeeded: int
    errors: int
    calls_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: dict[str, float]
    p999_ms: float = 0.0
    uss_mib: dict[str, float] = field(default_factory=dict)
    processes: int = 1
    payload: str = SMALL

    @property
    def setting(self) -> Setting:
        return (self.processes, self.concurrency, self.payload)


def summary(cells: Sequence[Cell]) -> Cell:
    """Median of each figure over rounds of the same target and setting; counts are added up, memory is the most."""
    return Cell(
        target=cells[0].target,
        concurrency=cells[0].concurrency,
        succeeded=sum(cell.succeeded for cell in cells),
        errors=sum(cell.errors for cell in cells),
        calls_per_s=median(cell.calls_per_s for cell in cells),
        p50_ms=median(cell.p50_ms for cell in cells),
        p99_ms=median(cell.p99_ms for cell in cells),
        p999_ms=median(cell.p999_ms for cell in cells),
        cpu_us={part: median(cell.cpu_us[part] for cell in cells) for part in cells[0].cpu_us},
        uss_mib={part: max(cell.uss_mib[part] for cell in cells) for part in cells[0].uss_mib},
        processes=cells[0].processes,
        payload=cells[0].payload,
    )


def summaries(cells: Sequence[Cell]) -> list[Cell]:
    """One summary for each setting and target, in the order of payloads, processes, concurrency, targets."""
    targets = list(dict.fromkeys(cell.target for cell in cells))
    payloads = list(dict.fromkeys(cell.payload for cell in cells))
    by_place: dict[tuple[int, int, int, int], list[Cell]] = {}
    for cell in cells:
        place = payloads.index(cell.payload), cell.processes, cell.concurrency, targets.index(cell.target)
        by_place.setdefault(place, []).append(cell)
    return [summary(by_place[place]) for place in sorted(by_place)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need be, set to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in ruled)


HEAD = ["target", "procs", "payload", "c", "calls/s", "p50 ms", "p99 ms", "p99.9 ms", "errors"]
HEAD += [f"{part} µs" for part in PARTS]


def results_rows(results: Sequence[Cell]) -> list[list[str]]:
    """The cells under `HEAD`."""
    return [
        [
            cell.target,
            str(cell.processes),
            cell.payload,
            str(cell.concurrency),
            f"{cell.calls_per_s:.0f}",
            f"{cell.p50_ms:.2f}",
            f"{cell.p99_ms:.2f}",
            f"{cell.p999_ms:.2f}",
            str(cell.errors),
            *(f"{cell.cpu_us[part]:.0f}" if part in cell.cpu_us else "-" for part in PARTS),
        ]
        for cell in results
    ]


def results_table(results: Sequence[Cell]) -> str:
    return table(HEAD, results_rows(results))


def idle_lines(idle_ms_per_s: dict[str, float], results: Sequence[Cell], target: str) -> list[str]:
    """What the processes use while nobody calls, and how much of a call's figure that is: it is not subtracted."""
    share = "; ".join(
        f"{idle_ms_per_s[target] / cell.calls_per_s * 1e3:.0f} µs at c={cell.concurrency}"
        for cell in results
        if cell.target == target and cell.calls_per_s and cell.setting == (1, cell.concurrency, SMALL)
    )
    lines = [f"idle CPU of {name}: {used:.1f} ms per second" for name, used in idle_ms_per_s.items()]
    return [*lines, f"of that in each call's server µs of {target} (not subtracted): {share}"] if share else lines


def ratios(results: Sequence[Cell], above: str, below: str, parts: Sequence[str] = (SERVER,)) -> dict[int, float]:
    """Concurrency → CPU per call of these parts of `above`, as a multiple of those of `below`; one process, small."""
    cost = {
        (cell.target, cell.concurrency): sum(cell.cpu_us.get(part, 0.0) for part in parts)
        for cell in results
        if cell.setting == (1, cell.concurrency, SMALL)
    }
    return {
        concurrency: cpu_us / base
        for (target, concurrency), cpu_us in cost.items()
        if target == above and (base := cost.get((below, concurrency), 0.0))
    }


def verdict(what: str, by_concurrency: dict[int, float]) -> str:
    """A line that is looked at first; the figure is the worst of the concurrencies."""
    each = ", ".join(f"{ratio:.2f} at c={concurrency}" for concurrency, ratio in sorted(by_concurrency.items()))
    return f"{what} = {max(by_concurrency.values()):.2f} (the worst of {each})"
