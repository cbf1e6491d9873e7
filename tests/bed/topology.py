"""The reach as it runs in production: every part a process of its own, on a PostgreSQL and a Redis of its own."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tests.acceptance.instance import Answer, Instance
from tests.bed import prepared
from tests.bed.postgresql import PostgreSQL
from tests.bed.process import CHECKOUT, Process, clean_environment, wait_until
from tests.bed.redis import Redis

QUEUES = "reach,probes"
CELERY = (sys.executable, "-m", "celery", "-A", "reach_project")
WORKER = (*CELERY, "worker", "--pool", "threads", "-c", "4", "-Q", QUEUES, "--without-gossip", "--without-mingle")
BEAT = (*CELERY, "beat")
OF_THE_CONSOLE = re.compile(r"/($|admin|static|i18n)")
OF_THE_SECOND = re.compile(r"/api/v1/calls/[^/]+/receipts")


@dataclass
class Background(Process):
    """A worker, or beat."""

    command: tuple[str, ...]
    home: Path
    name: str
    environment: dict[str, str]

    @property
    def log(self) -> Path:
        return self.home.with_name(f"{self.name}.log")

    @property
    def surroundings(self) -> dict[str, Any]:
        return {"cwd": CHECKOUT, "env": clean_environment() | {"REACH_HOME": str(self.home), **self.environment}}


class Topology:
    """Dispatchers, workers, beat and console, to be used like one `Instance`.

    What registers, dispatches or changes something goes to the first dispatcher; what reads, and the receipts of nodes,
    to the second: whatever a test sees has come from one process to another. Pages are the console's.
    Until the start, the `environment` of each process may still be changed.
    """

    def __init__(
        self, home: Path, environment: dict[str, str] | None = None, *, dispatchers: int = 2, workers: int = 2
    ):
        self.home, self.environment = home, dict(environment or {})
        self.redis = Redis(home.with_name(f"{home.name}-redis.log"))
        self.postgresql: PostgreSQL | None = None
        if "DATABASE_URL" not in self.environment:
            self.postgresql = PostgreSQL(home.with_name(f"{home.name}-postgresql.log"))
            self.environment["DATABASE_URL"] = self.postgresql.url
        self.environment["REDIS_URL"] = self.redis.url
        self.dispatchers = [self._server("dispatcher", number) for number in range(1, dispatchers + 1)]
        self.console = self._server("console")
        self.workers = [
            Background(WORKER, home, f"{home.name}-worker-{number}", dict(self.environment))
            for number in range(1, workers + 1)
        ]
        self.beat = Background(BEAT, home, f"{home.name}-beat", dict(self.environment))

    def _server(self, role: str, number: int | None = None) -> Instance:
        name = f"{self.home.name}-{role}" + (f"-{number}" if number else "")
        return Instance(self.home, {"REACH_ROLE": role, **self.environment}, name=name)

    @property
    def servers(self) -> list[Instance]:
        return [*self.dispatchers, self.console]

    @property
    def processes(self) -> list[Instance | Background]:
        """All of the reach's own."""
        return [*self.dispatchers, self.console, *self.workers, self.beat]

    # --- As one instance -------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.dispatchers[0].url

    @property
    def port(self) -> int:
        return self.dispatchers[0].port

    @property
    def credentials(self) -> dict[str, str]:
        return self.dispatchers[0].credentials

    @property
    def key(self) -> str:
        return self.dispatchers[0].key

    @property
    def output(self) -> str:
        return "".join(process.output for process in self.processes)

    @property
    def is_running(self) -> bool:
        return self.dispatchers[0].is_running

    def is_ready(self) -> bool:
        return all(process.is_ready() for process in self.processes)

    def is_whole(self) -> bool:
        """Whether all that work together do: workers and beat show it at the console."""
        return self.console.request("GET", "/readyz").json["status"] == "ready"

    def request(self, method: str, path: str, *given: Any, **named: Any) -> Answer:
        return self.server_of(method, path).request(method, path, *given, **named)

    def server_of(self, method: str, path: str) -> Instance:
        """Who answers this request."""
        if OF_THE_CONSOLE.match(path):
            return self.console
        return self.dispatchers[-1 if method == "GET" or OF_THE_SECOND.match(path) else 0]

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.dispatchers[0].manage(*arguments, check=check)

    def spawn(self) -> "Topology":
        """Start everything, the servers below first, and wait for none of the reach's own processes."""
        for server in self._below():
            if not server.is_running:
                server.start()
        if not (self.home / "credentials.json").exists():
            self._prepare()
        for process in self.processes:
            process.spawn()
        return self

    def _prepare(self) -> None:
        if self.postgresql is None:  # a database that is prepared already
            prepared.copy_secrets(self.home)
        else:
            self.manage("reach_prepare")

    def start(self) -> "Topology":
        self.spawn()
        for process in self.processes:
            process.wait_ready()
        wait_until(self.is_whole, f"every part works\n{self.output}")
        return self

    def stop(self) -> None:
        """Ask all of the reach's own processes to end, all at once, and wait."""
        with ThreadPoolExecutor(len(self.processes)) as together:
            list(together.map(lambda process: process.stop(), self.processes))

    def kill(self, *, postgresql_too: bool = False) -> None:
        """`kill -9` of all of the reach's own processes, or of everything."""
        for process in chain(self.processes, self._below() if postgresql_too else ()):
            process.kill()

    def mend(self) -> None:
        """Start again what does not run, and let go on what was held."""
        for process in chain(self._below(), self.processes):
            if process.is_running:
                process.resume()
            else:
                process.start()

    def remove(self) -> None:
        """End everything, whatever its state and at once, and delete what it stored."""
        for process in self.processes:
            if process.is_running:
                process.kill()
        shutil.rmtree(self.home, ignore_errors=True)
        for server in self._below():
            server.remove()

    def _below(self) -> Iterator[Process]:
        """What the reach stands on."""
        yield self.redis
        if self.postgresql is not None:
            yield self.postgresql
