"""What the probes of a fleet cost: on the worker that makes them, and per call on the dispatcher beside it.

    .venv/bin/python -m bench.fleet --nodes 500 --rounds 7

Dispatcher, worker, beat, console, PostgreSQL and Redis run as processes of their own, as in production. First nobody
calls: the worker's CPU, and how late any node's turn was. Then calls are measured in interleaved rounds with the
probes going on and with beat stopped (SIGSTOP), so that a slow moment of the machine falls on both.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.load import offer_load
from bench.machine import machine
from bench.processes import cpu_s, free_port, inherited_environment, running, wait_until_answers
from bench.targets import BODY
from tests.bed.topology import Topology

LATENESS = """
SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - due_at)), 0),
    count(*) FILTER (WHERE checked_at IS NOT NULL), count(*) FILTER (WHERE failures > 0)
FROM registry_nodeprobe
"""
PER_SERVICE = 10


@contextmanager
def topology(folder: Path) -> Iterator[Topology]:
    reach = Topology(folder / "reach", dispatchers=1, workers=1)
    try:
        yield reach.start()
    finally:
        reach.remove()


@contextmanager
def bench_node(folder: Path, reach: Topology) -> Iterator[str]:
    """The node of all calls and all probes; its address."""
    port = free_port()
    environment = inherited_environment(BENCH_KEY=reach.key)
    command = [sys.executable, "-m", "bench.node", str(port), reach.url]
    with running("node", command, environment=environment, log=folder / "node.log") as process:
        wait_until_answers(process, f"http://127.0.0.1:{port}/reach/live", timeout_s=30)
        yield f"http://127.0.0.1:{port}"


def register_fleet(reach: Topology, address: str, nodes: int) -> None:
    """So many nodes, ten a service, all answered by one process."""

    def register(number: int) -> None:
        service = f"fleet-{number // PER_SERVICE}"
        capability = {"name": f"fleet_task_{number // PER_SERVICE}", "idempotent": True}
        body = {"address": address, "lease_ttl_s": 3600, "capabilities": [capability]}
        path = f"/api/v1/services/{service}/nodes/n{number % PER_SERVICE}"
        answer = reach.request("PUT", path, body, key=reach.key)
        assert answer.status == 201, answer.body

    with ThreadPoolExecutor(4) as together:
        list(together.map(register, range(nodes)))


def watch_probes(reach: Topology, seconds: int) -> dict[str, float]:
    """The worker's share of a core while nobody calls, the latest turn (s), and how many nodes were probed."""
    worker, beat = reach.workers[0], reach.beat
    latest_s = 0.0
    with psycopg.connect(reach.environment["DATABASE_URL"], autocommit=True) as session:
        before, beat_before, began = cpu_s(worker.pid), cpu_s(beat.pid), time.monotonic()
        while time.monotonic() - began < seconds:
            nodes, late_s, probed, failing = session.execute(LATENESS).fetchone() or (0, 0, 0, 0)
            latest_s = max(latest_s, float(late_s))
            time.sleep(0.5)
        took_s = time.monotonic() - began
    return {
        "nodes": nodes,
        "probed": probed,
        "failing": failing,
        "worker_share": (cpu_s(worker.pid) - before) / took_s,
        "beat_share": (cpu_s(beat.pid) - beat_before) / took_s,
        "latest_s": latest_s,
    }


def cpu_per_call_us(reach: Topology, key: str, *, concurrency: int, seconds: int) -> float:
    dispatcher = reach.dispatchers[0]
    before = cpu_s(dispatcher.pid)
    load = offer_load([f"{reach.url}/api/v1/dispatch"], BODY, key=key, concurrency=concurrency, seconds=seconds)
    if load.refused or load.broken:
        raise SystemExit(f"bench.fleet: {load.refused} calls were refused, {load.broken} broken")
    return (cpu_s(dispatcher.pid) - before) / load.answers * 1e6


def compare(reach: Topology, key: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """µs of dispatcher CPU per call, with the probes and without, a figure a round."""
    found: dict[str, list[float]] = {"probed": [], "unprobed": []}
    cpu_per_call_us(reach, key, concurrency=options.concurrency, seconds=2)
    for turn in range(options.rounds):
        for what in ("probed", "unprobed")[:: 1 if turn % 2 == 0 else -1]:
            if what == "unprobed":
                reach.beat.pause()
                time.sleep(3)  # what beat had sent is done
            found[what].append(cpu_per_call_us(reach, key, concurrency=options.concurrency, seconds=options.seconds))
            if what == "unprobed":
                reach.beat.resume()
                time.sleep(3)
        print(f"round {turn + 1}: {found['probed'][-1]:.0f} / {found['unprobed'][-1]:.0f} µs", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--watch", type=int, default=40, help="seconds without calls (40)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=4, help="of each load (4)")
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    for name, value in machine().items():
        print(f"{name + ':':<16}{value}")
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="reach-fleet-", dir=parent) as name:
        folder = Path(name)
        with topology(folder) as reach, bench_node(folder, reach) as address:
            wanted = {"service_id": "bench-caller", "scopes": ["dispatch"]}
            key = reach.request("POST", "/api/v1/keys", wanted, key=reach.key).json["key"]
            register_fleet(reach, address, options.nodes)
            time.sleep(12)  # every node has had its first turns
            seen = watch_probes(reach, options.watch)
            print(json.dumps(seen))
            found = compare(reach, key, options) if options.rounds else {}
    if found:
        medians = {what: statistics.median(values) for what, values in found.items()}
        print(f"dispatcher, µs per call, median of {options.rounds}: {medians}")
        print(f"with probes / without: {medians['probed'] / medians['unprobed']:.3f}")


if __name__ == "__main__":
    main()
