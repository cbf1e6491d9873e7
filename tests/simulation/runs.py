"""Running seeds: one, with what it tells where a rule is broken; or many, on several processes, resumed."""

import gc
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.simulation.storm import Storm, chart
from tests.simulation.watch import Violation
from tests.simulation.world import Scenario, World

BEFORE_S = 3.0
"""Of what happens to the world, so long before a call begins may matter to it."""


class Failed(AssertionError):
    """A rule is broken: which, the call's history, and how to see it again."""


def run(scenario: Scenario) -> World:
    """Let one world live. Raises Failed."""
    world = World(scenario)
    try:
        world.run()
    except Violation as violation:
        raise Failed(told(scenario, violation)) from None
    return world


def told(scenario: Scenario, violation: Violation) -> str:
    """What a broken rule looks like to who has to mend it; the history comes from living the same seed once more."""
    where = f"seed {scenario.seed}, at {violation.at_s:.3f} s"
    lines = [f"{violation.rule}: {violation.detail}", f"({where}, call {violation.call_id or '–'})", ""]
    lines += shortest_history(scenario, violation)
    return "\n".join([*lines, "", f"again: {command(scenario)}"])


def shortest_history(scenario: Scenario, violation: Violation) -> list[str]:
    """The lines of the call, and of what happened to the world meanwhile; without a call the last of the world's."""
    kept = history(scenario, only=violation.call_id or "none")
    if violation.call_id is None:
        return kept[-30:]
    first = next((index for index, line in enumerate(kept) if violation.call_id in line), 0)
    since_s = float(kept[first].split()[0]) - BEFORE_S if kept else 0.0
    return [line[:400] for line in kept if float(line.split()[0]) >= since_s]


def history(scenario: Scenario, *, only: str | None = None) -> list[str]:
    """All that happens in a world, a line each; `only`: of one call, and to the world."""
    world = World(scenario)
    world.watch.history, world.watch.only = [], only
    try:
        world.run()
    except Violation as violation:
        world.watch.history.append(f"{violation.at_s:.6f} broken: {violation}")
    return world.watch.history


def command(scenario: Scenario) -> str:
    """How to run this very world again."""
    given = ["manage.py reach_simulate", f"--seed {scenario.seed}"]
    for field in fields(Scenario):
        if field.name != "seed" and (value := getattr(scenario, field.name)) != field.default:
            given.append(f"--{field.name.replace('_', '-')} {value}")
    return " ".join(given)


# --- Many ------------------------------------------------------------------------------------------------------------


def result_of(scenario: Scenario, *, drawn: Path | None = None) -> dict[str, Any]:
    """One seed's figures, for a line of JSON. `drawn`: a storm's chart is written there."""
    began_s = time.process_time()
    world, failed = World(scenario), None
    try:
        world.run()
    except Violation as violation:
        failed = told(scenario, violation)
    if drawn is not None and isinstance(world.faults, Storm):
        drawn.write_text(chart(world.faults))
    watch = world.watch
    found = {
        "scenario": asdict(scenario),
        "failed": failed,
        "cpu_s": round(time.process_time() - began_s, 2),
        "simulated_s": round(world.scheduler.now_s, 1),
        "processes": world.processes_started,
        "redis": world.has_redis,
        "counts": dict(watch.counts),
        "receipts": dict(watch.kinds),
        "endings": dict(watch.endings),
        "told": dict(world.callers.told_codes),
    }
    del world, watch
    gc.collect()  # a world is one large circle, of a hundred megabytes
    return found


def run_many(scenarios: Iterable[Scenario], *, processes: int, kept: Path | None = None) -> Iterator[dict[str, Any]]:
    """The figures of each, as they come. What `kept` holds of an earlier run is not run again."""
    known = {json.dumps(one["scenario"], sort_keys=True): one for one in read_kept(kept)}
    left = []
    for scenario in scenarios:
        if (one := known.get(json.dumps(asdict(scenario), sort_keys=True))) is not None:
            yield one
        else:
            left.append(scenario)
    with ProcessPoolExecutor(processes, mp_context=get_context("fork"), initializer=os.nice, initargs=(0,)) as pool:
        for done in as_completed([pool.submit(result_of, scenario) for scenario in left]):
            one = done.result()
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps(one) + "\n")
            yield one


def read_kept(kept: Path | None) -> list[dict[str, Any]]:
    if kept is None or not kept.exists():
        return []
    return [json.loads(line) for line in kept.read_text().splitlines()]


def report(results: list[dict[str, Any]]) -> str:
    """Markdown: what was lived through, and what came of it."""
    sums = {name: Counter[str]() for name in ("counts", "receipts", "endings", "told")}
    for one in results:
        for name, counter in sums.items():
            counter.update(one[name])
    counts, broken = sums["counts"], [one for one in results if one["failed"]]
    faults = {name.removeprefix("fault: "): count for name, count in counts.items() if name.startswith("fault: ")}
    asked = sum(sums["told"].values())
    simulated_h = sum(one["simulated_s"] for one in results) / 3600
    attempts = counts["sent"] / max(1, counts["accepted"] - sums["endings"]["rejected"])
    lines = [
        f"{len(results)} seeds of {results[0]['scenario']['calls']:,} calls: **{len(broken)} broke a rule**.",
        "",
        "| what | how much |",
        "|---|---|",
        f"| requests of callers | {asked:,} |",
        f"| calls accepted, ended | {counts['accepted']:,}, {counts['ended']:,} |",
        f"| of them asynchronous: callers told so, taken by an engine, given back |"
        f" {counts['promised']:,}, {counts['taken by an engine']:,}, {counts['given back']:,} |",
        f"| envelopes sent (for each call that was not rejected) | {counts['sent']:,} ({attempts:.3f}) |",
        f"| envelopes that a node worked on | {counts['worked']:,} |",
        f"| retries charged to a budget | {counts['retries']:,} |",
        f"| calls taken over from another process | {counts['taken over']:,} |",
        f"| processes started | {sum(one['processes'] for one in results):,} |",
        f"| simulated time | {simulated_h:,.1f} h |",
        f"| CPU time | {sum(one['cpu_s'] for one in results) / 60:,.0f} min |",
        "",
        *table("ended as", sums["endings"]),
        *table("callers were told", sums["told"]),
        *table("receipts", sums["receipts"]),
        *table("faults", Counter({name.replace("_", " "): count for name, count in faults.items()})),
    ]
    for one in broken:
        lines += ["```", one["failed"], "```", ""]
    return "\n".join(lines)


def table(what: str, counter: Counter[str]) -> list[str]:
    rows = [f"| {name} | {count:,} |" for name, count in counter.most_common()]
    return [f"| {what} | |", "|---|---|", *rows, ""]
