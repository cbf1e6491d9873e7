"""Is this process up (`/healthz`), and do all its parts work (`/readyz`)?

Answers come at once and cost the database nothing: what has to ask somebody else is asked once a second by a thread of
its own, and a request only reads what was last found.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import psycopg
import redis
from django.conf import settings
from django.http import HttpRequest, JsonResponse

Check = Callable[[], str | None]
LOOK_EVERY_S = 1.0
STALE_AFTER_S = 5.0
PULSE_LATE_AFTER_S = 10.0

parts: dict[str, Check] = {}
"""What must work for this process to be ready: each check answers at once, None or a sentence why its part does not.

The composition root fills it: `start` below, the ASGI lifespan (`snapshot`) and the runtime (`worker`, `beat`).
"""


def healthz(_request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(_request: HttpRequest) -> JsonResponse:
    found = look_at_parts()
    ready = not any(found.values())
    body = {"status": "ready" if ready else "not_ready", "parts": {name: why or "ok" for name, why in found.items()}}
    return JsonResponse(body, status=200 if ready else 503, headers={"Cache-Control": "no-store"})


def look_at_parts() -> dict[str, str | None]:
    """Each part, with the reason why it does not work, if so."""
    return {name: check() for name, check in sorted(parts.items())} or {"server": "nothing has been started yet"}


def not_working() -> dict[str, str]:
    """The parts that keep this process from being ready."""
    return {name: why for name, why in look_at_parts().items() if why}


class Pulse:
    """The age of the last sign of life, by this process's monotonic clock."""

    def __init__(self) -> None:
        self._last: float | None = None

    def felt(self) -> None:
        self._last = time.monotonic()

    def missing(self) -> str | None:
        if self._last is None:
            return "has not run its first task yet"
        if (age_s := time.monotonic() - self._last) > PULSE_LATE_AFTER_S:
            return f"last ran a task {age_s:.0f} s ago"
        return None


PULSE = Pulse()


class Watch(threading.Thread):
    """Looks at something slow once a second; `what_it_found` says at once what the last look brought."""

    def __init__(self, names: tuple[str, ...], look: Callable[[], Mapping[str, str | None]]) -> None:
        super().__init__(name=f"watch {' '.join(names)}", daemon=True)
        self.names, self._look = names, look
        self._found: Mapping[str, str | None] = dict.fromkeys(names, "has not been looked at yet")
        self._looked_at = time.monotonic()
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._found = self._look()
            self._looked_at = time.monotonic()
            self._stopping.wait(LOOK_EVERY_S)

    def stop(self) -> None:
        self._stopping.set()

    def what_it_found(self, name: str) -> str | None:
        if (age_s := time.monotonic() - self._looked_at) > STALE_AFTER_S:
            return f"has not answered for {age_s:.0f} s"
        return self._found[name]


def known_migrations() -> frozenset[tuple[str, str]]:
    """Every migration of this code, as (app, name)."""
    from django.db.migrations.loader import MigrationLoader

    return frozenset(MigrationLoader(None).disk_migrations)


def missing_migrations(session: psycopg.Connection, wanted: frozenset[tuple[str, str]]) -> str | None:
    """What the database lacks of the wanted migrations, in words. Raises psycopg.OperationalError."""
    try:
        applied = set(session.execute("SELECT app, name FROM django_migrations").fetchall())
    except psycopg.errors.UndefinedTable:
        applied = set()
    missing = wanted - applied
    return f"{len(missing)} not applied, among them {'.'.join(min(missing))}" if missing else None


class DatabaseLook:
    """Whether the database answers and has every migration of this code."""

    def __init__(self, conninfo: str, wanted: frozenset[tuple[str, str]]) -> None:
        self._conninfo, self._wanted = conninfo, wanted
        self._session: psycopg.Connection | None = None

    def __call__(self) -> dict[str, str | None]:
        try:
            if self._session is None or self._session.broken or self._session.closed:
                self._session = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=3)
            return {"database": None, "migrations": missing_migrations(self._session, self._wanted)}
        except psycopg.Error as exc:
            why = f"does not answer: {str(exc).strip() or type(exc).__name__}".replace("\n", " ")
            return {"database": why, "migrations": "unknown while the database does not answer"}


def look_at_redis() -> dict[str, str | None]:
    """Whether the broker of several processes answers."""
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            client.ping()
    except (redis.RedisError, OSError) as exc:
        return {"broker": f"does not answer: {exc}"}
    return {"broker": None}


_watches: list[Watch] = []


def start() -> None:
    """Begin to watch database, migrations and broker. Called once, when the server starts."""
    from registry.database import conninfo

    look = DatabaseLook(conninfo("reach health"), known_migrations())
    _watches.append(Watch(("database", "migrations"), look))
    if settings.REDIS_URL:
        _watches.append(Watch(("broker",), look_at_redis))
    else:
        parts["broker"] = lambda: None  # in memory, in this process
    for watch in _watches:
        for name in watch.names:
            parts[name] = partial(watch.what_it_found, name)
        watch.start()


def stop() -> None:
    """End the watching; nothing is ready any more."""
    while _watches:
        _watches.pop().stop()
    parts.clear()
