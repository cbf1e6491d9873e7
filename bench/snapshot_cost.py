"""What the tables in memory cost one process: the first load, one moved node, private memory. A line of JSON.

DATABASE_URL=… .venv/bin/python -m bench.snapshot_cost
"""

import asyncio
import json
import os
import statistics
import time
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "reach_project.settings")

import django
import psutil

django.setup()

# ruff: noqa: E402
import psycopg

from receipts.journal import connect
from registry.auth import keyring
from registry.database import conninfo
from routing.snapshot import Snapshot

MOVES = 20
MOVE = """
WITH one AS (SELECT id FROM registry_node ORDER BY id OFFSET %(nth)s LIMIT 1),
changed AS (
    UPDATE registry_node n SET health = CASE WHEN health = 'ready' THEN 'suspect' ELSE 'ready' END
    FROM one WHERE n.id = one.id RETURNING n.id
), moved AS (UPDATE registry_snapshotversion SET version = version + 1 RETURNING version)
INSERT INTO registry_snapshotchange (version, nodes, parts)
SELECT version, ARRAY(SELECT id FROM changed), '{}' FROM moved
"""


class Pauses:
    """The longest time that the event loop let nobody else run."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.task = asyncio.create_task(self.watch())

    async def watch(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest_s, last = max(self.longest_s, now - last), now


def private_mib() -> float:
    return psutil.Process().memory_full_info().uss / 2**20


async def timed(snapshot: Snapshot, connection: psycopg.AsyncConnection) -> tuple[float, float]:
    """Wall and CPU milliseconds of one look that finds a move."""
    wall, cpu = time.perf_counter(), time.thread_time()
    assert await snapshot.load_if_moved(connection)
    return (time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3


async def measure() -> dict[str, Any]:
    database = conninfo("bench")
    snapshot = Snapshot(database, poll_s=1, retry_s=1, shown_at_most=32, use_keys=keyring.replace)
    before_mib = private_mib()
    async with await connect(database, "bench") as connection:
        wall_ms, cpu_ms = await timed(snapshot, connection)
        assert snapshot.tables is not None
        nodes, memory_mib = len(snapshot.tables.nodes), private_mib() - before_mib
        asked = snapshot.tables.pool("bench_wide", None, frozenset())
        asked.field((None,) * len(asked.groups))
        moves = []
        for number in range(MOVES):
            await connection.execute(MOVE, {"nth": number * (nodes // MOVES)})
            moves.append(await timed(snapshot, connection))
        began = time.thread_time()
        pool = snapshot.tables.pool("bench_wide", None, frozenset())
        pool.field((None,) * len(pool.groups))
        pool_ms = (time.thread_time() - began) * 1e3
        snapshot.must_read_all = True
        pauses = Pauses()
        again_ms, _cpu = await timed(snapshot, connection)
        pauses.task.cancel()
    return {
        "nodes": nodes,
        "routes": len(snapshot.tables.routes.routes),
        "first_load_wall_ms": wall_ms,
        "first_load_cpu_ms": cpu_ms,
        "one_node_wall_ms": statistics.median(wall for wall, _cpu in moves),
        "one_node_cpu_ms": statistics.median(cpu for _wall, cpu in moves),
        "widest_pool_anew_cpu_ms": pool_ms,
        "full_reload_wall_ms": again_ms,
        "full_reload_longest_pause_ms": pauses.longest_s * 1e3,
        "memory_mib": memory_mib,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
