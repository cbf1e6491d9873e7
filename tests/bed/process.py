"""A program in a process of its own: started with a log, and what can happen to it from outside."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import psutil

CHECKOUT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0

T = TypeVar("T")


def clean_environment() -> dict[str, str]:
    """Ours, without what this test run says of its own reach; what one process has compiled, the next one reads."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("REACH_", "PYTEST_", "DATABASE_", "REDIS_"))}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    return ours


def free_port() -> int:
    """A port that nobody listens on, below those that the system hands out to outgoing connections."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port := random.randint(10_000, 32_000)))
            return port


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = START_TIMEOUT_S) -> T:
    """The first true value of `condition`; fails the test when none comes."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)
    return value


class Process:
    """What all programs of the bed have in common."""

    command: Sequence[str | Path]
    log: Path
    surroundings: Mapping[str, Any] = {}
    """Folder, environment and user to run in, in the words of Popen."""
    ends_by: ClassVar[int] = signal.SIGTERM
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, "never started"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def spawn(self) -> Self:
        """Start it, and wait for nothing."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.surroundings,
            )
        return self

    def is_ready(self) -> bool:
        """Whether it does its work."""
        return self.is_running

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        self.spawn()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        wait_until(lambda: self.is_ready() or not self.is_running, f"ready\n{self.output}")
        if self.process is None or self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process and self.process.returncode}:\n{self.output}")

    def stop(self, number: int | None = None) -> int:
        """Ask it to end, as an operator would, and wait; its exit status."""
        assert self.process is not None
        self.process.send_signal(self.ends_by if number is None else number)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None
        for process in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nobody answers."""
        for process in self.members():
            process.suspend()

    def resume(self) -> None:
        for process in self.members():
            process.resume()

    def remove(self) -> None:
        """End it, whatever its state."""
        if not self.is_running:
            return
        self.resume()
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()

    def members(self) -> list[psutil.Process]:
        """The processes that make up the program; the one first that would replace the others."""
        return [psutil.Process(self.pid)]
