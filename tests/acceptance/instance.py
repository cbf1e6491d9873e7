"""A real Agent-Reach in a process of its own, spoken to over HTTP like anybody would."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from reach_project import embedded

CHECKOUT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0

T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = START_TIMEOUT_S) -> T:
    """The first true value of `condition`; fails the test when none comes."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)
    return value


def server_pid(home: Path) -> int:
    """The postmaster of a home's embedded server."""
    return int((embedded.folders(home)[0] / "data" / "postmaster.pid").read_text().split()[0])


def kill_server(home: Path) -> None:
    """`kill -9` the embedded server of a home with all its backends; the postmaster first, so that it replaces none."""
    postmaster = psutil.Process(server_pid(home))
    backends = postmaster.children()
    for process in (postmaster, *backends):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Instance:
    """One `manage.py reach_serve`: its home, its process, and what `credentials.json` says."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.home.with_name(f"{self.home.name}.log")

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def credentials(self) -> dict[str, str]:
        return json.loads((self.home / "credentials.json").read_text())

    @property
    def key(self) -> str:
        return self.credentials["operator_key"]

    @property
    def env(self) -> dict[str, str]:
        """The environment of everything that belongs to this instance: nothing of the test run's own leaks in."""
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("REACH_", "PYTEST_", "DATABASE_", "REDIS_"))
        }
        own = {"REACH_HOME": str(self.home), "REACH_PORT": str(self.port), "PYTHONDONTWRITEBYTECODE": "1"}
        return inherited | own | self.environment

    def spawn(self) -> "Instance":
        """Start the process, and wait for nothing."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "reach_serve"],
                cwd=CHECKOUT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def start(self) -> "Instance":
        """Start the process and wait until it is ready."""
        self.spawn()
        assert self.process is not None
        wait_until(lambda: self.is_ready() or self.process.poll() is not None, f"ready\n{self.output}")
        if self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process.returncode} instead of serving:\n{self.output}")
        return self

    def is_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz").status == 200
        except OSError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it as an operator would; its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self, *, postgresql_too: bool = False) -> None:
        """`kill -9` of the process, or of everything."""
        assert self.process is not None
        if postgresql_too:
            self.process.send_signal(signal.SIGSTOP)  # it is not to start the server again in between
            kill_server(self.home)
        self.process.kill()
        self.process.wait()

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py beside it, with the same environment."""
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=CHECKOUT, env=self.env, capture_output=True, text=True, check=check, timeout=60
        )

    def request(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One HTTP request; `body` is sent as JSON unless it is bytes. Raises OSError when nobody listens."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if body is not None else {}
        if key is not None:
            given["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url + path, data=sent, method=method, headers=given | (headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=70) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, refused.headers, refused.read())

    def remove(self) -> None:
        """End it, whatever its state, and delete what it stored."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if not self.environment.get("DATABASE_URL") and self.home.exists():
            embedded.start(self.home)  # a killed one may have left its server behind: take it over, then stop it
            embedded.stop(self.home)
            embedded.remove(self.home)
        shutil.rmtree(self.home, ignore_errors=True)
