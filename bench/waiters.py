"""What clients that only wait cost one dispatcher: half of them follow a call's events, half ask to wait for its end.

    .venv/bin/python -m bench.waiters --clients 2000 --rounds 5

Each waits for a call of its own, open and carried elsewhere. Dispatcher, worker, beat, console, PostgreSQL and Redis
are processes of their own. Printed: the dispatcher's private memory and its CPU while nobody calls, without and with
them; its CPU per call, in interleaved rounds, without and with them; and how long it takes until all have heard, when
all their calls end at once. Exits with 1 unless they cost less than 200 MB, and every one of them heard.
"""

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httptools
import psutil
import psycopg
import uuid_utils.compat as uuids
import uvloop

from bench.fleet import bench_node, cpu_per_call_us
from bench.machine import machine
from bench.processes import cpu_s
from tests.bed.topology import Topology

MOST_MIB = 200
SETTLE_S = 3.0
ALL_THERE_S = 60.0
OPENED_AT_ONCE = 50
WAIT_S = 60
"""Asked for by each `wait`; when it is over, the client asks again."""

SHOWN = (("mib", "private memory, MiB", 1), ("idle", "CPU while nobody calls, %", 100), ("us", "CPU per call, µs", 1))

OPEN_CALLS = """
INSERT INTO calls (id, trace_id, depth, caller, origin_caller, capability, status, table_revision, attempts, seq,
    accepted_at, deadline, idempotent, request, request_digest, payload_digest, owner, epoch, step)
SELECT id, replace(id::text, '-', ''), 0, 'bench-caller', 'bench-caller', 'bench_long', 'running', 0, 1, 2,
    now(), now() + interval '1 day', false, '{}', '', '', %s, 1, 0
FROM unnest(%s::uuid[]) AS id
"""
THEIR_RECEIPTS = """
INSERT INTO receipts (call_id, seq, kind, at) SELECT id, n, (ARRAY['accepted', 'forwarded'])[n], now()
FROM unnest(%s::uuid[]) AS id, generate_series(1, 2) AS n
"""
CARRIER = """
INSERT INTO process_leases (owner, role, host, pid, started_at, held_since, lease_expires_at)
VALUES (%s, 'bench', '', 0, now(), now(), now() + interval '1 day')
"""
# As any process of the reach ends a call: by row, with a receipt, and word to those who watch it.
END_ALL = """
WITH ended AS (
    UPDATE calls SET status = 'succeeded', output = '{}', ended_at = now(), seq = seq + 1
    WHERE id = ANY(%s) AND ended_at IS NULL RETURNING id, seq, watchers
), written AS (
    INSERT INTO receipts (call_id, seq, kind, at) SELECT id, seq, 'succeeded', now() FROM ended
)
SELECT pg_notify('reach_' || replace(watcher::text, '-', ''), id::text) FROM ended, unnest(watchers) AS watcher
"""


class Client(asyncio.Protocol):
    """One connection that waits for one call, by a stream or by asking again and again."""

    def __init__(self, request: bytes, tally: Counter[str]) -> None:
        self.request, self.tally = request, tally
        self.loop = asyncio.get_running_loop()
        self.body = b""
        self.heard_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(self.request)  # type: ignore[attr-defined]  # a stream's transport can write

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body = (self.body + body)[-4096:]

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.tally[f"answers {status}"] += 1
        if b'"succeeded"' in self.body:
            self.heard_at = time.monotonic()
        elif status == 200:
            self.body = b""
            self.loop.call_soon(self.ask)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.tally["connections lost"] += 1


class Clients:
    """Those who wait, on an event loop in a thread of their own."""

    def __init__(self, port: int, key: str, calls: Sequence[UUID]) -> None:
        self.port, self.key, self.calls = port, key, calls
        self.tally: Counter[str] = Counter()
        self.open: list[Client] = []
        self.loop = uvloop.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def request(self, number: int) -> bytes:
        what = "events" if number % 2 else f"wait?timeout_s={WAIT_S}"
        return (
            f"GET /api/v1/calls/{self.calls[number]}/{what} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self.key}\r\n\r\n"
        ).encode()

    def run(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result()

    async def come(self) -> None:
        async def one(number: int) -> Client:
            make = lambda: Client(self.request(number), self.tally)  # noqa: E731
            _transport, client = await self.loop.create_connection(make, "127.0.0.1", self.port)
            return client

        for first in range(0, len(self.calls), OPENED_AT_ONCE):
            numbers = range(first, min(first + OPENED_AT_ONCE, len(self.calls)))
            self.open += await asyncio.gather(*(one(number) for number in numbers))

    async def go(self) -> None:
        for client in self.open:
            client.transport.close()
        self.open.clear()
        await asyncio.sleep(0)

    def waiting(self) -> int:
        return len(self.open) - sum(bool(client.heard_at) for client in self.open)


def private_mib(pid: int) -> float:
    return psutil.Process(pid).memory_full_info().uss / 2**20


def idle_share(pid: int, seconds: float) -> float:
    """The CPU (of one core) that a process uses while nobody calls."""
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def settle(reach: Topology, clients: int) -> None:
    """Return when so many wait, as the dispatcher says itself, and what they caused is over. Raises SystemExit."""
    until = time.monotonic() + ALL_THERE_S
    while time.monotonic() < until:
        text = reach.dispatchers[0].request("GET", "/metrics", key=reach.key).body.decode()
        counts = re.findall(r"^reach_waiting_clients{.*} (.*)$", text, re.MULTILINE)
        if sum(map(float, counts)) == clients:
            time.sleep(SETTLE_S)
            return
        time.sleep(0.2)
    raise SystemExit(f"bench.waiters: {clients} clients were to wait, and do not")


def open_calls(session: psycopg.Connection, count: int) -> list[UUID]:
    """So many calls that another process carries, as the database sees it."""
    carrier, calls = uuid4(), [uuids.uuid7() for _ in range(count)]
    session.execute(CARRIER, [carrier])
    session.execute(OPEN_CALLS, [carrier, calls])
    session.execute(THEIR_RECEIPTS, [calls])
    return calls


@contextmanager
def rig(folder: Path) -> Iterator[tuple[Topology, str]]:
    """The processes, a node that answers calls, and a key that may call."""
    reach = Topology(folder / "reach", dispatchers=1, workers=1)
    try:
        reach.start()
        with bench_node(folder, reach):
            wanted = {"service_id": "bench-caller", "scopes": ["dispatch"]}
            key = reach.request("POST", "/api/v1/keys", wanted, key=reach.key).json["key"]
            time.sleep(SETTLE_S)
            yield reach, key
    finally:
        reach.remove()


def measure(reach: Topology, key: str, options: argparse.Namespace) -> bool:
    pid = reach.dispatchers[0].pid
    seen: dict[str, dict[str, list[float]]] = {
        what: {name: [] for name, _unit, _factor in SHOWN} for what in ("without", "with")
    }
    load = {"concurrency": options.concurrency, "seconds": options.seconds}
    with psycopg.connect(reach.environment["DATABASE_URL"], autocommit=True) as session:
        clients = Clients(reach.port, key, open_calls(session, options.clients))
        cpu_per_call_us(reach, key, **load)
        for turn in range(options.rounds):
            for what in ("without", "with")[:: 1 if turn % 2 == 0 else -1]:
                if what == "with" and not clients.open:
                    clients.run(clients.come())
                elif what == "without" and clients.open:
                    clients.run(clients.go())
                settle(reach, len(clients.open))
                found = seen[what]
                found["idle"].append(idle_share(pid, options.idle))
                found["mib"].append(private_mib(pid))
                found["us"].append(cpu_per_call_us(reach, key, **load))
            told = {what: [round(values[-1], 4) for values in found.values()] for what, found in seen.items()}
            print(f"round {turn + 1} (MiB, idle share, µs): {told}", file=sys.stderr, flush=True)
        if not clients.open:
            clients.run(clients.come())
            settle(reach, len(clients.open))
        before, began = cpu_s(pid), time.monotonic()
        for first in range(0, options.clients, 100):
            session.execute(END_ALL, [list(clients.calls[first : first + 100])])
        while clients.waiting() and time.monotonic() - began < 60:
            time.sleep(0.01)
        heard = sorted(client.heard_at - began for client in clients.open if client.heard_at)
        told_cpu_s = cpu_s(pid) - before
    median = {what: {name: statistics.median(v) for name, v in found.items()} for what, found in seen.items()}
    before_any = seen["without"]["mib"][0]  # what a process has had once it does not give back
    grown = max(seen["with"]["mib"]) - before_any
    print(f"\n{f'{options.clients} clients, medians of {options.rounds} rounds':<36}{'without':>12}{'with':>12}")
    for name, unit, factor in SHOWN:
        print(f"  {unit:<34}{median['without'][name] * factor:>12.1f}{median['with'][name] * factor:>12.1f}")
    each_kib = grown * 1024 / options.clients
    print(f"at the most they cost {grown:.1f} MiB, {each_kib:.0f} KiB each: {before_any:.1f} MiB before any came")
    print(f"CPU per call, with / without: {median['with']['us'] / median['without']['us']:.3f}")
    for what, found in seen.items():
        print(f"private memory {what} them, by round: {[round(mib, 1) for mib in found['mib']]}")
    if heard:
        told_us = told_cpu_s / options.clients * 1e6
        print(f"all their calls end: half have heard within {statistics.median(heard):.2f} s,", end=" ")
        print(f"{len(heard)} of {options.clients} within {heard[-1]:.2f} s; {told_us:.0f} µs of CPU for each")
    print(f"what the clients saw: {dict(clients.tally)}")
    clients.run(clients.go())
    return grown < MOST_MIB and len(heard) == options.clients


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=20, help="seconds without calls, each time (20)")
    parser.add_argument("--seconds", type=int, default=4, help="of each load (4)")
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    for name, value in machine().items():
        print(f"{name + ':':<16}{value}")
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="reach-waiters-", dir=parent) as name, rig(Path(name)) as (reach, key):
        return 0 if measure(reach, key, options) else 1


if __name__ == "__main__":
    sys.exit(main())
