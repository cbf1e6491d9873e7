"""What a call through Agent-Reach costs, beside a direct call and a bare Django forwarder: one run, one machine.

    make bench        or        .venv/bin/python -m bench.run --seconds 3 --rounds 5 --concurrency 1,16,64
    make bench BASE=v1.2        this checkout (as it lies there, changes included) beside that commit, nothing else

direct       the load generator calls the node itself
forwarder    stock Django, stock ASGI handler, one async view, one pooled client; no keys, checks or records
agent-reach  a real instance on an empty home: keys, schemas, routes, signature, every call durable before and after
base         the same from the code of another commit, with the packages that are installed now

All get the same bytes and end at the same node. Forwarder and dispatchers are one process each, by the same server with
the same settings; instances have a home and a PostgreSQL each. Rounds are interleaved, in rotating order: a slow moment
of the machine falls on all of them.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import psutil

from bench.database import calls_by_status
from bench.load import GENERATOR, LoadFailed, offer_load
from bench.machine import Use, machine, sync_latency_ms
from bench.processes import NotStarted
from bench.report import LOAD, POSTGRES, SERVER, WORKER, Cell, idle_lines, ratios, results_table, summaries, verdict
from bench.targets import AGENT_REACH, BASE, BODY, FORWARDER, TARGETS, Rig, Target, start_rig
from reach_project.embedded import EmbeddedError

WARM_UP_S = 1
IDLE_S = 5
SETTLE_S = 0.2  # after a load: what it left in flight is finished, and its CPU counted
MANY = 16


def measure(target: Target, rig: Rig, concurrency: int, seconds: int) -> Cell:
    """Load one target once.

    CPU is divided by the calls that reached the node, since those in flight at the end cost CPU too, but by no more
    than were sent: a second attempt is no second call. An answer 200 for which the node was not asked is an error.
    """
    invoked_before = rig.invoked()
    used_before = {part: meter() for part, meter in target.meters.items()}
    load = offer_load(target.url, BODY, key=target.key, concurrency=concurrency, seconds=seconds)
    time.sleep(SETTLE_S)
    used_s = {part: meter() - used_before[part] for part, meter in target.meters.items()} | {LOAD: load.cpu_s}
    calls = min(rig.invoked() - invoked_before, load.answers + concurrency)
    succeeded = min(load.answers - load.refused, calls)
    return Cell(
        target=target.name,
        concurrency=concurrency,
        succeeded=succeeded,
        errors=load.answers - succeeded + load.broken,
        calls_per_s=succeeded / load.seconds,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        cpu_us={part: used / max(calls, 1) * 1e6 for part, used in used_s.items()},
    )


def measure_idle(rig: Rig, seconds: int) -> dict[str, float]:
    """Process → CPU milliseconds per second while nobody calls."""
    meters = {
        (target.name if part == SERVER else f"{target.name}'s {part}"): meter
        for target in rig.targets
        for part, meter in target.meters.items()
        if part in (SERVER, WORKER, POSTGRES)
    }
    before = {name: meter() for name, meter in meters.items()}
    time.sleep(seconds)
    return {name: (meter() - before[name]) / seconds * 1e3 for name, meter in meters.items()}


def measure_all(rig: Rig, *, rounds: int, concurrencies: Sequence[int], seconds: int) -> list[Cell]:
    cells = []
    for turn in range(rounds):
        say(f"round {turn + 1} of {rounds} …")
        first = turn % len(rig.targets)
        for concurrency in concurrencies:
            for target in rig.targets[first:] + rig.targets[:first]:
                cells.append(measure_living(target, rig, concurrency, seconds))
    return cells


def measure_living(target: Target, rig: Rig, concurrency: int, seconds: int) -> Cell:
    """`measure`, but what fails because a process has died is told as that, with the end of its log."""
    try:
        return measure(target, rig, concurrency, seconds)
    except (LoadFailed, OSError, psutil.Error):
        for one in rig.targets:
            if not one.process.alive:
                raise one.process.failure("ended under load") from None
        raise


def bench(options: argparse.Namespace, stack: ExitStack) -> int:
    """Run it all and print it. 0 when every figure can be trusted, else 1."""
    # Not /tmp, which is memory on many systems: commits must meet a real disk.
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reach-bench-", dir=parent)))
    document: dict[str, object] = {"machine": machine(), "load_generator": GENERATOR}
    print_facts({**machine(), "load generator": GENERATOR})

    say(f"starting {', '.join(options.targets)} …")
    rig = start_rig(stack, folder, options.targets, options.base)
    for database in list(rig.databases.values())[:1]:  # their settings are the same, and so is their disk
        median_ms, p99_ms = sync_latency_ms(database.data)
        document["postgresql"] = database.settings | {"sync_p50_ms": median_ms, "sync_p99_ms": p99_ms}
        print_facts(
            {
                "postgresql": ", ".join(f"{name} {value}" for name, value in database.settings.items()),
                "sync of 8 KiB": f"p50 {median_ms:.3f} ms, p99 {p99_ms:.3f} ms (measured in its data folder)",
            }
        )
    for target in rig.targets:
        measure_living(target, rig, MANY, WARM_UP_S)
    idle = measure_idle(rig, IDLE_S)
    used_before = Use.now()
    cells = measure_all(rig, rounds=options.rounds, concurrencies=options.concurrency, seconds=options.seconds)
    busy, stolen = Use.now().shares_since(used_before)

    results = summaries(cells)
    print(f"\nMedians of {options.rounds} rounds of {options.seconds} s (errors: sums), with CPU per call by process:")
    print("server = the forwarder's or the dispatcher's process with all its threads; load = the load generator;")
    print(
        "worker = the all-in-one beside the dispatcher, whose worker and beat it shares (idle but for their sweeps)\n"
    )
    print(results_table(results))
    print(f"\nthe machine's CPU meanwhile: {busy:.0%} busy, {stolen:.0%} withheld by the hypervisor")
    for line in idle_lines(idle, results, AGENT_REACH):
        print(line)
    for target in rig.targets:
        if any(cell.errors for cell in cells if cell.target == target.name):
            say(f"\n{target.process.failure('was measured with errors')}")
    doubts = [f"{errors} errors"] if (errors := sum(cell.errors for cell in cells)) else []
    document |= {"idle_cpu_ms_per_s": idle, "medians": [asdict(cell) for cell in results]}
    document |= {"cpu_busy": busy, "cpu_stolen": stolen}
    document["cells"] = [asdict(cell) for cell in cells]
    recorded = {name: calls_by_status(database.home) for name, database in rig.databases.items()}
    document["calls_by_status"] = recorded
    for name, by_status in recorded.items():
        answered = sum(cell.succeeded for cell in cells if cell.target == name)
        print(f"durable: {answered} answers of {name} measured; calls in its database: {by_status}")
        if (missing := answered - by_status.get("succeeded", 0)) > 0:
            doubts.append(f"{missing} answers of {name} without a succeeded call in its database")
    verdicts = compared(results)
    document |= {"not_valid_because": doubts, "cpu_ratio": verdicts}
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if doubts:
        print(f"\nNOT VALID: {' and '.join(doubts)}; such calls cost something else than true ones")
    if verdicts:
        print()
    for what, by_concurrency in verdicts.items():
        print(verdict(what, by_concurrency))
    return 1 if doubts else 0


def compared(results: Sequence[Cell]) -> dict[str, dict[int, float]]:
    """What is compared → concurrency → how many times as much; without what was not measured."""
    every_part = (SERVER, WORKER, POSTGRES)
    found = {
        "dispatcher CPU per durable call / forwarder CPU per bare call": ratios(results, AGENT_REACH, FORWARDER),
        "dispatcher CPU per call, this checkout / BASE": ratios(results, AGENT_REACH, BASE),
        "dispatcher, worker and PostgreSQL CPU per call, this checkout / BASE": ratios(
            results, AGENT_REACH, BASE, every_part
        ),
    }
    return {what: by_concurrency for what, by_concurrency in found.items() if by_concurrency}


def say(text: str) -> None:
    """Progress goes to stderr: stdout is the report."""
    print(text, file=sys.stderr, flush=True)


def print_facts(facts: dict[str, str]) -> None:
    for name, value in facts.items():
        print(f"{name + ':':<16}{value}", flush=True)


def names(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(TARGETS):
        raise argparse.ArgumentTypeError(f"no such target: {', '.join(sorted(unknown))}")
    return [name for name in TARGETS if name in chosen]


def numbers(text: str) -> list[int]:
    chosen = [int(part) for part in text.split(",")]
    if min(chosen) < 1:
        raise argparse.ArgumentTypeError("concurrency begins at 1")
    return chosen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=3, help="of each load (3)")
    parser.add_argument("--rounds", type=int, default=5, help="medians are over these (5)")
    parser.add_argument("--concurrency", type=numbers, default=[1, 16, 64], help="connections, a list (1,16,64)")
    parser.add_argument("--targets", type=names, help=f"a list ({','.join(TARGETS)}; with --base agent-reach)")
    parser.add_argument("--base", default="", metavar="COMMIT", help="measure that commit as well, and compare")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there as well")
    options = parser.parse_args()
    options.targets = options.targets or ([AGENT_REACH] if options.base else list(TARGETS))
    if options.base:
        options.targets.append(BASE)
    return options


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unwinds the stack, as Ctrl-C does
    try:
        with ExitStack() as stack:
            return bench(options, stack)
    except (NotStarted, LoadFailed, EmbeddedError) as exc:
        say(f"\nbench: {exc}")
        return 2
    except KeyboardInterrupt:
        say("\nbench: interrupted; everything that it started has ended")
        return 130


if __name__ == "__main__":
    sys.exit(main())
