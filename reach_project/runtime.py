"""One process of the reach, from its port to its last connection: `manage.py reach_serve`.

In this order, and undone in the opposite one: port, home, PostgreSQL, migrations, credentials, worker and beat, server.
"""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import uvicorn
from celery.beat import Scheduler, Service
from celery.worker import WorkController
from celery.worker import state as worker_state
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor

from reach_project import embedded, health
from reach_project.celery import app
from receipts.tasks import maintain_partitions
from registry import services
from registry.auth import SCOPES, digest_of
from registry.database import conninfo
from registry.errors import Conflict
from registry.models import ApiKey

log = logging.getLogger("reach_project.runtime")

PREPARATION_LOCK = 0x7265616368  # any number that all processes of one database agree on
DATABASE_PATIENCE_S = 30.0
WORKER_THREADS = 4
WORKER_STOP_S = 5.0
GUARD_INTERVAL_S = 1.0
FIRST_START = "first start"

Say = Callable[[str], object]


class CannotStart(Exception):
    """Why this process cannot serve, in one sentence for the operator."""


def serve(say: Say) -> None:
    """Serve until SIGINT or SIGTERM, then stop everything that was started. Raises CannotStart."""
    asked_to_stop = _asked_to_stop()
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(_listener(settings.REACH_HOST, settings.REACH_PORT))
        if not settings.DATABASE_URL:
            undo.enter_context(_alone_in(settings.REACH_HOME))
            say("Starting the embedded PostgreSQL …")
            undo.enter_context(_embedded_database(settings.REACH_HOME))
        _wait_for_database(asked_to_stop)
        if asked_to_stop.is_set():
            return
        url = f"http://{_shown(settings.REACH_HOST)}:{settings.REACH_PORT}"
        with _preparing_alone():
            migrate(say)
            known, is_new = ensure_credentials(settings.REACH_HOME / "credentials.json", url)
        say(
            welcome(
                url,
                known if is_new else None,
                "" if settings.DATABASE_URL else str(embedded.folders(settings.REACH_HOME)[0]),
            )
        )
        server = _server()
        if settings.REACH_ROLE == "all":
            background = undo.enter_context(_Background())
            server.before_drain = background.ask_to_stop
        if not asked_to_stop.is_set():
            _run(server, listener)


def welcome(url: str, fresh: "Credentials | None", data: str) -> str:
    """What the operator reads at start; the credentials once only."""
    lines = [f"Agent-Reach listens on {url}"]
    if data:
        lines.append(f"  data          {data}")
    if fresh:
        lines += [
            f"  admin         {url}/admin/  user {fresh.admin_username}  password {fresh.admin_password}",
            f"  operator key  {fresh.operator_key}",
            f"  Shown this once; kept in {settings.REACH_HOME / 'credentials.json'}",
        ]
    return "\n".join([*lines, "  Stop with Ctrl-C."])


# --- Signals, port, home ---------------------------------------------------------------------------------------------


def _asked_to_stop() -> threading.Event:
    """Set by SIGINT and SIGTERM, looked at between the steps: none of them is left half done.

    While it runs, the server has the signals to itself; it hands them on here when it has ended.
    """
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: asked.set())
    return asked


@contextlib.contextmanager
def _listener(host: str, port: int) -> Iterator[socket.socket]:
    """Our port, taken before anything else is started; it refuses connections until the server listens on it."""
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        raise CannotStart(f"REACH_HOST={host} is no address of this machine: {exc.strerror or exc}") from exc
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as exc:
            raise CannotStart(
                f"cannot listen on {host}:{port}: {exc.strerror}. Set REACH_PORT to another port."
            ) from exc
        yield listener


@contextlib.contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """One all-in-one a home: the in-memory broker and the embedded database serve one process."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "serve.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CannotStart(
                f"another Agent-Reach (pid {lock.read().strip()}) already runs on REACH_HOME={home}; "
                "stop it, or set another REACH_HOME"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _shown(host: str) -> str:
    """The host as somebody on this machine would write it in a URL."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


# --- Database --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _embedded_database(home: Path) -> Iterator[None]:
    """The embedded PostgreSQL, started again should it be killed, and told to readiness."""
    try:
        embedded.start(home)
    except embedded.EmbeddedError as exc:
        raise CannotStart(str(exc)) from exc
    leaving = threading.Event()
    guard = threading.Thread(target=_keep_up, args=(home, leaving), name="embedded postgresql guard", daemon=True)
    guard.start()
    health.parts["embedded postgresql"] = lambda: None if embedded.is_running(home) else "is not running"
    try:
        yield
    finally:
        leaving.set()
        guard.join()
        try:
            embedded.stop(home)
        except embedded.EmbeddedError as exc:
            log.warning("%s", exc)


def _keep_up(home: Path, leaving: threading.Event) -> None:
    while not leaving.wait(GUARD_INTERVAL_S):
        if embedded.is_running(home):
            continue
        log.warning("the embedded PostgreSQL is gone; starting it again")
        try:
            embedded.restart(home)
        except embedded.EmbeddedError as exc:
            log.error("%s", exc)


def _wait_for_database(asked_to_stop: threading.Event) -> None:
    """Give a database that is starting beside us a moment."""
    deadline = time.monotonic() + DATABASE_PATIENCE_S
    while not asked_to_stop.is_set():
        try:
            psycopg.connect(conninfo("reach start"), connect_timeout=5).close()
            return
        except psycopg.OperationalError as exc:
            if time.monotonic() > deadline:
                raise CannotStart(f"the database does not answer: {str(exc).strip()}") from exc
        asked_to_stop.wait(0.5)


@contextlib.contextmanager
def _preparing_alone() -> Iterator[None]:
    """Of several processes that start on one database together, one prepares it and the others wait."""
    with psycopg.connect(conninfo("reach start"), autocommit=True) as session:
        session.execute("SELECT pg_advisory_lock(%s)", [PREPARATION_LOCK])
        yield


def migrate(say: Say) -> None:
    """Bring the database up to this code."""
    executor = MigrationExecutor(connection)
    if plan := executor.migration_plan(executor.loader.graph.leaf_nodes()):
        say(f"Applying {len(plan)} migrations …")
        call_command("migrate", interactive=False, verbosity=0)
    maintain_partitions()  # after a long rest the partitions made ahead are behind


# --- Credentials -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the first start makes for the person who started it."""

    url: str
    admin_username: str
    admin_password: str
    operator_key: str


def ensure_credentials(path: Path, url: str) -> tuple[Credentials, bool]:
    """The credentials in `path`; made, with their administrator, when this database has none of them yet."""
    if stored := _stored_credentials(path, url):
        _write_credentials(path, stored)
        return stored, False
    # The file is written inside the transaction: a crash leaves at worst one with an unknown key, made anew next time.
    with transaction.atomic():
        admin, password = create_administrator()
        key = services.create_user_key(admin, SCOPES, by=FIRST_START)
        fresh = Credentials(url, admin.get_username(), password, key.text)
        _write_credentials(path, fresh)
    return fresh, True


def create_administrator() -> tuple[Any, str]:
    """`admin`, or where another home of this database has that name, `admin-` and something; with the password."""
    try:
        return services.create_user("admin", ["admin"], by=FIRST_START, superuser=True)
    except Conflict:
        return services.create_user(f"admin-{secrets.token_hex(2)}", ["admin"], by=FIRST_START, superuser=True)


def _stored_credentials(path: Path, url: str) -> Credentials | None:
    try:
        known = Credentials(**{**json.loads(path.read_text()), "url": url})
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return known if ApiKey.objects.filter(digest=digest_of(known.operator_key)).exists() else None


def _write_credentials(path: Path, credentials: Credentials) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with open(unfinished, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(asdict(credentials), file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


# --- Server, worker, beat --------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """uvicorn, telling us when it begins to drain."""

    before_drain: Callable[[], None] = staticmethod(lambda: None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping: calls at work have %g s", settings.REACH_DRAIN_S)
        self.before_drain()
        await super().shutdown(sockets)


def _server() -> _Server:
    return _Server(
        uvicorn.Config(
            "reach_project.asgi:application",
            loop="uvloop",
            http="httptools",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.REACH_DRAIN_S)),
        )
    )


def _run(server: _Server, listener: socket.socket) -> None:
    """Serve until a signal. Raises CannotStart."""
    try:
        server.run(sockets=[listener])
    except SystemExit:  # uvicorn's word for a lifespan that failed
        raise CannotStart("the server could not start; the reason is logged above") from None


class _Background:
    """The Celery worker and beat of the all-in-one, as threads of this process."""

    def __init__(self) -> None:
        self._worker = WorkController(
            app=app,
            hostname=f"reach@{socket.gethostname()}",
            pool="threads",
            concurrency=WORKER_THREADS,
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )
        self._beat = Service(app, max_interval=1, scheduler_cls=Scheduler)
        self._threads = {
            "worker": threading.Thread(target=self._worker.start, name="celery worker", daemon=True),
            "beat": threading.Thread(target=self._beat.start, name="celery beat", daemon=True),
        }

    def __enter__(self) -> "_Background":
        for name, thread in self._threads.items():
            thread.start()
            health.parts[name] = partial(self.state_of, name)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.ask_to_stop()
        deadline = time.monotonic() + WORKER_STOP_S
        for name, thread in self._threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning(
                    "the %s did not stop within %g s; what it left is found by the next sweep", name, WORKER_STOP_S
                )

    def ask_to_stop(self) -> None:
        """Take nothing new."""
        worker_state.should_stop = 0
        self._beat.stop()
        if not settings.REDIS_URL:
            app.send_task("registry.sweep_nodes")  # the worker looks up when a message comes, else after two seconds

    def state_of(self, name: str) -> str | None:
        """Why a part does not work, for readiness."""
        if not self._threads[name].is_alive():
            return "its thread has ended"
        return health.PULSE.missing() if name == "worker" else None
