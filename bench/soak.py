"""Ten minutes at a steady rate: does any process or table grow, does any log complain?

    .venv/bin/python -m bench.soak --minutes 10 --rate 300

Two dispatchers, two workers, beat, console, PostgreSQL and Redis as processes of their own. Most calls succeed; some
carry an idempotency key, some a payload that the schema refuses, some a name that nobody knows. Printed: private
memory of each process by the minute with its growth after the third, tables and their growth, and what the logs said.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import httptools
import psutil
import psycopg
import uvloop

from bench.fleet import bench_node, register_fleet
from bench.machine import machine
from bench.node import CAPABILITY
from tests.bed.topology import Topology

SETTLED_AFTER_MIN = 3
TABLES = """
SELECT relname, pg_total_relation_size(oid) FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname !~ '^(calls|receipts)_'
"""
COMPLAINTS = (" WARNING ", " ERROR ", " CRITICAL ", "Traceback")
CONNECTIONS = 24


class Caller(asyncio.Protocol):
    """One keep-alive connection that sends its next request when the last is answered and its turn has come."""

    def __init__(self, requests: Iterator[bytes], every_s: float, statuses: Counter[int]) -> None:
        self.requests, self.every_s, self.statuses = requests, every_s, statuses
        self.loop = asyncio.get_running_loop()
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.due_at = self.loop.time()
        self.send()

    def send(self) -> None:
        if not self.stopped:
            self.transport.write(next(self.requests))  # type: ignore[attr-defined]  # a stream's transport can write

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.statuses[self.parser.get_status_code()] += 1
        self.due_at += self.every_s
        self.loop.call_at(max(self.due_at, self.loop.time()), self.send)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.statuses[0] += not self.stopped


def requests(port: int, key: str, chance: Random) -> Iterator[bytes]:
    """Requests of every kind, for ever."""
    for number in count():
        payload = {"file_path": f"/data/{number}.pdf", "content_type": "report"}
        body: dict[str, object] = {
            "capability": CAPABILITY,
            "payload": payload,
            "labels": {"tenant": f"t{number % 50}"},
        }
        drawn = chance.random()
        if drawn < 0.01:
            body["capability"] = f"nobody_knows_{number}"
        elif drawn < 0.02:
            payload["content_type"] = "poem"
        elif drawn < 0.12:
            body["idempotency_key"] = f"key-{number // 2}"
        content = json.dumps(body).encode()
        yield (
            f"POST /api/v1/dispatch HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {len(content)}\r\n\r\n"
        ).encode() + content


async def call(ports: list[int], key: str, rate: float, over: threading.Event, statuses: Counter[int]) -> None:
    """So many calls a second, shared by the dispatchers."""
    loop = asyncio.get_running_loop()
    callers = []
    for number in range(CONNECTIONS):
        port = ports[number % len(ports)]
        made = requests(port, key, Random(number))
        _transport, caller = await loop.create_connection(
            lambda made=made: Caller(made, CONNECTIONS / rate, statuses), "127.0.0.1", port
        )
        callers.append(caller)
        await asyncio.sleep(1 / rate)
    while not over.is_set():
        await asyncio.sleep(0.1)
    for caller in callers:
        caller.stopped = True
    await asyncio.sleep(1)
    for caller in callers:
        caller.transport.close()


@contextmanager
def steady_calls(ports: list[int], key: str, rate: float) -> Iterator[Counter[int]]:
    """Have so many calls a second asked meanwhile; yields the answers so far, by status (0: a connection was lost)."""
    over, statuses = threading.Event(), Counter[int]()
    work = threading.Thread(target=lambda: uvloop.run(call(ports, key, rate, over, statuses)), daemon=True)
    work.start()
    try:
        yield statuses
    finally:
        over.set()
        work.join(5)


def private_mib(pid: int) -> float:
    return psutil.Process(pid).memory_full_info().uss / 2**20


def names_of(reach: Topology) -> dict[str, int]:
    """Each process of the reach with its pid."""
    named = {f"dispatcher {number}": one.pid for number, one in enumerate(reach.dispatchers, 1)}
    named |= {f"worker {number}": one.pid for number, one in enumerate(reach.workers, 1)}
    return named | {"console": reach.console.pid, "beat": reach.beat.pid}


def watch(reach: Topology, minutes: int, rate: float, statuses: Counter[int]) -> bool:
    """Sample every ten seconds and print by the minute; whether nothing grew and nobody complained."""
    processes = names_of(reach)
    memory: dict[str, list[list[float]]] = {name: [[] for _ in range(minutes)] for name in processes}
    sizes: list[dict[str, int]] = []
    began = time.monotonic()
    with psycopg.connect(reach.environment["DATABASE_URL"], autocommit=True) as session:
        for minute in range(minutes):
            while time.monotonic() - began < 60 * (minute + 1):
                for name, pid in processes.items():
                    memory[name][minute].append(private_mib(pid))
                time.sleep(10)
            sizes.append(dict(session.execute(TABLES).fetchall()))
            now = {name: round(statistics.median(found[minute]), 1) for name, found in memory.items()}
            print(f"minute {minute + 1}: {dict(statuses)} {now}", file=sys.stderr, flush=True)
    fine = True
    print("\nprivate memory, MiB, medians of a minute:")
    for name, found in memory.items():
        by_minute = [statistics.median(minute) for minute in found]
        grown = by_minute[-1] / by_minute[min(SETTLED_AFTER_MIN, minutes - 1)] - 1
        fine &= grown < 0.05
        print(f"  {name:<14}{' '.join(f'{mib:6.1f}' for mib in by_minute)}   {grown:+.1%} after minute 3")
    print("\ntables outside the partitions, KiB after minute 3 and at the end, where they differ:")
    settled, last = sizes[min(SETTLED_AFTER_MIN - 1, minutes - 1)], sizes[-1]
    for table, size in sorted(last.items(), key=lambda row: -row[1]):
        if size != settled.get(table, 0):
            print(f"  {table:<32}{settled.get(table, 0) // 1024:>10}{size // 1024:>10}")
    lines = [line for line in reach.output.splitlines() if any(word in line for word in COMPLAINTS)]
    print(f"\ncomplaints in the logs: {len(lines)}")
    for line in lines[:20]:
        print(f"  {line}")
    per_s = sum(statuses.values()) / 60 / minutes
    print(f"answers by status: {dict(statuses)}, {per_s:.0f} a second")
    broken = sum(found for status, found in statuses.items() if status == 0 or status >= 500)
    return fine and not lines and not broken and per_s > 0.95 * rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--rate", type=float, default=300, help="calls a second (300)")
    options = parser.parse_args()
    for name, value in machine().items():
        print(f"{name + ':':<16}{value}")
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="reach-soak-", dir=parent) as name:
        reach = Topology(Path(name) / "reach")
        try:
            reach.start()
            with bench_node(Path(name), reach) as address:
                register_fleet(reach, address, 20)
                wanted = {"service_id": "bench-caller", "scopes": ["dispatch"]}
                key = reach.request("POST", "/api/v1/keys", wanted, key=reach.key).json["key"]
                time.sleep(3)
                ports = [dispatcher.port for dispatcher in reach.dispatchers]
                with steady_calls(ports, key, options.rate) as statuses:
                    fine = watch(reach, options.minutes, options.rate, statuses)
        finally:
            reach.remove()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
