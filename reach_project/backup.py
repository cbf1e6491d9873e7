"""Backup and restore of the database, by PostgreSQL's own pg_dump and pg_restore.

The file is an ordinary archive of pg_dump's custom format: any pg_restore reads it. It holds the installation key, with
which signing secrets can be read where no SECRET_KEY is given, so it is as secret as the database. A given SECRET_KEY
is not in it: it stays where the operator keeps it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db.migrations.loader import MigrationLoader
from psycopg.conninfo import conninfo_to_dict

from reach_project import embedded
from reach_project.prepare import PREPARATION_LOCK
from registry.database import conninfo
from registry.signing import cipher

CONNECT_TIMEOUT_S = 5
LOCK_WAIT_MS = 30_000
SET_ASIDE = "reach_before_restore"
EXPECTED = ("django_migrations", "registry_service", "registry_installationkey", "calls", "receipts")
COUNTED = {
    "services": "registry_service",
    "nodes": "registry_node",
    "keys": "registry_apikey",
    "routes": "routing_route",
    "people": "auth_user",
    "calls": "calls",
    "receipts": "receipts",
}
FIRST_WITH_TRANSACTION_TIMEOUT = 17

Say = Callable[[str], object]


class BackupError(Exception):
    """Why there is no backup, or nothing was restored; a sentence for the operator."""


# --- PostgreSQL's programs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tools:
    """pg_dump and pg_restore of one version, in one folder."""

    folder: Path
    major: int


def fitting(server_major: int, found: list[Tools]) -> Tools | None:
    """Those of the server's own version, else the nearest newer ones: pg_dump reads older servers, never newer ones."""
    return min((tools for tools in found if tools.major >= server_major), key=lambda tools: tools.major, default=None)


def tools_for(server_major: int) -> Tools:
    """The programs for a server. Raises BackupError with what to install."""
    found = installed_tools()
    if (tools := fitting(server_major, found)) is not None:
        return tools
    seen = ", ".join(f"{tools.major} in {tools.folder}" for tools in found) or "none"
    raise BackupError(
        f"the server is PostgreSQL {server_major}, and pg_dump {server_major} or newer is not installed"
        f" (found: {seen}): install it, for example `apt-get install postgresql-client-{server_major}`"
    )


def installed_tools() -> list[Tools]:
    """Every pair of pg_dump and pg_restore of this machine, the embedded server's included."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), *sorted(Path("/usr").glob("pgsql-*/bin"))]
    if on_path := shutil.which("pg_dump"):
        folders.append(Path(on_path).parent)
    with suppress(embedded.EmbeddedError):  # an installation without the wheel
        folders.append(embedded.binaries(None))
    return [Tools(folder, major) for folder in folders if (major := major_of(folder)) is not None]


def major_of(folder: Path) -> int | None:
    """The version of the programs in a folder; None when they are not there or do not run."""
    versions = []
    for name in ("pg_dump", "pg_restore"):
        try:
            said = subprocess.run([folder / name, "--version"], capture_output=True, text=True, check=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        if (number := re.search(r"\) (\d+)", said.stdout)) is None:
            return None
        versions.append(int(number[1]))
    return versions[0] if versions[0] == versions[1] else None


def run(program: Path, *arguments: str) -> str:
    """Run one of them on our database; its output. Raises BackupError with what it said."""
    done = subprocess.run(
        [program, *arguments], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last_words = " ".join(done.stderr.strip().splitlines()[-3:])
        raise BackupError(f"{program.name} failed: {last_words}")
    return done.stdout


def environment() -> Mapping[str, str]:
    """How libpq's programs find our database. The password goes here: arguments are shown to everybody by `ps`."""
    names = {
        "host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "password": "PGPASSWORD",
        "sslmode": "PGSSLMODE",
    }  # fmt: skip
    given = conninfo_to_dict(conninfo("reach backup"))
    ours = {names[name]: str(value) for name, value in given.items() if name in names and value}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return inherited | ours | {"PGAPPNAME": "reach backup", "PGCONNECT_TIMEOUT": str(CONNECT_TIMEOUT_S)}


@contextmanager
def session() -> Iterator[psycopg.Connection]:
    """A session of our own. Raises BackupError when the database does not answer."""
    try:
        opened = psycopg.connect(conninfo("reach backup"), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
    except psycopg.OperationalError as exc:
        raise BackupError(f"the database does not answer: {str(exc).strip()}") from exc
    with opened:
        yield opened


# --- Backup ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackedUp:
    size_bytes: int
    needs_secret_key: bool
    """Whether a SECRET_KEY is given: then the file alone does not open the signing secrets."""
    only_newer_servers: int | None
    """The oldest server that takes this file, where it is newer than the one it was made from."""


def back_up(path: Path) -> BackedUp:
    """Write one moment of the database to `path`, readable by its owner only. Raises BackupError.

    Nobody has to stop: pg_dump reads a single snapshot and blocks only the dropping of old partitions.
    """
    if path.exists():
        raise BackupError(f"{path} exists already, and a backup replaces none: name another file")
    with session() as db:
        server_major = db.info.server_version // 10_000
    tools = tools_for(server_major)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        run(
            tools.folder / "pg_dump",
            "--format=custom",
            "--no-owner",
            "--no-privileges",
            f"--lock-wait-timeout={LOCK_WAIT_MS}",
            f"--file={unfinished}",
        )
        check_archive(unfinished, tools)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.link(unfinished, path)  # unlike a rename, it replaces nothing
    except OSError as exc:
        raise BackupError(f"cannot write {path}: {exc.strerror or exc}") from exc
    finally:
        unfinished.unlink(missing_ok=True)
    newer = tools.major >= FIRST_WITH_TRANSACTION_TIMEOUT > server_major
    return BackedUp(
        path.stat().st_size, bool(settings.GIVEN_SECRET_KEY), FIRST_WITH_TRANSACTION_TIMEOUT if newer else None
    )


def check_archive(path: Path, tools: Tools) -> None:
    """Whether this is a whole backup of a reach. Raises BackupError."""
    listed = run(tools.folder / "pg_restore", "--list", str(path))
    tables = set(re.findall(r" TABLE public (\S+) ", listed))
    if missing := [table for table in EXPECTED if table not in tables]:
        raise BackupError(f"{path} is no backup of an Agent-Reach: it has no table {missing[0]}")


# --- Restore ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restored:
    """What is in the database now, and what is wrong with it."""

    counts: Mapping[str, int]
    open_calls: int
    """Calls that were under way at the backup: they will be ended, never run again."""
    migrations_to_come: int
    problems: list[str] = field(default_factory=list)


def restore(path: Path, *, replace: bool = False) -> Restored:
    """Bring a backup into an empty database, or with `replace` in place of what is there. Raises BackupError.

    All or nothing: when it fails, the database is what it was before.
    """
    if not path.is_file():
        raise BackupError(f"there is no file {path}")
    with session() as db:
        tools = tools_for(db.info.server_version // 10_000)
        check_archive(path, tools)
        hold_still(db)
        tables = tables_of(db)
        if tables and not replace:
            raise BackupError(
                f"the database {db.info.dbname} is not empty ({tables} tables): restore into an empty one,"
                " or say --replace to give up what is in it"
            )
        with in_place_of(db, given_up=bool(tables)):
            run(
                tools.folder / "pg_restore",
                "--no-owner",
                "--no-privileges",
                "--exit-on-error",
                "--single-transaction",
                f"--dbname={db.info.dbname}",
                str(path),
            )
        open_calls = settle(db)
        return verified(db, open_calls)


def hold_still(db: psycopg.Connection) -> None:
    """Make sure that nobody works on this database, and that nobody begins to. Raises BackupError."""
    if not db.execute("SELECT pg_try_advisory_lock(%s)", [PREPARATION_LOCK]).fetchone()[0]:  # type: ignore[index]
        raise BackupError("another process is preparing this database just now: try again when it has finished")
    if db.execute("SELECT to_regclass('public.process_leases')").fetchone() == (None,):
        return
    alive = db.execute(
        "SELECT role, host, pid FROM public.process_leases WHERE lease_expires_at > now() ORDER BY started_at"
    ).fetchall()
    if alive:
        named = ", ".join(f"{role} {host}:{pid}" for role, host, pid in alive)
        raise BackupError(
            f"{len(alive)} processes work on this database ({named}): stop them first; one that was killed counts"
            f" for {settings.REACH_PROCESS_LEASE_S:g} s more"
        )


def tables_of(db: psycopg.Connection) -> int:
    """How many tables there are. Raises BackupError when an earlier restore was cut off."""
    if db.execute("SELECT FROM pg_namespace WHERE nspname = %s", [SET_ASIDE]).fetchone() is not None:
        raise BackupError(
            f"an earlier restore was cut off; what was there before it is in the schema {SET_ASIDE}. To have it back:"
            f" DROP SCHEMA public CASCADE; ALTER SCHEMA {SET_ASIDE} RENAME TO public;"
            f" to give it up: DROP SCHEMA {SET_ASIDE} CASCADE;"
        )
    row = db.execute(
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    ).fetchone()
    assert row is not None
    return row[0]


@contextmanager
def in_place_of(db: psycopg.Connection, *, given_up: bool) -> Iterator[None]:
    """Put what is there aside for the block; drop it when the block succeeds, put it back when it fails."""
    if not given_up:
        yield
        return
    with db.transaction():
        db.execute(f"ALTER SCHEMA public RENAME TO {SET_ASIDE}")
        db.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
    try:
        yield
    except BaseException:
        with db.transaction():
            db.execute("DROP SCHEMA public CASCADE")
            db.execute(f"ALTER SCHEMA {SET_ASIDE} RENAME TO public")
        raise
    db.execute(f"DROP SCHEMA {SET_ASIDE} CASCADE")


def settle(db: psycopg.Connection) -> int:
    """Take from the past its processes, and from calls under way their time; how many calls those are.

    Nobody knows what became of them after the backup. With their deadline over, recovery can only end them: no node
    gets them again, whether idempotent or not, however soon the backup is restored.
    """
    with db.transaction():
        db.execute("DELETE FROM process_leases")
        ended = db.execute("UPDATE calls SET deadline = least(deadline, now()) WHERE ended_at IS NULL")
    db.execute("ANALYZE")
    return ended.rowcount


def verified(db: psycopg.Connection, open_calls: int) -> Restored:
    """Count what was restored, open every signing secret, and compare the schema with this code's."""
    counts = {}
    for name, table in COUNTED.items():
        row = db.execute(f"SELECT count(*) FROM {table}").fetchone()  # names of our own
        assert row is not None
        counts[name] = row[0]
    applied = set(db.execute("SELECT app, name FROM django_migrations").fetchall())
    wanted = set(MigrationLoader(None).disk_migrations)
    ours = {app for app, _name in wanted}
    problems = []
    if unreadable := unreadable_secrets(db):
        problems.append(
            f"{len(unreadable)} of {counts['services']} signing secrets cannot be read (of {unreadable[0]}, for one):"
            " set SECRET_KEY to what it was where the backup was made"
        )
    if unknown := sorted(f"{app}.{name}" for app, name in applied - wanted if app in ours):
        problems.append(
            f"the backup was made by a newer version ({unknown[-1]} is unknown here): start that version on it"
        )
    return Restored(counts, open_calls, len(wanted - applied), problems)


def unreadable_secrets(db: psycopg.Connection) -> list[str]:
    """The services whose signing secrets this process cannot decrypt."""
    row = db.execute("SELECT value FROM registry_installationkey").fetchone()
    opener = cipher(settings.GIVEN_SECRET_KEY, row[0] if row else "")
    unreadable = []
    for service_id, stored in db.execute("SELECT service_id, signing_secret FROM registry_service ORDER BY 1"):
        try:
            opener.decrypt(stored.encode())
        except InvalidToken:
            unreadable.append(service_id)
    return unreadable
