"""Is this process up (`/healthz`), and can it take work (`/readyz`)? docs/adr/0007 says which part decides what.

Answers come at once and cost the database nothing: what has to ask somebody else is asked once a second by a thread of
its own, and a request only reads what was last found.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import partial

import psycopg
from django.conf import settings
from django.http import HttpRequest, JsonResponse

Check = Callable[[], str | None]
LOOK_EVERY_S = 1.0
STALE_AFTER_S = 5.0
PULSE_LATE_AFTER_S = 10.0


class Weight(StrEnum):
    """What a part that does not work means for this process."""

    VITAL = "vital"  # not ready
    AFTER_START = "after start"  # not ready until it has worked once; from then on degraded
    ADVISORY = "advisory"  # degraded: other processes' business, shown here


class Readiness(StrEnum):
    READY = "ready"
    DEGRADED = "degraded"  # takes calls, and says what is wrong
    NOT_READY = "not_ready"
    STOPPING = "stopping"


TAKES_WORK = (Readiness.READY, Readiness.DEGRADED)

parts: dict[str, Check] = {}
"""What this process looks at: each check answers at once, None or a sentence why its part does not work.

The composition root fills it: `start` below, the ASGI lifespan (`snapshot`) and the runtime (`worker`, `beat`).
"""
weights: dict[str, Weight] = {}
"""Of the parts that are not vital."""
_have_worked: set[str] = set()
_stopping = threading.Event()


def healthz(_request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(_request: HttpRequest) -> JsonResponse:
    found = look_at_parts()
    state = state_of(found)
    body = {"status": state.value, "parts": {name: why or "ok" for name, why in found.items()}}
    status = 200 if state in TAKES_WORK else 503
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"})


def state_of(found: Mapping[str, str | None]) -> Readiness:
    """What this process is, by what was found just now."""
    return Readiness.STOPPING if is_stopping() else readiness(found, weights, _have_worked)


def readiness(
    found: Mapping[str, str | None], weights: Mapping[str, Weight], have_worked: Collection[str]
) -> Readiness:
    """What the parts' states come to; `found` holds the reason of each that does not work."""
    broken = [name for name, why in found.items() if why]
    for name in broken:
        weight = weights.get(name, Weight.VITAL)
        if weight is Weight.VITAL or (weight is Weight.AFTER_START and name not in have_worked):
            return Readiness.NOT_READY
    return Readiness.DEGRADED if broken else Readiness.READY


def look_at_parts() -> dict[str, str | None]:
    """Each part, with the reason why it does not work, if so."""
    found = {name: check() for name, check in sorted(parts.items())}
    _have_worked.update(name for name, why in found.items() if not why)
    return found or {"server": "nothing has been started yet"}


def state() -> tuple[bool, dict[str, str]]:
    """Whether this process takes work, and the parts that do not work, vital or not."""
    found = look_at_parts()
    return state_of(found) in TAKES_WORK, {name: why for name, why in found.items() if why}


def begin_stopping() -> None:
    """From now on this process is not ready: whoever chooses among several shall choose another."""
    _stopping.set()


def is_stopping() -> bool:
    return _stopping.is_set()


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
    """Whether the database answers and has every migration of this code, and whether the worker's sweep moves on it."""

    def __init__(self, conninfo: str, wanted: frozenset[tuple[str, str]]) -> None:
        self._conninfo, self._wanted = conninfo, wanted
        self._session: psycopg.Connection | None = None
        self._swept_at: object = None
        self._sweeps = Pulse()

    def __call__(self) -> dict[str, str | None]:
        try:
            if self._session is None or self._session.broken or self._session.closed:
                self._session = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=3)
            missing = missing_migrations(self._session, self._wanted)
            return {"database": None, "migrations": missing, "worker": self._worker(self._session, missing)}
        except psycopg.Error as exc:
            why = f"does not answer: {str(exc).strip() or type(exc).__name__}".replace("\n", " ")
            unknown = "unknown while the database does not answer"
            return {"database": why, "migrations": unknown, "worker": unknown}

    def _worker(self, session: psycopg.Connection, missing: str | None) -> str | None:
        """Judged by whether the sweep's moment changes, not by its age: it is another machine's clock."""
        if missing is None:
            row = session.execute("SELECT swept_at FROM registry_leasesweep").fetchone()
            if row is not None and self._swept_at is not None and row[0] != self._swept_at:
                self._sweeps.felt()
            self._swept_at = row[0] if row else None
        return self._sweeps.missing()


class RedisLook:
    """Whether the broker of several processes answers; on one connection for as long as it holds."""

    def __init__(self, url: str) -> None:
        import redis  # a tenth of a start, and most installations need none

        self._client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
        self._errors = (redis.RedisError, OSError)

    def __call__(self) -> dict[str, str | None]:
        try:
            self._client.ping()
        except self._errors as exc:
            return {"broker": f"does not answer: {exc}"}
        return {"broker": None}


_watches: list[Watch] = []


def start() -> None:
    """Begin to watch database, migrations and broker. Called once, when the server starts."""
    from registry.database import conninfo

    names: tuple[str, ...] = ("database", "migrations")
    if settings.REACH_ROLE == "console":  # where operators look for what is wrong elsewhere
        names += ("worker",)
        weights["worker"] = Weight.ADVISORY
    _watches.append(Watch(names, DatabaseLook(conninfo("reach health"), known_migrations())))
    if settings.REDIS_URL:
        _watches.append(Watch(("broker",), RedisLook(settings.REDIS_URL)))
        if settings.REACH_ROLE != "all":  # calls need no broker; the all-in-one's worker does
            weights["broker"] = Weight.AFTER_START
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
