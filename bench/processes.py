"""Start processes, wait until they answer, read their CPU, end them whatever happens."""

import contextlib
import os
import random
import resource
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

CHECKOUT = Path(__file__).resolve().parent.parent
STOP_S = 40  # an instance may use REACH_DRAIN_S (25) and then stops its PostgreSQL
LOG_LINES = 40


class NotStarted(Exception):
    """A process ended, or did not answer in time. The message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running process and where it writes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def failure(self, what: str) -> NotStarted:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return NotStarted("\n  | ".join([f"{self.name} {what}; its log ends:", *(lines or ["(empty)"])]))


def free_port() -> int:
    """A port that nobody listens on, below those that the system hands out to outgoing connections."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port := random.randint(10_000, 32_000)))
            return port


@contextmanager
def running(
    name: str, command: list[str], *, environment: Mapping[str, str], log: Path, code: Path = CHECKOUT
) -> Iterator[Started]:
    """A process for as long as the block lasts. In a session of its own: Ctrl-C reaches us alone, and we end it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=code,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Started(name, process, log)
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for what does not follow (or when the user presses Ctrl-C again)."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def wait_until_answers(started: Started, url: str, *, timeout_s: float) -> None:
    """Return once `url` answers 200. Raises NotStarted when the process ends or the time is up."""
    until = time.monotonic() + timeout_s
    last = "nothing listens"
    while time.monotonic() < until:
        if (code := started.process.poll()) is not None:
            raise started.failure(f"ended with status {code}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as answer:
            last = f"{answer.code} {answer.read().decode(errors='replace')}"
        except OSError as exc:
            last = str(exc)
        time.sleep(0.05)
    raise started.failure(f"did not answer 200 at {url} within {timeout_s:.0f} s (last: {last})")


def cpu_s(pid: int) -> float:
    """CPU seconds that exactly this process has used, all its threads included."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and all below it, those that have ended included."""
    used = 0.0
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used += cpu_s(child.pid)
    times = psutil.Process(pid).cpu_times()
    return used + times.user + times.system + times.children_user + times.children_system


@dataclass(frozen=True, slots=True)
class Meter:
    """What some processes have used so far, and what is theirs alone."""

    pids: tuple[int, ...]
    children_too: bool = False

    def cpu_s(self) -> float:
        return sum((tree_cpu_s if self.children_too else cpu_s)(pid) for pid in self.pids)

    def uss_mib(self) -> float:
        """Private memory: what would be free again without them."""
        found = [psutil.Process(pid) for pid in self.pids]
        if self.children_too:
            found += [child for one in list(found) for child in one.children(recursive=True)]
        total = 0
        for one in found:
            with suppress(psutil.NoSuchProcess):
                total += one.memory_full_info().uss
        return total / 2**20


def open_as_many_as_allowed() -> None:
    """Raise the soft limit of open files of this process, and of what it starts, to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def inherited_environment(**own: str) -> dict[str, str]:
    """This process's environment without what would point an instance at somebody's real database or routes."""
    foreign = {
        "DATABASE_URL",
        "REDIS_URL",
        "ROUTE_FILE",
        "SECRET_KEY",
        "LISTEN_ADDR",
        "REACH_ROLE",
        "REACH_DURABILITY",
        "DJANGO_SETTINGS_MODULE",
    }
    return {name: value for name, value in os.environ.items() if name not in foreign} | own
