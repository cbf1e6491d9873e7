"""The embedded PostgreSQL outlives nobody who needs it and survives everybody who is killed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from reach_project import embedded
from tests.acceptance.instance import CHECKOUT, kill_server, server_pid, wait_until

USER = """
import sys
from pathlib import Path
from reach_project import embedded
with embedded.running(Path(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    yield home
    if home.exists():
        embedded.start(home)
        embedded.stop(home)
    embedded.remove(home)


class User:
    """Another process that uses the server of a home until it is told to leave."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-c", USER, str(home)]
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def is_up(self) -> "User":
        assert self._process.stdout is not None and self._process.stdout.readline() == b"up\n"
        return self

    def leave(self) -> int:
        self._process.communicate(timeout=30)
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def session(home: Path) -> psycopg.Connection:
    given = embedded.database_settings(home)
    names = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT"}
    return psycopg.connect(make_conninfo(**{ours: given[theirs] for ours, theirs in names.items()}), autocommit=True)


def test_what_was_stored_is_there_again(home: Path) -> None:
    with embedded.running(home), session(home) as first:
        first.execute("CREATE TABLE kept (x int)")
    assert not embedded.is_running(home)
    with embedded.running(home), session(home) as second:
        assert second.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_it_is_durable_and_listens_on_no_network(home: Path) -> None:
    with embedded.running(home), session(home) as db:
        found = {
            name: db.execute("SELECT current_setting(%s)", [name]).fetchone()[0]
            for name in ("fsync", "full_page_writes", "synchronous_commit", "listen_addresses", "max_connections")
        }
    assert found == {
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "listen_addresses": "",
        "max_connections": "200",
    }


def test_two_starting_at_once_share_one_server_and_the_last_to_leave_stops_it(home: Path) -> None:
    first, second = User(home), User(home)
    first.is_up(), second.is_up()
    pid = server_pid(home)
    assert first.leave() == 0
    assert embedded.is_running(home) and server_pid(home) == pid
    assert second.leave() == 0
    assert not embedded.is_running(home)


def test_a_server_left_behind_by_a_killed_process_is_taken_over_and_stopped(home: Path) -> None:
    User(home).is_up().kill()
    orphan = server_pid(home)
    with embedded.running(home):
        assert server_pid(home) == orphan
    assert not embedded.is_running(home)


def test_it_starts_after_everything_was_killed(home: Path) -> None:
    user = User(home).is_up()
    with session(home) as db:
        db.execute("CREATE TABLE kept AS SELECT 1 AS x")
    kill_server(home)
    user.kill()
    with embedded.running(home), session(home) as db:
        assert db.execute("SELECT x FROM kept").fetchone() == (1,)


def test_it_starts_after_only_the_postmaster_was_killed(home: Path) -> None:
    user = User(home).is_up()
    os.kill(server_pid(home), 9)
    user.kill()
    with embedded.running(home), session(home) as db:
        assert db.execute("SELECT 1").fetchone() == (1,)


def test_a_stale_pid_file_with_the_number_of_a_stranger_does_not_matter(home: Path) -> None:
    with embedded.running(home):
        lines = (embedded.folders(home)[0] / "data" / "postmaster.pid").read_text().splitlines()
    pid_file = embedded.folders(home)[0] / "data" / "postmaster.pid"
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    with embedded.running(home):
        assert server_pid(home) != os.getpid()


def test_a_server_whose_socket_was_swept_away_is_started_again(home: Path) -> None:
    user = User(home).is_up()
    (embedded.folders(home)[1] / f".s.PGSQL.{embedded.PORT}").unlink()
    user.kill()
    with embedded.running(home), session(home) as db:
        assert db.execute("SELECT 1").fetchone() == (1,)


def test_a_killed_server_can_be_started_again_under_its_users(home: Path) -> None:
    with embedded.running(home):
        os.kill(server_pid(home), 9)
        wait_until(lambda: not embedded.is_running(home), "the server is gone")
        embedded.restart(home)
        with session(home) as db:
            assert db.execute("SELECT 1").fetchone() == (1,)
    assert not embedded.is_running(home)


def test_a_home_with_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    home = tmp_path / ("long " * 20) / ("智能体" * 10)
    try:
        with embedded.running(home), session(home) as db:
            assert db.execute("SELECT 1").fetchone() == (1,)
        assert len(f"{embedded.database_settings(home)['HOST']}/.s.PGSQL.5432") <= embedded.MAX_SOCKET_PATH
    finally:
        embedded.remove(home)


def test_a_home_made_anew_starts_empty(home: Path) -> None:
    with embedded.running(home), session(home) as db:
        db.execute("CREATE TABLE kept (x int)")
    shutil.rmtree(home)
    with embedded.running(home), session(home) as db:
        assert db.execute("SELECT to_regclass('kept')").fetchone() == (None,)


def test_nobodys_folders_are_opened_and_the_data_is_closed_to_others(home: Path) -> None:
    home.mkdir()
    home.chmod(0o700)
    before = [parent.stat().st_mode for parent in (home, *home.parents)]
    with embedded.running(home):
        folder, sockets = embedded.folders(home)
        assert {path.stat().st_mode & 0o077 for path in (folder, folder / "data", sockets)} == {0}
    assert [parent.stat().st_mode for parent in (home, *home.parents)] == before


def test_why_it_did_not_start_is_said(home: Path) -> None:
    with embedded.running(home):
        pass
    (embedded.folders(home)[0] / "data" / "postgresql.auto.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(embedded.EmbeddedError, match="no_such_setting"), embedded.running(home):
        pass
    (embedded.folders(home)[0] / "data" / "postgresql.auto.conf").write_text("")
