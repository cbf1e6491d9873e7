"""A database that this code can work with: migrations, partitions, and credentials for the first person.

The all-in-one prepares its own; otherwise `manage.py reach_prepare` does, once, and every other process waits for it.
"""

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from reach_project.health import known_migrations, missing_migrations
from receipts.tasks import maintain_partitions
from registry import clock, services
from registry.auth import SCOPES, digest_of
from registry.database import conninfo
from registry.errors import Conflict
from registry.models import ApiKey

PREPARATION_LOCK = 0x7265616368  # any number that all processes of one database agree on
PREPARATION_LOOK_S = 0.2
LOOK_EVERY_S = 0.5
LOCK_TRIES = 20
FIRST_START = "first start"

Say = Callable[[str], object]


class CannotStart(Exception):
    """Why this process cannot serve, in one sentence for the operator."""


def check_shared(who: str) -> None:
    """Raises CannotStart where a process that is one of several would share nothing with the others."""
    if missing := [name for name in ("DATABASE_URL", "REDIS_URL") if not getattr(settings, name)]:
        raise CannotStart(
            f"{who} needs {' and '.join(missing)}, the same as every process of this Agent-Reach has;"
            " only REACH_ROLE=all runs without"
        )


# --- Waiting ---------------------------------------------------------------------------------------------------------


def wait_for_database(stop: threading.Event) -> None:
    """Give a database that is starting beside us a moment; returns early when asked to stop. Raises CannotStart."""
    deadline = time.monotonic() + settings.REACH_START_PATIENCE_S
    while not stop.is_set():
        try:
            with psycopg.connect(conninfo("reach start"), autocommit=True, connect_timeout=5) as session:
                clock.ask(session)
            return
        except psycopg.OperationalError as exc:
            if time.monotonic() > deadline:
                raise CannotStart(f"the database does not answer: {str(exc).strip()}") from exc
        stop.wait(LOOK_EVERY_S)


def wait_until_prepared(say: Say, stop: threading.Event | None = None) -> None:
    """Return once the database has every migration of this code, or when asked to stop. Raises CannotStart.

    Newer migrations than ours are welcome: during an upgrade the old processes start again beside the new database.
    """
    stop = stop or threading.Event()
    wait_for_database(stop)
    wanted, deadline, said = known_migrations(), time.monotonic() + settings.REACH_START_PATIENCE_S, False
    while not stop.is_set():
        try:
            with psycopg.connect(conninfo("reach start"), autocommit=True, connect_timeout=5) as session:
                missing = missing_migrations(session, wanted)
        except psycopg.OperationalError as exc:
            missing = f"unknown, {str(exc).strip()}"
        if missing is None:
            return
        if time.monotonic() > deadline:
            raise CannotStart(f"the database is not prepared (migrations: {missing}); run `manage.py reach_prepare`")
        if not said:
            say(f"Waiting for `manage.py reach_prepare` to prepare the database (migrations: {missing}) …")
            said = True
        stop.wait(LOOK_EVERY_S)


# --- Preparing -------------------------------------------------------------------------------------------------------


def prepared(say: Say, credentials: Path, url: str) -> "Credentials | None":
    """Do all of it; the credentials when they were made just now. Raises CannotStart."""
    wait_for_database(threading.Event())
    with preparing_alone():
        bring_up_to_date(say)
        return first_credentials(credentials, url)


@contextlib.contextmanager
def preparing_alone() -> Iterator[None]:
    """Of several processes that start on one database together, one prepares it and the others wait.

    They ask again and again: a session that waited inside PostgreSQL would keep indexes from being built concurrently.
    """
    with psycopg.connect(conninfo("reach start"), autocommit=True) as session:
        while session.execute("SELECT pg_try_advisory_lock(%s)", [PREPARATION_LOCK]).fetchone() != (True,):
            time.sleep(PREPARATION_LOOK_S)
        yield


def bring_up_to_date(say: Say) -> None:
    """Bring the database up to this code. Raises CannotStart when a lock could not be had."""
    patiently(partial(migrate, say), say)
    patiently(maintain_partitions.run, say)  # after a long rest the partitions made ahead are behind


def patiently(work: Callable[[], object], say: Say, *, lock_timeout_ms: int = 3_000, pause_s: float = 2.0) -> None:
    """Do work that locks tables, without holding anybody up. Raises CannotStart.

    Who waits for a table behind a long query makes everybody else wait behind himself. So work gives up after a moment,
    lets the others through and is begun again: it must be able to go on from where it was, as migrations do.
    """
    for tries_left in reversed(range(LOCK_TRIES)):
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SET lock_timeout = {lock_timeout_ms}")
            work()
            return
        except OperationalError as exc:
            if not isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
                raise
            if not tries_left:
                raise CannotStart(
                    f"a table was in use each of {LOCK_TRIES} times; see pg_stat_activity for a long transaction: {exc}"
                ) from exc
            say(f"A table is in use ({str(exc).splitlines()[0]}); trying again …")
        finally:
            with contextlib.suppress(OperationalError), connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")  # the session goes back to the pool
            connection.close()
        time.sleep(pause_s)


def migrate(say: Say) -> None:
    executor = MigrationExecutor(connection)
    if plan := executor.migration_plan(executor.loader.graph.leaf_nodes()):
        say(f"Applying {len(plan)} migrations …")
        call_command("migrate", interactive=False, verbosity=0)
        services.ensure_groups()  # a release may let a group do more


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


def first_credentials(path: Path, url: str) -> Credentials | None:
    """What `reach_prepare` makes for a database that nobody administers yet; None where somebody does."""
    if get_user_model().objects.filter(is_superuser=True, is_active=True).exists():
        return None
    return ensure_credentials(path, url)[0]


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
