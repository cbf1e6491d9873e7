"""The load: keep-alive connections that each send the next request when the last is answered, in a process of its own.

wrk where it is installed; else `python -m bench.load`, an asyncio generator (which on small machines takes CPU that the
measured processes would use: prefer wrk).
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlsplit

import httptools
import uvloop

WRK = shutil.which("wrk")
TIMEOUT_S = 10
GENERATOR = (
    "wrk, a thread for each address (its percentiles are corrected for coordinated omission)"
    if WRK
    else "bench.load, asyncio: NO wrk HERE. Install it (apt-get install wrk, brew install wrk), or this generator takes"
    " a good part of the CPU that the measured processes need"
)


class LoadFailed(Exception):
    """The load generator itself did not work."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the load generator saw: answers, those of them that were not 200, and connections broken or timed out."""

    answers: int
    refused: int
    broken: int
    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    cpu_s: float


def offer_load(urls: Sequence[str], body: bytes, *, key: str, concurrency: int, seconds: int) -> Load:
    """POST `body` for `seconds` to these URLs, which differ in nothing but the port and share the connections.

    Raises LoadFailed when the generator gives no result.
    """
    ports = [urlsplit(url).port or 80 for url in urls][:concurrency]
    with NamedTemporaryFile() as file:  # it is too large for the environment, the key's place
        file.write(body)
        file.flush()
        return run_generator(urls[0], ports, file.name, key=key, concurrency=concurrency, seconds=seconds)


def run_generator(url: str, ports: Sequence[int], body: str, *, key: str, concurrency: int, seconds: int) -> Load:
    if WRK:
        script = str(Path(__file__).with_name("wrk.lua"))
        command = [WRK, f"-t{len(ports)}", f"-c{concurrency}", f"-d{seconds}s", f"--timeout={TIMEOUT_S}s"]
        command += ["-s", script, url]
    else:
        command = [sys.executable, "-m", "bench.load", url, str(concurrency), str(seconds)]
    own = {"BENCH_BODY_FILE": body, "BENCH_KEY": key, "BENCH_PORTS": " ".join(map(str, ports))}
    environment = os.environ | own  # command lines are readable by everybody on the machine
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        printed = process.stdout.read()
    except BaseException:
        process.kill()
        process.wait()
        raise
    _pid, status, usage = os.wait4(process.pid, 0)  # not process.wait(): this also tells the CPU it took
    process.returncode = os.waitstatus_to_exitcode(status)
    results = [line for line in printed.splitlines() if line.startswith("{")]
    if process.returncode or not results:
        raise LoadFailed(f"{' '.join(command)} ended with {process.returncode}:\n{printed}")
    return Load(**json.loads(results[-1]), cpu_s=usage.ru_utime + usage.ru_stime)


class Tally:
    """What all connections of one generator have seen, and the request that they send."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.latencies_s: list[float] = []
        self.refused = 0
        self.broken = 0
        self.stopped = False


class Connection(asyncio.Protocol):
    """One caller: the next request leaves when the last is answered."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.send()

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(self.tally.request)  # type: ignore[attr-defined]  # a stream's transport can write

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self.tally.stopped:
            return
        self.tally.latencies_s.append(time.perf_counter() - self.sent_at)
        self.tally.refused += self.parser.get_status_code() != 200
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.tally.broken += not self.tally.stopped


async def generate(
    url: str, ports: Sequence[int], body: bytes, key: str, concurrency: int, seconds: float
) -> dict[str, float]:
    """Offer the load from this loop and tell what was seen, as wrk.lua does."""
    target = urlsplit(url)
    tally = Tally(request_of(url, body, key))
    loop = asyncio.get_running_loop()
    started_at = time.perf_counter()
    connections = [
        await loop.create_connection(lambda: Connection(tally), target.hostname or "", ports[number % len(ports)])
        for number in range(concurrency)
    ]
    await asyncio.sleep(seconds)
    tally.stopped = True
    elapsed_s = time.perf_counter() - started_at
    for transport, _protocol in connections:
        transport.close()
    ordered = sorted(tally.latencies_s) or [0.0]
    return {
        "answers": len(tally.latencies_s),
        "refused": tally.refused,
        "broken": tally.broken,
        "seconds": elapsed_s,
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[len(ordered) * 99 // 100] * 1e3,
        "p999_ms": ordered[len(ordered) * 999 // 1000] * 1e3,
    }


def request_of(url: str, body: bytes, key: str) -> bytes:
    """The whole request, ready to be sent."""
    target = urlsplit(url)
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="POST $BENCH_BODY_FILE with $BENCH_KEY; print a line of JSON")
    parser.add_argument("url")
    parser.add_argument("concurrency", type=int)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    body, key = Path(os.environ["BENCH_BODY_FILE"]).read_bytes(), os.environ["BENCH_KEY"]
    ports = [int(port) for port in os.environ["BENCH_PORTS"].split()]
    print(json.dumps(uvloop.run(generate(given.url, ports, body, key, given.concurrency, given.seconds))))
