"""One process of the reach, from its port to its last connection: `manage.py reach_serve`.

In this order, and undone in the opposite one: port, home, PostgreSQL, migrations, credentials, worker and beat, server.
A dispatcher or console has only port and server, and waits for a database that `manage.py reach_prepare` prepared.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from celery.beat import Service
from celery.worker import WorkController
from celery.worker import state as worker_state
from django.conf import settings
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from reach_project import embedded, health, prepare
from reach_project.celery import QUEUES, ScheduleInMemory, app
from reach_project.prepare import CannotStart, Credentials, Say
from routing import live

log = logging.getLogger("reach_project.runtime")

WORKER_THREADS = 4
WORKER_STOP_S = 5.0
GUARD_INTERVAL_S = 1.0
KEEP_ALIVE_S = 75  # idle connections to us; above what common clients and proxies keep, so that they close first
WATCHER_SAYS_AT_MOST = 4096  # bytes in one message of a live page, which has nothing to say
IDLE_LINGER_S = 2.0  # above the 1.5 s for which our own client keeps an idle connection


def serve(say: Say) -> None:
    """Serve until SIGINT or SIGTERM, then stop everything that was started. Raises CannotStart."""
    asked_to_stop = _asked_to_stop()
    _open_as_many_as_allowed()
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(_listener(settings.REACH_HOST, settings.REACH_PORT))
        url = f"http://{_shown(settings.REACH_HOST)}:{settings.REACH_PORT}"
        if settings.REACH_ROLE == "all":
            before_drain = _start_all(say, url, undo, asked_to_stop)
        else:
            prepare.check_shared(f"REACH_ROLE={settings.REACH_ROLE}")
            prepare.wait_until_prepared(say, asked_to_stop)
            before_drain = _nothing
        if asked_to_stop.is_set():
            return
        if settings.REACH_ROLE != "all":
            say(f"Agent-Reach's {settings.REACH_ROLE} listens on {url}")
        server = _server()
        server.before_drain = before_drain
        _run(server, listener)


def _start_all(say: Say, url: str, undo: contextlib.ExitStack, asked_to_stop: threading.Event) -> Callable[[], None]:
    """Everything that an all-in-one has beside its server; what is to be told when it begins to stop."""
    if not settings.DATABASE_URL:
        undo.enter_context(_alone_in(settings.REACH_HOME))
        say("Starting the embedded PostgreSQL …")
        undo.enter_context(_embedded_database(settings.REACH_HOME))
    prepare.wait_for_database(asked_to_stop)
    if asked_to_stop.is_set():
        return _nothing
    with prepare.preparing_alone():
        prepare.bring_up_to_date(say)
        known, is_new = prepare.ensure_credentials(settings.REACH_HOME / "credentials.json", url)
    data = "" if settings.DATABASE_URL else str(embedded.folders(settings.REACH_HOME)[0])
    say(welcome(url, known if is_new else None, data))
    return undo.enter_context(_Background()).ask_to_stop


def _nothing() -> None:
    """What is told to nobody."""


def _open_as_many_as_allowed() -> None:
    """A call under way holds two sockets; many systems allow a process 1,024 until it asks for more."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def welcome(url: str, fresh: Credentials | None, data: str) -> str:
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


# --- Server, worker, beat --------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """uvicorn, leaving without a broken answer: not ready at once, then deaf to new connections, then gone.

    A request may be on its way on an idle connection while we close it, and its caller could not know what became of
    it. So idle connections stay open for a moment: what comes is answered with `Connection: close`, and busy callers
    have none left when the rest are closed.
    """

    before_drain: Callable[[], None] = staticmethod(_nothing)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        health.begin_stopping()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve_on(settings.REACH_STOP_DELAY_S)
        log.info("stopping: calls at work have %g s", settings.REACH_DRAIN_S)
        self.before_drain()
        for server in self.servers:
            server.close()
        live.let_go()  # now that whoever comes back comes to another process
        await self._serve_on(IDLE_LINGER_S, while_connected=True)
        await super().shutdown(sockets)

    async def _serve_on(self, seconds: float, *, while_connected: bool = False) -> None:
        """Serve for so long, at most; a second Ctrl-C ends it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.force_exit:
            if while_connected and not self.server_state.connections:
                return
            await asyncio.sleep(0.02)


class _Connection(HttpToolsProtocol):
    """uvicorn tells the end of a connection to the request that came last on it. Where requests are pipelined that is
    not the one at work, which would wait, and then write to nobody: here it is told too.
    """

    at_work: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.at_work = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.at_work is not None and not self.at_work.response_complete:
            self.at_work.disconnected = True
            self.at_work.message_event.set()
        super().connection_lost(exc)


def _server() -> _Server:
    return _Server(
        uvicorn.Config(
            "reach_project.asgi:application",
            loop="uvloop",
            http=_Connection,
            ws="websockets-sansio",
            ws_max_size=WATCHER_SAYS_AT_MOST,
            ws_per_message_deflate=False,  # 300 KB of memory a socket
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
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
            queues=list(QUEUES),
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )
        self._beat = Service(app, max_interval=1, scheduler_cls=ScheduleInMemory)
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
        """Wait for the worker. Beat has nothing to finish and may sleep for a second more: it ends with the process."""
        self.ask_to_stop()
        worker = self._threads["worker"]
        patience_s = WORKER_STOP_S + settings.REACH_DRAIN_S  # its engine lets its calls finish
        worker.join(patience_s)
        if worker.is_alive():
            log.warning("the worker did not stop within %g s; what it left is found by the next sweep", patience_s)

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
