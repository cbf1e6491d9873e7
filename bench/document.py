"""The report of one run: Markdown for people, with the charts beside it. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from bench.goals import Goal
from bench.report import HEAD, PARTS, Cell, results_rows
from bench.slow import SlowCalls


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def document(
    *,
    command: str,
    facts: Mapping[str, str],
    results: Sequence[Cell],
    rounds: int,
    seconds: int,
    steady: Cell | None,
    slow: SlowCalls | None,
    judged: Sequence[Goal],
    doubts: Sequence[str],
    charts: Sequence[str],
    notes: Sequence[str],
) -> str:
    """Everything that one run has found."""
    parts = ["# What a call costs", f"`{command}`", "## Measured on", markdown_table(["", ""], facts.items())]
    if doubts:
        parts.append(f"**NOT VALID: {' and '.join(doubts)}.** Such calls cost something else than true ones.")
    if judged:
        rows = [[goal.what, goal.bound, goal.measured, "yes" if goal.met else "**no**"] for goal in judged]
        parts += ["## Goals", markdown_table(["goal", "bound", "measured", "met"], rows)]
    parts += [
        "## Every target in every setting",
        f"Medians of {rounds} interleaved rounds of {seconds} s; errors are added up. CPU is in µs per call: `server`"
        " is nginx, the forwarder, Celery's producer or the dispatcher; `worker` Celery's worker, or the all-in-one"
        " beside the dispatcher; `load` is the generator.",
        markdown_table(HEAD, results_rows(results)),
        "\n".join(f"![{name}]({name})" for name in charts),
        "## Private memory",
        "The most that was seen while a load was on (USS, MiB).",
        memory_table(results),
    ]
    if steady:
        parts += ["## A longer run", markdown_table(HEAD, results_rows([steady]))]
    if slow:
        parts += ["## Slow calls in flight", slow_table(slow)]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def memory_table(results: Sequence[Cell]) -> str:
    most: dict[tuple[str, int], dict[str, float]] = {}
    for cell in results:
        known = most.setdefault((cell.target, cell.processes), {})
        for part, mib in cell.uss_mib.items():
            known[part] = max(mib, known.get(part, 0.0))
    named = [part for part in PARTS if any(part in known for known in most.values())]
    rows = [
        [name, str(processes), *(f"{known[part]:.0f}" if part in known else "-" for part in named)]
        for (name, processes), known in most.items()
    ]
    return markdown_table(["target", "procs", *named], rows)


def slow_table(slow: SlowCalls) -> str:
    rows = {
        "slow calls in flight": f"{slow.in_flight}",
        "answered": f"{slow.answered} of {slow.wanted}",
        "dispatcher's memory without them": f"{slow.idle_mib:.0f} MiB",
        "dispatcher's memory with them": f"{slow.held_mib:.0f} MiB",
        "light calls' p99 without them": f"{slow.light_p99_ms:.2f} ms",
        "light calls' p99 with them": f"{slow.light_p99_beside_ms:.2f} ms",
        "errors of light calls": f"{slow.light_errors}",
    }
    return markdown_table(["", ""], rows.items())
