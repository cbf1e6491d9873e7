"""One process of several: what it needs, what it waits for, what it serves."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
from redis import Redis as RedisClient

from reach_project.celery import WAITING_AT_MOST
from tests.acceptance.instance import Instance, wait_until
from tests.bed.clock import shifted
from tests.bed.redis import Redis

NewInstance = Callable[..., Instance]
WORKER = ["worker", "--pool", "threads", "-c", "4", "-Q", "reach,probes", "--without-gossip", "--without-mingle"]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path / "redis.log")
    yield server.start()
    server.remove()


@pytest.fixture
def redis_url(redis: Redis) -> str:
    return redis.url


def celery(instance: Instance, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Celery command that is expected to end."""
    command = [sys.executable, "-m", "celery", "-A", "reach_project", *arguments]
    return subprocess.run(command, **instance.surroundings, capture_output=True, text=True, timeout=60)


def test_an_unknown_role_is_refused_in_one_sentence(new_instance: NewInstance) -> None:
    refused = new_instance(REACH_ROLE="worker").manage("reach_serve", check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("REACH_ROLE='worker' must be all") and "Traceback" not in refused.stderr


@pytest.mark.parametrize("role", ["dispatcher", "console"])
def test_one_of_several_needs_what_all_share(new_instance: NewInstance, role: str) -> None:
    refused = new_instance(REACH_ROLE=role).manage("reach_serve", check=False)
    assert refused.returncode == 1
    assert f"REACH_ROLE={role} needs DATABASE_URL and REDIS_URL" in refused.stderr


@pytest.mark.parametrize("command", [WORKER, ["beat"]], ids=["worker", "beat"])
def test_worker_and_beat_need_it_too(new_instance: NewInstance, command: list[str]) -> None:
    refused = celery(new_instance(), *command)
    assert refused.returncode == 1
    assert "needs DATABASE_URL and REDIS_URL" in refused.stderr and "Traceback" not in refused.stderr


def test_nobody_but_prepare_touches_an_empty_database(
    new_instance: NewInstance, empty_database_url: str, redis_url: str
) -> None:
    shared = {"DATABASE_URL": empty_database_url, "REDIS_URL": redis_url}
    impatient = new_instance("impatient", **shared, REACH_ROLE="dispatcher", REACH_START_PATIENCE_S="0.5")
    for refused in (impatient.manage("reach_serve", check=False), celery(impatient, *WORKER)):
        assert refused.returncode == 1
        assert "run `manage.py reach_prepare`" in refused.stderr and "Traceback" not in refused.stderr

    dispatcher = new_instance(first_start=True, **shared, REACH_ROLE="dispatcher").spawn()
    wait_until(lambda: "Waiting for `manage.py reach_prepare`" in dispatcher.output, "it says what it waits for")
    prepared = dispatcher.manage("reach_prepare")
    assert dispatcher.key in prepared.stdout
    wait_until(dispatcher.is_ready, "ready")
    assert dispatcher.request("GET", "/readyz").json["parts"].keys() == {"broker", "database", "migrations", "snapshot"}
    assert dispatcher.request("GET", "/api/v1/services", key=dispatcher.key).status == 200

    again = new_instance("elsewhere", **shared).manage("reach_prepare")
    assert again.stdout == "The database is prepared.\n"  # no second administrator


@pytest.mark.parametrize("command", [WORKER, ["beat"]], ids=["worker", "beat"])
def test_worker_and_beat_log_as_all_do(
    new_instance: NewInstance, database_url: str, redis: Redis, command: list[str]
) -> None:
    shared = {"DATABASE_URL": database_url, "REDIS_URL": redis.url, "REACH_LOG_FORMAT": "json"}
    instance = new_instance(**shared)
    arguments = [sys.executable, "-m", "celery", "-A", "reach_project", *command]
    with instance.log.open("ab") as log:
        process = subprocess.Popen(arguments, **instance.surroundings, stdout=subprocess.DEVNULL, stderr=log)
        try:
            wait_until(lambda: process.poll() is not None or connected_to(process, redis.port), "it is at work")
            redis.kill()
            wait_until(lambda: process.poll() is not None or instance.output, "it says that the broker is away")
        finally:
            process.terminate()
            process.wait(20)
    lines = instance.output.splitlines()
    assert lines
    assert all(json.loads(line).keys() >= {"timestamp", "level", "logger", "event"} for line in lines)


def connected_to(process: subprocess.Popen[bytes], port: int) -> bool:
    connections = psutil.Process(process.pid).net_connections("tcp")
    return any(
        each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED for each in connections
    )


@contextmanager
def celery_at_work(instance: Instance, *arguments: str, clock_ahead_s: int = 0) -> Iterator[None]:
    """A Celery command that runs on, on a host whose clock may be wrong."""
    surroundings = instance.surroundings
    wrong = shifted(clock_ahead_s) if clock_ahead_s else {}
    command = [sys.executable, "-m", "celery", "-A", "reach_project", *arguments]
    with instance.log.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=surroundings["cwd"], env=surroundings["env"] | wrong, stdout=subprocess.DEVNULL, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)


@pytest.mark.parametrize(("beat_ahead_s", "worker_ahead_s"), [(-300, 0), (0, 300), (0, -300)])
def test_the_sweeps_do_not_care_whose_clock_is_wrong(
    new_instance: NewInstance, database_url: str, redis_url: str, beat_ahead_s: int, worker_ahead_s: int
) -> None:
    instance = new_instance(DATABASE_URL=database_url, REDIS_URL=redis_url)
    with (
        celery_at_work(instance, *WORKER, clock_ahead_s=worker_ahead_s),
        celery_at_work(instance, "beat", clock_ahead_s=beat_ahead_s),
        psycopg.connect(database_url, autocommit=True) as session,
    ):
        off_by = "SELECT extract(epoch FROM clock_timestamp() - swept_at) FROM registry_leasesweep"
        [first] = wait_until(lambda: session.execute(off_by).fetchone(), "the first sweep")
        wait_until(lambda: session.execute("SELECT owner FROM process_leases").fetchone(), "the worker's engine runs")
    assert abs(first) < 3


def test_messages_do_not_pile_up_while_nobody_takes_them(
    new_instance: NewInstance, database_url: str, redis_url: str
) -> None:
    instance = new_instance(DATABASE_URL=database_url, REDIS_URL=redis_url, REACH_KNOCK_INTERVAL_S="0.02")
    with RedisClient.from_url(redis_url) as broker, celery_at_work(instance, "beat"):
        wait_until(lambda: broker.llen("probes") >= WAITING_AT_MOST, "the queue is as long as it gets")
        wait_until(lambda: broker.llen("reach") >= 6, "beat has gone on")
        assert broker.llen("probes") == WAITING_AT_MOST
