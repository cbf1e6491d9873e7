"""Is the database what Agent-Reach needs: there, new enough, up to date, durable, wide enough, and listening?"""

import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import psycopg
from django.conf import settings
from django.db.migrations.loader import MigrationLoader
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from psycopg.conninfo import conninfo_to_dict

from reach_project import embedded
from reach_project.doctor.findings import Finding, Findings, error, named, ok, warning
from receipts.partitions import TABLES, partition_bounds
from registry.database import conninfo

CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_MS = 3000
OLDEST_VERSION = 15
DISPATCH_CONNECTIONS = 6
"""Of each journal with its snapshot: two lanes, two readers, two listeners (`receipts.journal`, `routing.snapshot`)."""
OTHER_CONNECTIONS = 2
"""Of each process: what readiness looks with, and what prepares."""
CLOCK_WARNS_S, CLOCK_FAILS_S = 2.0, 30.0
NOTICE_WAIT_S = 2.0
GIGABYTE = 1_000_000_000
WRAPAROUND_WARNS = 1_000_000_000


def address() -> str:
    """Where the database is, without its password."""
    given = conninfo_to_dict(conninfo("reach doctor"))
    host, port = given.get("host") or "localhost", given.get("port") or 5432
    place = host if str(host).startswith("/") else f"{host}:{port}"
    return f"{given.get('user', '')}@{place}/{given.get('dbname', '')}"


@contextmanager
def connected() -> Iterator[psycopg.Connection]:
    """A session that waits for nothing long. Raises psycopg.OperationalError."""
    session = psycopg.connect(conninfo("reach doctor"), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
    with closing(session):
        session.execute("SELECT set_config('statement_timeout', %s, false)", [str(STATEMENT_TIMEOUT_MS)])
        yield session


def unreachable(exc: Exception) -> Finding:
    reason = " ".join(str(exc).split())
    fix = (
        _("Start PostgreSQL, or correct DATABASE_URL; a firewall or pg_hba.conf may stand between.")
        if settings.DATABASE_URL
        else _("Start Agent-Reach; if it does not start, the end of postgres.log in REACH_HOME says why.")
    )
    return error(
        "database",
        _("PostgreSQL at %(address)s does not answer: %(reason)s") % {"address": address(), "reason": reason},
        fix,
    )


def one(db: psycopg.Connection, sql: str, *values: object) -> tuple:
    row = db.execute(sql, values).fetchone()
    assert row is not None, sql
    return row


def version(db: psycopg.Connection) -> Findings:
    return version_found(db.info.server_version // 10_000)


def version_found(major: int) -> Findings:
    facts = {"address": address(), "version": major, "oldest": OLDEST_VERSION}
    if major >= OLDEST_VERSION:
        yield ok("database", _("PostgreSQL %(version)s answers at %(address)s") % facts)
    else:
        yield error(
            "database",
            _("PostgreSQL %(version)s at %(address)s is too old: %(oldest)s is the oldest that works") % facts,
            _("Upgrade it with pg_upgrade, or move by reach_backup and reach_restore."),
        )


def migrations(db: psycopg.Connection) -> Findings:
    wanted = set(MigrationLoader(None).disk_migrations)
    if one(db, "SELECT to_regclass('django_migrations')") == (None,):
        applied: set[tuple[str, str]] = set()
    else:
        applied = set(db.execute("SELECT app, name FROM django_migrations").fetchall())
    missing = sorted(f"{app}.{name}" for app, name in wanted - applied)
    ours = {app for app, _name in wanted}
    newer = sorted(f"{app}.{name}" for app, name in applied - wanted if app in ours)
    if missing:
        yield error(
            "migrations",
            ngettext(
                "%(n)s migration is not applied: %(names)s", "%(n)s migrations are not applied: %(names)s", len(missing)
            )
            % {"n": len(missing), "names": named(missing)},
            _("Run `manage.py reach_prepare`; the all-in-one does so when it starts."),
        )
    elif newer:
        yield warning(
            "migrations",
            _("The database was prepared by a newer version (%(names)s)") % {"names": named(newer)},
            _("Finish the upgrade of this process, or restore a backup from before it."),
        )
    else:
        yield ok("migrations", _("All migrations are applied"))


def writable(db: psycopg.Connection) -> Findings:
    (replica, read_only) = one(db, "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
    if replica or read_only == "on":
        yield error(
            "writing",
            _("The database takes no writes: it is a replica, or set to read only"),
            _("Let DATABASE_URL name the primary; after a fail-over, its new address."),
        )
        return
    (may_create,) = one(db, "SELECT has_schema_privilege(current_user, current_schema(), 'CREATE')")
    try:
        with db.transaction(force_rollback=True):
            db.execute(
                "INSERT INTO process_leases (owner, role, host, pid, started_at, held_since, lease_expires_at)"
                " VALUES (gen_random_uuid(), 'doctor', '', 0, now(), now(), now())"
            )
    except psycopg.Error as exc:
        yield error(
            "writing",
            _("The database refused a write: %(reason)s") % {"reason": " ".join(str(exc).split())},
            _("Let the user of DATABASE_URL own the database; look for a full disk."),
        )
        return
    if may_create:
        yield ok("writing", _("It takes writes"))
    else:
        yield error(
            "writing",
            _("The database user may not make tables, so no partitions can be made ahead"),
            _("As its owner: GRANT CREATE ON SCHEMA public TO the user of DATABASE_URL."),
        )


def durability(db: psycopg.Connection) -> Findings:
    names = ("fsync", "full_page_writes", "synchronous_commit")
    rows = db.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(names)]).fetchall()
    off = sorted(name for name, setting in rows if setting == "off")
    if off:
        yield error(
            "durability",
            _("%(names)s is off: calls that callers were told of can be lost in a crash") % {"names": ", ".join(off)},
            _("ALTER SYSTEM RESET %(name)s; SELECT pg_reload_conf(); also look at ALTER ROLE and ALTER DATABASE.")
            % {"name": off[0]},
        )
    elif settings.REACH_DURABILITY == "relaxed":
        yield warning(
            "durability",
            _("REACH_DURABILITY=relaxed: a crash of PostgreSQL can lose the calls of its last 0.6 s"),
            _("Unset it where what callers were told must survive a crash."),
        )
    else:
        yield ok("durability", _("What is committed survives a crash: %(names)s are on") % {"names": ", ".join(names)})


def connections(db: psycopg.Connection) -> Findings:
    limit, reserved, open_now = one(
        db,
        "SELECT current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int,"
        " (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')",
    )
    processes, journals = one(
        db,
        "SELECT count(DISTINCT (host, pid)), count(*) FROM process_leases WHERE lease_expires_at > now()",
    )
    yield connections_found(
        limit - reserved, connections_needed(max(processes, 1), max(journals, 2)), open_now, max(processes, 1)
    )


def connections_needed(processes: int, journals: int) -> int:
    """The most that processes open at once: a pool each, and what each journal with its snapshot holds."""
    return processes * (settings.REACH_DATABASE_POOL + OTHER_CONNECTIONS) + journals * DISPATCH_CONNECTIONS


def connections_found(limit: int, needed: int, open_now: int, processes: int) -> Finding:
    facts = {"limit": limit, "needed": needed, "open": open_now, "n": processes}
    fix = _("Raise max_connections (a restart of PostgreSQL), or lower REACH_DATABASE_POOL.")
    if needed > limit:
        return error(
            "connections",
            ngettext(
                "%(n)s process may open %(needed)s connections, and PostgreSQL allows %(limit)s",
                "%(n)s processes may open %(needed)s connections, and PostgreSQL allows %(limit)s",
                processes,
            )
            % facts,
            fix,
        )
    if open_now > limit * 0.9:
        return warning("connections", _("%(open)s of %(limit)s connections are open, whoever holds them") % facts, fix)
    return ok("connections", _("%(open)s of %(limit)s connections are open; ours need %(needed)s at most") % facts)


def clock(db: psycopg.Connection) -> Findings:
    before = time.time()
    (there,) = one(db, "SELECT extract(epoch FROM clock_timestamp())::float8")
    yield clock_found(there - (before + time.time()) / 2)


def clock_found(ahead_s: float) -> Finding:
    facts = {"seconds": f"{ahead_s:+.1f}"}
    fix = _("Let both hosts keep time by NTP (chrony, systemd-timesyncd).")
    if abs(ahead_s) >= CLOCK_FAILS_S:
        return error("clock", _("The database's clock is %(seconds)s s off this host's") % facts, fix)
    if abs(ahead_s) >= CLOCK_WARNS_S:
        return warning("clock", _("The database's clock is %(seconds)s s off this host's") % facts, fix)
    return ok("clock", _("The database's clock agrees with this host's"))


def notifications(db: psycopg.Connection) -> Findings:
    with connected() as listener:
        yield notifications_found(listener, db)


def notifications_found(listener: psycopg.Connection, speaker: psycopg.Connection) -> Finding:
    """Whether what one session says reaches another: a pooler that shares sessions forgets who listens."""
    channel = f"reach_doctor_{secrets.token_hex(4)}"
    listener.execute(f"LISTEN {channel}")
    speaker.execute("SELECT pg_notify(%s, 'heard')", [channel])
    if any(notice.channel == channel for notice in listener.notifies(timeout=NOTICE_WAIT_S, stop_after=1)):
        return ok("notifications", _("LISTEN and NOTIFY come through"))
    return error(
        "notifications",
        _("NOTIFY does not reach who listens: a pooler stands between that shares sessions"),
        _("Let DATABASE_URL name PostgreSQL itself, or have the pooler keep sessions (PgBouncer: pool_mode=session)."),
    )


def partitions(db: psycopg.Connection) -> Findings:
    (now,) = one(db, "SELECT now()")
    yield partitions_found({table: partition_bounds(table) for table in TABLES}, now)


def partitions_found(bounds: dict[str, list[tuple[str, datetime, datetime]]], now: datetime) -> Finding:
    fix = _("Start worker and beat: they make partitions every ten minutes; `manage.py reach_prepare` does it at once.")
    for table, of_table in bounds.items():
        if not any(low <= now < high for _name, low, high in of_table):
            return error(
                "partitions",
                _("There is no partition of %(table)s for today: rows fall into the default one") % {"table": table},
                fix,
            )
    ahead = min(sum(low > now for _name, low, _high in of_table) for of_table in bounds.values())
    facts = {"n": ahead, "wanted": settings.REACH_PARTITIONS_AHEAD}
    if ahead < settings.REACH_PARTITIONS_AHEAD / 2:
        return warning("partitions", _("Only %(n)s of %(wanted)s partitions are made ahead") % facts, fix)
    return ok("partitions", _("%(n)s partitions are made ahead") % facts)


def default_partitions(db: psycopg.Connection) -> Findings:
    stray = [table for table in TABLES if one(db, f"SELECT EXISTS (SELECT FROM {table}_default)")[0]]
    if stray:
        yield warning(
            "default partitions",
            _("Rows of %(tables)s lie in the default partition, where every search looks") % {"tables": named(stray)},
            _("Worker and beat move them within ten minutes; if they stay, their log says why."),
        )
    else:
        yield ok("default partitions", _("The default partitions are empty"))


def autovacuum(db: psycopg.Connection) -> Findings:
    rows = db.execute(
        "SELECT name FROM pg_settings WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off' ORDER BY name"
    ).fetchall()
    (age,) = one(db, "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()")
    if rows:
        name = rows[0][0]
        yield error(
            "autovacuum",
            _("%(name)s is off: tables grow, and one day PostgreSQL stops taking writes") % {"name": name},
            _("ALTER SYSTEM RESET %(name)s; SELECT pg_reload_conf();") % {"name": name},
        )
    elif age > WRAPAROUND_WARNS:
        yield warning(
            "autovacuum",
            _("Autovacuum does not keep up: the oldest transaction is %(age)s transactions old") % {"age": f"{age:,}"},
            _("Look for sessions that are idle in transaction, then run VACUUM FREEZE."),
        )
    else:
        yield ok("autovacuum", _("Autovacuum is on"))


def disk_space(_db: psycopg.Connection) -> Findings:
    """Of the embedded database; what other servers have is for their own watch."""
    if not settings.DATABASE_URL:
        folder = embedded.folders(settings.REACH_HOME)[0]
        usage = shutil.disk_usage(folder)
        yield disk_found(folder, usage.free, usage.total)


def disk_found(folder: Path, free: int, total: int) -> Finding:
    facts = {"folder": folder, "free": f"{free / GIGABYTE:.1f}", "percent": f"{100 * free / total:.0f}"}
    sentence = _("%(free)s GB (%(percent)s %%) are free where the data lies, %(folder)s") % facts
    fix = _("Make room or move REACH_HOME; a lower REACH_RETENTION_DAYS keeps less.")
    if free < GIGABYTE or free < total * 0.03:
        return error("disk", sentence, fix)
    if free < 5 * GIGABYTE and free < total * 0.1:
        return warning("disk", sentence, fix)
    return ok("disk", sentence)


OF_ANY_DATABASE = (version, migrations, durability, clock, notifications, autovacuum, disk_space)
OF_A_PREPARED_DATABASE = (writable, connections, partitions, default_partitions)
