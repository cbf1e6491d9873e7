"""What a call through Agent-Reach costs, beside its peers: one run, one machine, one report.

    make bench        or        .venv/bin/python -m bench.run --seconds 2 --rounds 3 --concurrency 1,16,64,256
    make bench ARGS=--full      every target in every setting: about three quarters of an hour
    make bench BASE=v1.2        this checkout (as it lies there, changes included) beside that commit, nothing else

direct       the load generator calls the node itself
nginx        nginx as reverse proxy of the node: what a proxy costs that knows nothing of the call
forwarder    stock Django, stock ASGI handler, one async view, one pooled client; no keys, checks or records
celery       a producer that enqueues a task and waits for its result, Redis, and a worker that calls the node
agent-reach  a real instance on an empty home: keys, schemas, routes, signature, every call durable before and after
relaxed      the same with REACH_DURABILITY=relaxed: as above, but nobody waits for the disk
base         agent-reach from the code of another commit, with the packages that are installed now

All get the same bytes and end at the same node. Forwarders, producers and dispatchers run by the same server with the
same settings; instances have a home and a PostgreSQL each. Rounds are interleaved, in rotating order: a slow moment of
the machine falls on all of them. The report goes to bench-report/: report.md, report.json and charts.
"""

import argparse
import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench import peers
from bench.charts import draw
from bench.database import calls_by_status
from bench.document import document
from bench.goals import Goal, goals
from bench.load import GENERATOR, WRK, LoadFailed, offer_load
from bench.machine import Use, machine, sync_latency_ms
from bench.plan import (
    BASE,
    CONCURRENCY,
    FORWARDER,
    MANY,
    NGINX,
    SOME,
    STRICT,
    TARGETS,
    Leg,
    legs,
    rotated,
)
from bench.processes import CHECKOUT, NotStarted, open_as_many_as_allowed
from bench.report import (
    LOAD,
    NODE,
    POSTGRES,
    SERVER,
    SMALL,
    WORKER,
    Cell,
    idle_lines,
    ratios,
    results_table,
    summaries,
    verdict,
)
from bench.slow import SlowCalls, measure_slow
from bench.targets import BODIES, BODY, Rig, Target, start_rig
from reach_project.embedded import EmbeddedError

WARM_UP_S = 1
IDLE_S = 5
REST_S = 10  # what the first calls and the start have left to do is done by then
SETTLE_S = 0.2  # after a load: what it left in flight is finished, and its CPU counted
SLOW_ROUNDS = 2
SLOW_LIGHT_S = 3
REPORT = CHECKOUT / "bench-report"


def measure(target: Target, rig: Rig, concurrency: int, seconds: int, payload: str = SMALL) -> Cell:
    """Load one target once.

    CPU is divided by the calls that reached the node, since those in flight at the end cost CPU too, but by no more
    than were sent: a second attempt is no second call. An answer 200 for which the node was not asked is an error.
    """
    invoked_before = rig.invoked()
    used_before = {part: meter.cpu_s() for part, meter in target.meters.items()}
    load = offer_load(target.urls, BODIES[payload], key=target.key, concurrency=concurrency, seconds=seconds)
    memory = {part: meter.uss_mib() for part, meter in target.meters.items() if part != NODE}
    time.sleep(SETTLE_S)
    used_s = {part: meter.cpu_s() - used_before[part] for part, meter in target.meters.items()} | {LOAD: load.cpu_s}
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
        p999_ms=load.p999_ms,
        cpu_us={part: used / max(calls, 1) * 1e6 for part, used in used_s.items()},
        uss_mib=memory,
        processes=target.processes,
        payload=payload,
    )


def measure_idle(rig: Rig, seconds: int) -> dict[str, float]:
    """Process → CPU milliseconds per second while nobody calls, of the targets with one process."""
    meters = {
        (target.name if part == SERVER else f"{target.name}'s {part}"): meter
        for target in rig.targets.values()
        for part, meter in target.meters.items()
        if part in (SERVER, WORKER, POSTGRES) and target.processes == 1
    }
    before = {name: meter.cpu_s() for name, meter in meters.items()}
    time.sleep(seconds)
    return {name: (meter.cpu_s() - before[name]) / seconds * 1e3 for name, meter in meters.items()}


def measure_all(rig: Rig, plan: Sequence[Leg], *, rounds: int, seconds: int) -> list[Cell]:
    cells = []
    for turn in range(rounds):
        say(f"round {turn + 1} of {rounds} …")
        for leg in plan:
            for name in rotated(leg.targets, turn):
                target = rig.targets[name, leg.processes]
                cells.append(measure_living(target, rig, leg.concurrency, seconds, leg.payload))
    return cells


def measure_living(target: Target, rig: Rig, concurrency: int, seconds: int, payload: str = SMALL) -> Cell:
    """`measure`, but what fails because a process has died is told as that, with the end of its log."""
    try:
        return measure(target, rig, concurrency, seconds, payload)
    except (LoadFailed, OSError, psutil.Error):
        for one in rig.targets.values():
            for process in one.started:
                if not process.alive:
                    raise process.failure("ended under load") from None
        raise


@dataclass(slots=True)
class Findings:
    """What a run has found, before anybody reads it."""

    cells: list[Cell]
    idle: dict[str, float]
    steady: Cell | None = None
    slow: SlowCalls | None = None
    sync_ms: tuple[float, float] | None = None
    recorded: dict[str, dict[str, int]] = field(default_factory=dict)
    shares: tuple[float, float] = (0.0, 0.0)
    """Of the machine's CPU: busy, withheld by a hypervisor."""


def bench(options: argparse.Namespace, stack: ExitStack) -> int:
    """Run it all and report it. 0 when every figure can be trusted, else 1."""
    # Not /tmp, which is memory on many systems: commits must meet a real disk.
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reach-bench-", dir=parent)))
    folder.chmod(0o755)  # nginx's workers may be another user
    facts = {**machine(), "load generator": GENERATOR}
    print_facts(facts)
    plan = legs(options.targets, options.concurrency, full=options.full)
    say(f"starting {', '.join(options.targets)} …")
    rig = start_rig(stack, folder, plan, options.base)
    found, more_facts = measured(rig, plan, options)
    return report(rig, found, facts | more_facts, options)


def measured(rig: Rig, plan: Sequence[Leg], options: argparse.Namespace) -> tuple[Findings, dict[str, str]]:
    facts: dict[str, str] = {}
    sync_ms = None
    for database in list(rig.databases.values())[:1]:  # their settings are the same, and so is their disk
        sync_ms = sync_latency_ms(database.data)
        facts = {
            "postgresql": ", ".join(f"{name} {value}" for name, value in database.settings.items()),
            "sync of 8 KiB": f"p50 {sync_ms[0]:.3f} ms, p99 {sync_ms[1]:.3f} ms (measured in its data folder)",
        }
        print_facts(facts)
    for target in rig.targets.values():
        measure_living(target, rig, SOME, WARM_UP_S)
    time.sleep(REST_S)
    idle = measure_idle(rig, IDLE_S)
    used_before = Use.now()
    found = Findings(measure_all(rig, plan, rounds=options.rounds, seconds=options.seconds), idle, sync_ms=sync_ms)
    found.shares = Use.now().shares_since(used_before)
    strict = rig.targets.get((STRICT, 1))
    if strict is not None and options.steady:
        say(f"{STRICT} for {options.steady} s …")
        found.steady = measure_living(strict, rig, MANY, options.steady)
    if strict is not None and options.slow:
        say(f"{options.slow} slow calls in flight …")
        found.slow = measure_slow(
            strict,
            options.slow,
            rounds=SLOW_ROUNDS,
            light=lambda: offer_load(strict.urls, BODY, key=strict.key, concurrency=SOME, seconds=SLOW_LIGHT_S),
        )
    found.recorded = {name: calls_by_status(database.home) for name, database in rig.databases.items()}
    return found, facts


def report(rig: Rig, found: Findings, facts: dict[str, str], options: argparse.Namespace) -> int:
    results = summaries(found.cells)
    doubts = doubts_of(found)
    judged = goals(results, sync_ms=found.sync_ms[0] if found.sync_ms else None, steady=found.steady, slow=found.slow)
    verdicts = compared(results)
    busy, stolen = found.shares
    notes = [
        f"the machine's CPU meanwhile: {busy:.0%} busy, {stolen:.0%} withheld by the hypervisor",
        *idle_lines(found.idle, results, STRICT),
        *(f"calls in the database of {name}: {by_status}" for name, by_status in found.recorded.items()),
        *(verdict(what, by_concurrency) for what, by_concurrency in verdicts.items()),
    ]
    if not WRK:
        notes.append(GENERATOR)
    print(f"\nMedians of {options.rounds} rounds of {options.seconds} s, with CPU per call by part:\n")
    print(results_table([*results, *([found.steady] if found.steady else [])]))
    print("\n" + "\n".join(notes))
    if found.slow:
        print(f"slow calls: {asdict(found.slow)}")
    for target in rig.targets.values():
        if any(cell.errors for cell in found.cells if (cell.target, cell.processes) == (target.name, target.processes)):
            say(f"\n{target.started[0].failure('was measured with errors')}")
    everything: dict[str, Any] = {
        "facts": facts,
        "idle_cpu_ms_per_s": found.idle,
        "medians": [asdict(cell) for cell in results],
        "steady": found.steady and asdict(found.steady),
        "slow": found.slow and asdict(found.slow),
        "goals": [asdict(goal) for goal in judged],
        "cpu_busy": busy,
        "cpu_stolen": stolen,
        "calls_by_status": found.recorded,
        "not_valid_because": doubts,
        "cpu_ratio": verdicts,
        "cells": [asdict(cell) for cell in found.cells],
    }
    options.report.mkdir(parents=True, exist_ok=True)
    text = json.dumps(everything, indent=2) + "\n"
    (options.report / "report.json").write_text(text)
    if options.json:
        options.json.write_text(text)
    written = document(
        command=shlex.join(["bench.run", *sys.argv[1:]]),
        facts=facts,
        results=results,
        rounds=options.rounds,
        seconds=options.seconds,
        steady=found.steady,
        slow=found.slow,
        judged=judged,
        doubts=doubts,
        charts=draw(results, options.report),
        notes=notes,
    )
    (options.report / "report.md").write_text(written)
    print_verdicts(judged, doubts)
    print(f"\nreport: {options.report / 'report.md'}")
    return 1 if doubts else 0


def print_verdicts(judged: Sequence[Goal], doubts: Sequence[str]) -> None:
    print()
    for goal in judged:
        print(f"{'met ' if goal.met else 'MISSED'}  {goal.what}: {goal.measured} ({goal.bound})")
    if doubts:
        print(f"\nNOT VALID: {' and '.join(doubts)}; such calls cost something else than true ones")


def doubts_of(found: Findings) -> list[str]:
    """Why these figures cannot be trusted."""
    cells = [*found.cells, *([found.steady] if found.steady else [])]
    doubts = [f"{errors} errors"] if (errors := sum(cell.errors for cell in cells)) else []
    if mute := sum(not cell.succeeded for cell in cells):
        doubts.append(f"{mute} loads without any answer (the machine is too busy)")
    if found.slow and (found.slow.light_errors or not found.slow.light_p99_beside_ms):
        doubts.append("light calls beside slow ones failed")
    if found.slow and found.slow.answered != found.slow.wanted:
        doubts.append(f"{found.slow.wanted - found.slow.answered} slow calls without an answer")
    for name, by_status in found.recorded.items():
        answered = sum(cell.succeeded for cell in cells if cell.target in OF_INSTANCE[name])
        if (missing := answered - by_status.get("succeeded", 0)) > 0:
            doubts.append(f"{missing} answers of {name} without a succeeded call in its database")
    return doubts


OF_INSTANCE = {STRICT: (STRICT, "relaxed"), BASE: (BASE,)}
"""Whose calls an instance's database holds."""


def compared(results: Sequence[Cell]) -> dict[str, dict[int, float]]:
    """What is compared → concurrency → how many times as much; without what was not measured."""
    every_part = (SERVER, WORKER, POSTGRES)
    found = {
        "dispatcher CPU per durable call / forwarder CPU per bare call": ratios(results, STRICT, FORWARDER),
        "dispatcher CPU per call, this checkout / BASE": ratios(results, STRICT, BASE),
        "dispatcher, worker and PostgreSQL CPU per call, this checkout / BASE": ratios(
            results, STRICT, BASE, every_part
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
    parser.add_argument("--seconds", type=int, default=2, help="of each load (2)")
    parser.add_argument("--rounds", type=int, default=3, help="medians are over these (3; with --base 7)")
    parser.add_argument("--concurrency", type=numbers, default=list(CONCURRENCY), help="a list (1,16,64,256)")
    parser.add_argument("--targets", type=names, help=f"a list ({','.join(TARGETS)}; with --base {STRICT})")
    parser.add_argument("--full", action="store_true", help="every target in every setting")
    parser.add_argument("--steady", type=int, default=60, help="seconds of one long run of agent-reach (60; 0: none)")
    parser.add_argument("--slow", type=int, default=2000, help="slow calls held in flight (2000; 0: none)")
    parser.add_argument("--base", default="", metavar="COMMIT", help="measure that commit as well, and compare")
    parser.add_argument("--report", type=Path, default=REPORT, metavar="FOLDER", help=f"({REPORT.name}/)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there as well")
    options = parser.parse_args()
    if options.base:
        compare_commits(parser, options)
    options.targets = options.targets or [name for name in TARGETS if name != NGINX or peers.NGINX]
    return options


def compare_commits(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """BASE is about two commits only: no peers, no long run; more rounds instead."""
    options.targets = [*(options.targets or [STRICT]), BASE]
    options.steady = options.slow = 0
    if options.rounds == parser.get_default("rounds"):
        options.rounds = 7
    if options.concurrency == parser.get_default("concurrency"):
        options.concurrency = [1, SOME, MANY]


def main() -> int:
    options = arguments()
    open_as_many_as_allowed()
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
