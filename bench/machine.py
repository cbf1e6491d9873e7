"""What the figures were measured on: without it they cannot be compared with anybody else's."""

import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Self

import psutil

PACKAGES = ("django", "uvicorn", "uvloop", "httptools", "aiohttp", "psycopg")
WAL_PAGE = b"\0" * 8192  # what PostgreSQL writes and syncs for a small commit


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine() -> dict[str, str]:
    """Name → value, in the order of reading."""
    return {
        "cpu": cpu_model(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }


@dataclass(frozen=True, slots=True)
class Use:
    """Seconds of the whole machine's CPU so far: at work, and withheld by a hypervisor where that is known."""

    busy_s: float
    stolen_s: float
    total_s: float

    @classmethod
    def now(cls) -> Self:
        times = psutil.cpu_times()
        stolen_s = getattr(times, "steal", 0.0)
        total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # within user and nice
        return cls(total_s - times.idle - getattr(times, "iowait", 0.0) - stolen_s, stolen_s, total_s)

    def shares_since(self, before: Self) -> tuple[float, float]:
        """Busy and stolen parts, 0 to 1, of the time since `before`."""
        total_s = max(self.total_s - before.total_s, 1e-9)
        return (self.busy_s - before.busy_s) / total_s, (self.stolen_s - before.stolen_s) / total_s


def sync_latency_ms(folder: Path, *, seconds: float = 1.0) -> tuple[float, float]:
    """Median and 99th percentile of writing one WAL page and syncing it, on the file system of `folder`."""
    sync = getattr(os, "fdatasync", os.fsync)  # PostgreSQL's own choice where there is one
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(WAL_PAGE)
        os.fsync(file.fileno())
        until = time.perf_counter() + seconds
        while (started_at := time.perf_counter()) < until or len(taken) < 2:
            file.seek(0)
            file.write(WAL_PAGE)
            sync(file.fileno())
            taken.append((time.perf_counter() - started_at) * 1e3)
    return statistics.median(taken), statistics.quantiles(taken, n=100, method="inclusive")[98]
