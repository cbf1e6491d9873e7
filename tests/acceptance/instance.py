"""A real Agent-Reach in a process of its own, spoken to over HTTP like anybody would."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

from reach_project import embedded
from tests.bed import prepared
from tests.bed.process import CHECKOUT, Process, clean_environment, free_port, wait_until

__all__ = ["CHECKOUT", "Answer", "Instance", "free_port", "kill_server", "server_pid", "wait_until"]


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
class Instance(Process):
    """One `manage.py reach_serve`: its home, its process, and what `credentials.json` says."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    name: str = ""
    """What its log is called, where several share a home."""
    first_start: bool = False
    """It starts on nothing: a new home, an empty database. Else on a copy of what a first start makes."""

    command: ClassVar[Sequence[str]] = (sys.executable, "manage.py", "reach_serve")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.home.with_name(f"{self.name or self.home.name}.log")

    @property
    def credentials(self) -> dict[str, str]:
        return json.loads((self.home / "credentials.json").read_text())

    @property
    def key(self) -> str:
        return self.credentials["operator_key"]

    @property
    def env(self) -> dict[str, str]:
        """The environment of everything that belongs to this instance."""
        own = {"REACH_HOME": str(self.home), "REACH_PORT": str(self.port)}
        return clean_environment() | own | self.environment

    @property
    def surroundings(self) -> dict[str, Any]:
        return {"cwd": CHECKOUT, "env": self.env}

    @property
    def has_own_server(self) -> bool:
        """Whether its database is the embedded one."""
        return not self.environment.get("DATABASE_URL")

    def spawn(self) -> Self:
        if not self.first_start and not self.home.exists():
            (prepared.copy_home if self.has_own_server else prepared.copy_secrets)(self.home)
        return super().spawn()

    def is_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz").status == 200
        except OSError:
            return False

    def kill(self, *, postgresql_too: bool = False) -> None:
        """`kill -9` of the process, or of everything."""
        if postgresql_too:
            self.pause()  # it is not to start the server again in between
            kill_server(self.home)
        super().kill()

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py beside it, with the same environment."""
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(command, **self.surroundings, capture_output=True, text=True, check=check, timeout=60)

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
        """End it, whatever its state and at once, and delete what it stored."""
        if self.is_running:
            super().kill()
        if self.has_own_server:
            if embedded.is_running(self.home):
                psutil.Process(server_pid(self.home)).send_signal(signal.SIGQUIT)
                wait_until(lambda: not embedded.is_running(self.home), "its server is gone")
            embedded.remove(self.home)
        shutil.rmtree(self.home, ignore_errors=True)
