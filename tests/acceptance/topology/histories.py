"""Judges what has happened by two kinds of files alone: what nodes wrote down themselves, and receipts.

    python -m tests.acceptance.topology.histories FOLDER

`runs.jsonl` has a line for each run at a node: {"call_id", "attempt", "idempotent"}; `accepted.jsonl` the id of each
call that a caller was told of; `receipts.jsonl` the receipts of each call: {"call_id", "receipts": [{"seq", "kind"}]}.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENDS = {"succeeded", "failed", "timed_out", "cancelled", "rejected"}


def lines(path: Path) -> Iterator[Any]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def faults(folder: Path) -> Iterator[str]:
    """What should not have happened, a sentence each."""
    receipts = {row["call_id"]: row["receipts"] for row in lines(folder / "receipts.jsonl")}
    runs = defaultdict(list)
    for run in lines(folder / "runs.jsonl"):
        runs[run["call_id"]].append(run)
    for call_id in lines(folder / "accepted.jsonl"):
        if call_id not in receipts:
            yield f"{call_id} was accepted and is lost"
    for call_id in runs.keys() - receipts.keys():
        yield f"{call_id} ran at a node and was never accepted"
    for call_id, told in receipts.items():
        for fault in faults_of(told, runs[call_id]):
            yield f"{call_id}: {fault}: {[(one['seq'], one['kind'], one['attempt']) for one in told]}"


def faults_of(told: list[dict[str, Any]], runs: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with one call."""
    kinds = [receipt["kind"] for receipt in told]
    if [receipt["seq"] for receipt in told] != list(range(1, len(told) + 1)):
        yield "its receipts have a gap"
    if kinds[:1] != ["accepted"]:
        yield "it does not begin with its acceptance"
    ends = [kind for kind in kinds if kind in ENDS]
    if len(ends) != 1:
        yield f"it has {len(ends)} ends"
    elif set(kinds[kinds.index(ends[0]) + 1 :]) - {"late_result"}:
        yield "it goes on after its end"
    forwarded = Counter(receipt["attempt"] for receipt in told if receipt["kind"] == "forwarded")
    if any(count > 1 for count in forwarded.values()):
        yield "an attempt was forwarded twice"
    ran = Counter(run["attempt"] for run in runs)
    if any(count > 1 for count in ran.values()):
        yield "an attempt ran twice"
    if ran.keys() - forwarded.keys():
        yield "an attempt ran that was not written down before"
    if len(runs) > 1 and not runs[0]["idempotent"]:
        yield f"it must not be repeated and ran {len(runs)} times"
    if ends == ["succeeded"] and not runs:
        yield "it succeeded and ran nowhere"


def summary(folder: Path) -> str:
    """How many calls ended how, and how often they ran."""
    ends: Counter[str] = Counter()
    recovered = 0
    for row in lines(folder / "receipts.jsonl"):
        kinds = [receipt["kind"] for receipt in row["receipts"]]
        ends.update(kind for kind in kinds if kind in ENDS)
        recovered += "recovered" in kinds
    runs = sum(1 for _ in lines(folder / "runs.jsonl"))
    return f"{ends.total()} calls ended: {dict(ends)}; {recovered} were taken over; {runs} runs at nodes"


def main(folder: Path) -> int:
    found = list(faults(folder))
    print(summary(folder))
    for fault in found[:20]:
        print(fault)
    print(f"{len(found)} faults" if found else "nothing is lost, nothing unsafe ran twice")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
