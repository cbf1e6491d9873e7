"""Slow calls: a dispatcher's memory with thousands in flight, and what light calls beside them notice.

    python -m bench.slow URL COUNT

As a program it sends COUNT calls at once to a node that takes its time, says "out" when all are out, and at the end
how many were answered by 200.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import uvloop

from bench import node
from bench.load import Load, LoadFailed, request_of
from bench.processes import open_as_many_as_allowed
from bench.report import SERVER
from bench.targets import Target

PATIENCE_S = 60
SLOW_BODY = json.dumps({"capability": node.SLOW_CAPABILITY, "payload": {}, "timeout_ms": 60_000}).encode()


@dataclass(frozen=True, slots=True)
class SlowCalls:
    """Medians over the rounds; memory is the dispatcher's private memory (MiB)."""

    in_flight: int
    answered: int
    wanted: int
    idle_mib: float
    held_mib: float
    light_p99_ms: float
    light_p99_beside_ms: float
    light_errors: int


def measure_slow(target: Target, count: int, *, rounds: int, light: Callable[[], Load]) -> SlowCalls:
    """Light calls alone, and beside `count` slow ones, in turn. Raises LoadFailed."""
    alone, beside, idle, held, answered, errors = [], [], [], [], 0, 0
    for _turn in range(rounds):
        loads = [light()]
        idle.append(target.meters[SERVER].uss_mib())
        alone.append(loads[0].p99_ms)
        with subprocess.Popen(
            [sys.executable, "-m", "bench.slow", target.urls[0], str(count)],
            env=os.environ | {"BENCH_KEY": target.key},
            stdout=subprocess.PIPE,
            text=True,
        ) as caller:
            assert caller.stdout is not None
            if caller.stdout.readline().strip() != "out":
                raise LoadFailed("bench.slow could not send its calls")
            await_in_flight(target, count)
            loads.append(light())
            held.append(target.meters[SERVER].uss_mib())
            beside.append(loads[1].p99_ms)
            answered += int(caller.stdout.readline() or 0)
        errors += sum(load.refused + load.broken for load in loads)
    median = statistics.median
    return SlowCalls(count, answered, count * rounds, median(idle), max(held), median(alone), median(beside), errors)


def await_in_flight(target: Target, count: int) -> None:
    """Wait until so many calls have been accepted and forwarded, by the dispatcher's own metrics. Raises LoadFailed."""
    asked = urllib.request.Request(
        target.urls[0].replace("/api/v1/dispatch", "/metrics"), headers={"Authorization": f"Bearer {target.key}"}
    )
    over_at = time.monotonic() + node.SLOW_S / 2
    while time.monotonic() < over_at:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            told = answer.read().decode()
        at_work = sum(float(line.split()[-1]) for line in told.splitlines() if line.startswith("reach_calls_in_flight"))
        if at_work >= count:
            return
        time.sleep(0.2)
    raise LoadFailed(f"{count} slow calls were not in flight within {node.SLOW_S / 2:g} s")


class SlowCaller(asyncio.Protocol):
    """One connection with one call."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)  # type: ignore[attr-defined]  # a stream's transport can write

    def data_received(self, data: bytes) -> None:
        if not self.over.done():
            self.over.set_result(data.startswith(b"HTTP/1.1 200"))
        self.transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(False)


async def hold(url: str, key: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    host, port = url.split("/")[2].split(":")
    request = request_of(url, SLOW_BODY, key)
    callers = []
    for number in range(count):
        _transport, caller = await loop.create_connection(lambda: SlowCaller(request), host, int(port))
        callers.append(caller)
        if number % 50 == 49:
            await asyncio.sleep(0.02)  # a crowd, not an attack: they are all out long before the first answer
    await asyncio.sleep(0.5)
    print("out", flush=True)
    done = await asyncio.wait_for(asyncio.gather(*(caller.over for caller in callers)), PATIENCE_S)
    print(sum(done), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    open_as_many_as_allowed()
    uvloop.run(hold(given.url, os.environ["BENCH_KEY"], given.count))
