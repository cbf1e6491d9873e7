"""What live pages cost: CPU per call at full load, with browsers that watch all calls and without.

    .venv/bin/python -m bench.listeners --listeners 5 --rounds 7

Dispatcher, console, worker, beat, PostgreSQL and Redis run as processes of their own, as in production; with
`--all-in-one` one process is everything. The watchers are sockets of the console with an administrator's session. Calls
are measured in interleaved rounds with them and without.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop
from websockets.asyncio.client import connect

from bench.fleet import bench_node, topology
from bench.load import offer_load
from bench.machine import machine
from bench.processes import cpu_s
from bench.targets import BODY
from tests.acceptance.instance import Instance
from tests.acceptance.test_live import logged_in
from tests.bed.topology import Topology

KNOWN_S = 3.0
"""Watchers come, and go, and so long after it every dispatcher knows."""


async def watch(url: str, origin: str, count: int) -> None:
    """So many sockets that read what comes, until stdin ends; then a line of JSON: messages, bytes, seconds."""
    seen = {"messages": 0, "bytes": 0}

    async def one() -> None:
        headers = {"Cookie": os.environ["BENCH_COOKIE"]}
        async with connect(url, origin=origin, additional_headers=headers) as socket:
            async for text in socket:
                seen["messages"] += 1
                seen["bytes"] += len(text)

    began = time.monotonic()
    tasks = [asyncio.create_task(one()) for _ in range(count)]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(seen | {"seconds": time.monotonic() - began}), flush=True)


def cpu_per_call_us(url: str, key: str, pids: dict[str, int], options: argparse.Namespace) -> dict[str, float]:
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    load = offer_load([url], BODY, key=key, concurrency=options.concurrency, seconds=options.seconds)
    if load.refused or load.broken:
        raise SystemExit(f"bench.listeners: {load.refused} calls were refused, {load.broken} broken")
    return {name: (cpu_s(pid) - before[name]) / load.answers * 1e6 for name, pid in pids.items()}


def with_watchers(console: Instance, cookie: str, count: int) -> subprocess.Popen[str]:
    address = console.url.replace("http", "ws") + "/ws/calls"
    command = [sys.executable, "-m", "bench.listeners", "--watch", address, "--origin", console.url]
    command += ["--listeners", str(count)]
    return subprocess.Popen(
        command,
        env=os.environ | {"BENCH_COOKIE": cookie},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def bench(stack: ExitStack, folder: Path, options: argparse.Namespace) -> bool:
    reach: Topology | Instance
    if options.all_in_one:
        reach = Instance(folder / "reach")
        stack.callback(reach.remove)
        reach.start()
        console, pids = reach, {"all-in-one": reach.pid}
    else:
        reach = stack.enter_context(topology(folder))
        console = reach.console
        pids = {"dispatcher": reach.dispatchers[0].pid, "console": console.pid}
    stack.enter_context(bench_node(folder, reach))  # type: ignore[arg-type]  # an instance serves as well
    wanted = {"service_id": "bench-caller", "scopes": ["dispatch"]}
    key = reach.request("POST", "/api/v1/keys", wanted, key=reach.key).json["key"]
    time.sleep(3)
    cookie, url = logged_in(console), f"{reach.url}/api/v1/dispatch"
    found: dict[tuple[str, bool], list[float]] = {(name, seen): [] for name in pids for seen in (True, False)}
    told = []
    cpu_per_call_us(url, key, pids, options)
    for turn in range(options.rounds):
        for seen in (True, False)[:: 1 if turn % 2 == 0 else -1]:
            watchers = with_watchers(console, cookie, options.listeners) if seen else None
            time.sleep(KNOWN_S if seen else 2 * KNOWN_S + 2)
            for name, used_us in cpu_per_call_us(url, key, pids, options).items():
                found[name, seen].append(used_us)
            if watchers is not None:
                told.append(json.loads(watchers.communicate()[0]))
        print(f"round {turn + 1}: { ({f'{n} {s}': round(v[-1]) for (n, s), v in found.items()}) }", file=sys.stderr)
    good = True
    for name in pids:
        medians = {seen: statistics.median(found[name, seen]) for seen in (True, False)}
        ratio = medians[True] / medians[False] if medians[False] else 0.0
        print(f"{name}: {medians[True]:.0f} µs a call with {options.listeners} listeners, {medians[False]:.0f} without")
        if name != "console":
            good = ratio <= 1.05
            print(f"{'met   ' if good else 'MISSED'}  {name}'s CPU per call, with / without: {ratio:.3f} (≤ 1.05)")
    messages = [seen["messages"] / seen["seconds"] / options.listeners for seen in told]
    print(f"messages a second to each listener: {statistics.median(messages):.1f}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listeners", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=4, help="of each load (4)")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--all-in-one", action="store_true", help="one process is everything")
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--origin", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        uvloop.run(watch(options.watch, options.origin, options.listeners))
        return 0
    for name, value in machine().items():
        print(f"{name + ':':<16}{value}")
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="reach-listeners-", dir=parent) as name, ExitStack() as stack:
        return 0 if bench(stack, Path(name), options) else 1


if __name__ == "__main__":
    sys.exit(main())
