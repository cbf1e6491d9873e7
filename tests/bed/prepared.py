"""What a first start makes, made once a run and copied for every test that is not about a first start: a home with its
embedded server's data, and a database. initdb, migrations and credentials cost seconds; a copy takes a fraction of one.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.conf import settings

from reach_project import embedded
from tests.bed.process import CHECKOUT, clean_environment
from tests.environment import HOME

SECRETS = ("credentials.json", "secret_key")


def copy_home(home: Path) -> None:
    """Make `home` one that has been started before, and stopped."""
    source = _made("prepared", _prepare)
    home.parent.mkdir(parents=True, exist_ok=True)
    _copy(source, home)
    theirs, ours = embedded.folders(source)[0], embedded.folders(home)[0]
    if not ours.exists():  # run by root, a server keeps its data elsewhere
        _copy(theirs, ours)


def copy_secrets(home: Path) -> None:
    """Make `home` one of the database that `database` names: its key and its administrator's credentials."""
    home.mkdir(parents=True, exist_ok=True)
    for name in SECRETS:
        shutil.copy2(_folder("prepared-database") / name, home)


def database(create: Callable[[str], str]) -> str:
    """The name of a prepared database on the server of this run, to be copied.

    `create` makes an empty one of that name and tells its URL.
    """

    def prepare(home: Path) -> None:
        _prepare(home, DATABASE_URL=create(name))

    name = _database_name()
    _made("prepared-database", prepare)
    return name


def remove(run: Path) -> None:
    """Delete what lies outside the folder of this run, at its end."""
    embedded.remove(run / "prepared")
    if settings.DATABASE_URL and _folder("prepared-database").exists():
        with psycopg.connect(settings.DATABASE_URL, dbname="postgres", autocommit=True) as session:
            session.execute(f"DROP DATABASE IF EXISTS {_database_name()}")


def _database_name() -> str:
    return f"reach_prepared_{Path(os.environ[HOME]).name.replace('-', '_')}"


def _folder(name: str) -> Path:
    return Path(os.environ[HOME]) / name


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The home of that name, made by whichever of the run's processes comes first while the others wait."""
    home = _folder(name)
    with _alone(home):
        if not (home / "credentials.json").exists():  # the last thing that is made
            make(home)
    return home


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    with home.with_name(f"{home.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prepare(home: Path, **environment: str) -> None:
    given = clean_environment() | {"REACH_HOME": str(home), **environment}
    command = [sys.executable, "manage.py", "reach_prepare"]
    done = subprocess.run(command, cwd=CHECKOUT, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _copy(folder: Path, to: Path) -> None:
    """With owners and modes: the server looks at them."""
    subprocess.run(["cp", "-a", folder, to], check=True)
