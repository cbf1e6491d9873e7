"""What the instance's PostgreSQL says of itself, and of the calls that it holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from reach_project import embedded

SHOWN = ("server_version", "fsync", "full_page_writes", "synchronous_commit", "wal_sync_method")


@dataclass(frozen=True, slots=True)
class Database:
    """The embedded PostgreSQL of one home: its settings as it reports them, where it writes, its first process."""

    home: Path
    settings: dict[str, str]
    data: Path
    postmaster_pid: int


@contextmanager
def session(home: Path) -> Iterator[psycopg.Connection]:
    place = embedded.database_settings(home)
    with psycopg.connect(
        dbname=str(place["NAME"]), user=str(place["USER"]), host=str(place["HOST"]), port=str(place["PORT"])
    ) as connection:
        yield connection


def describe(home: Path) -> Database:
    with session(home) as connection:
        shown = {}
        for name in (*SHOWN, "data_directory"):
            row = connection.execute(f"SHOW {name}").fetchone()
            shown[name] = str(row[0]) if row else ""
    data = Path(shown.pop("data_directory"))
    return Database(home, shown, data, int((data / "postmaster.pid").read_text().split()[0]))


def calls_by_status(home: Path) -> dict[str, int]:
    with session(home) as connection:
        return dict(connection.execute("SELECT status, count(*) FROM calls GROUP BY status").fetchall())
