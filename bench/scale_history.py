"""What a long history costs: a million calls with five million receipts, and every page over them.

    .venv/bin/python -m bench.scale_history --calls 1000000
    .venv/bin/python -m bench.scale_history --rate 300      while so many calls a second are carried beside it

The calls are written by COPY into the embedded PostgreSQL of an installation of its own, as of the last 24 hours.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import psycopg

from bench.database import session
from bench.machine import machine
from bench.processes import CHECKOUT, inherited_environment
from bench.soak import steady_calls
from bench.targets import caller_key, start_instance, start_node

DAY_MS = 24 * 3600 * 1000
BOUND_MS = 150
SLOWER_BOUND_MS = 300
"""Of the overview and the console's other pages, which ask many things; of any while calls are carried by the same two
cores."""
BOUND_KIB = 300
SETTLED_S = 20
"""So long after the writing PostgreSQL still writes what it has in memory."""
BLOCK = 5000
CALL_COLUMNS = (
    "id, trace_id, parent_call_id, depth, caller, origin_caller, capability, status, route_id, table_revision,"
    " service_id, node_id, attempts, seq, accepted_at, first_forwarded_at, ended_at, deadline, idempotent, request,"
    " request_digest, payload_digest, output, error, labels, idempotency_key, session_id, owner, epoch, step"
)
RECEIPT_COLUMNS = "call_id, seq, kind, attempt, service_id, node_id, at, detail"
NOTHING = r"\N"
WIDE_TRACE = "e" * 32
"""Of five hundred calls."""
STATUSES = ("succeeded",) * 960 + ("failed",) * 20 + ("timed_out",) * 10 + ("rejected",) * 9 + ("cancelled",)
ROUTED = json.dumps(
    {
        "table_revision": 1,
        "route_id": "auto",
        "strategy": "least_loaded",
        "candidates": [
            {"service_id": "service-0", "node_id": f"n{n}", "eligible": True, "reasons": [], "share": 0.25}
            for n in range(4)
        ],
        "left_out": {},
        "chosen": {"service_id": "service-0", "node_id": "n0"},
    }
)

BEGINNING = (
    ("accepted", "{}"),
    ("routed", ROUTED),
    ("forwarded", '{"address": "http://node"}'),
    ("running", NOTHING),
)
PARTITIONS_OF_YESTERDAY = """
from datetime import timedelta
from django.utils import timezone
from receipts.partitions import ensure_partitions
ensure_partitions(timezone.now() - timedelta(days=2), hours=24, ahead=1)
"""


def made(count: int, until: datetime, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Blocks of COPY text, of calls and of their receipts, oldest first."""
    until_ms = int(until.timestamp() * 1000)
    parent, trace = NOTHING, ""
    calls: list[str] = []
    receipts: list[str] = []
    for number in range(count):
        ms = until_ms - DAY_MS + number * DAY_MS // count
        call_id = UUID(int=(ms << 80) | (7 << 76) | (2 << 62) | chance.getrandbits(62))
        if number % 4 == 0:
            parent, trace = NOTHING, f"{chance.getrandbits(128):032x}"
        if count - 5000 <= number < count - 4500:
            trace = WIDE_TRACE
        status = STATUSES[number % 997] if number < count - 20 else "running"
        open_ = status == "running"
        service, node = f"service-{int(chance.paretovariate(0.7)) % 20}", f"n{number % 5}"
        capability = "cap-rare" if number % 200_000 == 7 else f"cap-{int(chance.paretovariate(0.6)) % 25}"
        caller = "caller-rare" if number % 300_000 == 9 else f"caller-{int(chance.paretovariate(0.6)) % 30}"
        took_ms = int(chance.lognormvariate(4.5, 1.0))
        at, ended = moment(ms), NOTHING if open_ else moment(ms + took_ms)
        error = NOTHING if status in ("succeeded", "running") else '{"code": "upstream_error", "detail": "it failed"}'
        output = '{"summary": "short"}' if status == "succeeded" else NOTHING
        labels = json.dumps({"tenant": f"t{number // 10}"}) if number % 10 == 0 else NOTHING
        key = f"key-{number}" if number % 10 == 0 else NOTHING
        session_id = f"session-{number // 100}" if number % 5 == 0 else NOTHING
        calls.append(
            f"{call_id}\t{trace}\t{parent}\t0\t{caller}\t{caller}\t{capability}\t{status}\tauto\t1\t{service}\t{node}\t1"
            f"\t5\t{at}\t{at}\t{ended}\t{moment(ms + 60_000)}\tt\t"
            '{"payload": {"file_path": "/data/report.pdf", "content_type": "report"}, "tags": [], "urgency": "normal"}'
            f"\td\td\t{output}\t{error}\t{labels}\t{key}\t{session_id}\t00000000-0000-7000-8000-000000000001\t1\t1\n"
        )
        for seq, (kind, detail) in enumerate(
            (("accepted", "{}"), ("routed", ROUTED), ("forwarded", '{"address": "http://node"}'), ("running", NOTHING)),
            1,
        ):
            receipts.append(f"{call_id}\t{seq}\t{kind}\t1\t{service}\t{node}\t{at}\t{detail}\n")
        if not open_:
            receipts.append(f"{call_id}\t5\t{status}\t1\t{service}\t{node}\t{ended}\t{error}\n")
        parent = str(call_id)
        if len(calls) == BLOCK:
            yield "".join(calls), "".join(receipts)
            calls, receipts = [], []
    yield "".join(calls), "".join(receipts)


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def fill(database: psycopg.Connection, count: int) -> float:
    """Write the history; how long it took (s)."""
    began = time.monotonic()
    for calls, receipts in made(count, datetime.now(UTC) - timedelta(minutes=2), random.Random(7)):
        for table, columns, text in (("calls", CALL_COLUMNS, calls), ("receipts", RECEIPT_COLUMNS, receipts)):
            with database.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                copy.write(text)
    database.commit()
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=0, help="calls a second meanwhile (0)")
    options = parser.parse_args()
    for name, value in machine().items():
        print(f"{name + ':':<16}{value}")
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="reach-history-", dir=parent) as name, ExitStack() as stack:
        home = Path(name) / "reach"
        instance = start_instance(stack, "reach", home, CHECKOUT)
        environment = inherited_environment(REACH_HOME=str(home))
        shell = [sys.executable, "manage.py", "shell", "-v", "0", "-c", PARTITIONS_OF_YESTERDAY]
        subprocess.run(shell, cwd=CHECKOUT, env=environment, check=True)
        with session(home) as database:
            took_s = fill(database, options.calls)
            database.autocommit = True
            database.execute("VACUUM ANALYZE calls, receipts")
            row = database.execute("SELECT pg_size_pretty(pg_database_size(current_database()))").fetchone()
        print(
            f"{options.calls} calls written in {took_s:.0f} s; the database holds {row[0] if row else '?'}", flush=True
        )
        statuses: Counter[int] = Counter()
        if options.rate:
            start_node(stack, Path(name), [instance])
            port = urlsplit(instance.url).port or 80
            statuses = stack.enter_context(steady_calls([port], caller_key(instance), options.rate))
        time.sleep(SETTLED_S)
        began, before = time.monotonic(), statuses.total()
        done = subprocess.run(
            [sys.executable, "-m", "bench.history_pages"],
            cwd=CHECKOUT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        if options.rate:
            per_s = (statuses.total() - before) / (time.monotonic() - began)
            print(f"calls meanwhile: {per_s:.0f} a second, by status {dict(statuses)}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"counting: {found['counting']}")
    good = True
    for name, page in found["pages"].items():
        is_slower = options.rate or name.startswith(("console", "admin: overview"))
        bound_ms = SLOWER_BOUND_MS if is_slower else BOUND_MS
        is_small = page["kib"] < BOUND_KIB or not name.startswith(("console", "admin:"))
        met = page["ms"] < bound_ms and is_small and not page["scans"]
        good = good and met
        times = (
            f"{page['ms']:8.1f} ms ({page['cpu_ms']:.1f} of CPU, {page['sql_ms']:.1f} of SQL), {page['kib']:.0f} KiB"
        )
        print(f"{'met   ' if met else 'MISSED'}  {times}  {name}  {', '.join(page['scans'])}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
