"""A PostgreSQL of the test's own on a free port."""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psutil
import psycopg

from reach_project import embedded
from tests.bed.process import Process, free_port

ROLE = DATABASE = "reach"
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgreSQL(Process):
    """One server, of the embedded one's programs unless REACH_TEST_POSTGRESQL names another folder of them.

    Its data lie outside the folder of the log, where the server's user may not go under root.
    """

    ends_by = signal.SIGINT  # fast: sessions are ended, all is written. SIGQUIT is immediate: as after a crash

    def __init__(self, log: Path):
        self.log, self.port, self.password = log, free_port(), secrets.token_hex(16)
        self._owner = embedded.server_user()
        self.surroundings = embedded.as_user(self._owner)
        self._folder = Path(tempfile.mkdtemp(prefix="reach-bed-"))
        self._data = self._folder / "data"
        given = os.environ.get("REACH_TEST_POSTGRESQL")
        self._programs = Path(given) if given else embedded.binaries(self._owner)
        options = (f"--{name}={value}" for name, value in {**OPTIONS, "port": self.port}.items())
        self.command = [self._programs / "postgres", "-D", self._data, *options]

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The database behind another port: a proxy's."""
        return f"postgresql://{ROLE}:{self.password}@127.0.0.1:{port}/{DATABASE}"

    def spawn(self) -> Self:
        if not self._data.exists():
            self._initialize()
        return super().spawn()

    def start(self) -> Self:
        super().start()
        with self._connect("postgres") as session:
            if session.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
                session.execute(f"CREATE DATABASE {DATABASE}")
        return self

    def is_ready(self) -> bool:
        try:
            self._connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def members(self) -> list[psutil.Process]:
        [postmaster] = super().members()
        return [postmaster, *postmaster.children()]

    def remove(self) -> None:
        super().remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, database: str) -> psycopg.Connection:
        where = {"host": "127.0.0.1", "port": self.port, "dbname": database}
        return psycopg.connect(**where, user=ROLE, password=self.password, autocommit=True, connect_timeout=5)

    def _initialize(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self.password)
        if self._owner is not None:
            for path in (self._folder, secret):
                os.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        made = subprocess.run(
            [
                self._programs / "initdb",
                f"--pgdata={self._data}",
                f"--username={ROLE}",
                f"--pwfile={secret}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
            ],
            capture_output=True,
            text=True,
            **self.surroundings,
        )
        assert made.returncode == 0, made.stderr
