"""What the doctor makes of the facts that it is given."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.utils import translation

from reach_project.doctor import broker, database, installation, processes
from reach_project.doctor.findings import Finding, Level, as_json, examined, named, worst

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
GB = 1_000_000_000


def a_process(role: str = "all", left_s: float = 4.0, host: str = "a", pid: int = 1) -> processes.Process:
    return processes.Process(role, host, pid, NOW, left_s)


def levels(findings: object) -> list[Level]:
    return [finding.level for finding in findings]  # type: ignore[attr-defined]


def test_a_check_that_breaks_ends_no_other() -> None:
    def breaks() -> list[Finding]:
        raise RuntimeError("no such thing")

    def works() -> list[Finding]:
        return [Finding("it", Level.OK, "is well")]

    broken, well = examined((breaks, works))
    assert (broken.level, well.sentence) == (Level.WARNING, "is well")
    assert "no such thing" in broken.sentence


def test_the_worst_decides() -> None:
    findings = [Finding("a", Level.WARNING, "x"), Finding("b", Level.ERROR, "y", "z"), Finding("c", Level.OK, "")]
    assert worst(findings) is Level.ERROR
    assert worst([]) is Level.OK
    assert as_json(findings)["findings"][1] == {"check": "b", "level": "error", "sentence": "y", "fix": "z"}


def test_many_names_are_not_all_written_out() -> None:
    with translation.override("en"):
        assert named(["a", "b"]) == "a, b"
        assert named(list("abcdefg")) == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize(("major", "level"), [(14, Level.ERROR), (15, Level.OK), (18, Level.OK)])
def test_version(major: int, level: Level) -> None:
    assert levels(database.version_found(major)) == [level]


@pytest.mark.parametrize(
    ("limit", "needed", "open_now", "level"),
    [(100, 101, 5, Level.ERROR), (100, 50, 95, Level.WARNING), (100, 100, 5, Level.OK)],
)
def test_connections(limit: int, needed: int, open_now: int, level: Level) -> None:
    assert database.connections_found(limit, needed, open_now, 3).level is level


@pytest.mark.parametrize(
    ("ahead_s", "level"),
    [(0.1, Level.OK), (-1.9, Level.OK), (2.5, Level.WARNING), (-2.5, Level.WARNING), (-60, Level.ERROR)],
)
def test_clock(ahead_s: float, level: Level) -> None:
    assert database.clock_found(ahead_s).level is level


@pytest.mark.parametrize(
    ("days", "level"),
    [
        pytest.param(range(8), Level.OK, id="a week ahead"),
        pytest.param(range(3), Level.WARNING, id="two days ahead"),
        pytest.param(range(1, 8), Level.ERROR, id="none for today"),
        pytest.param([], Level.ERROR, id="none"),
    ],
)
def test_partitions(days: list[int], level: Level) -> None:
    midnight = NOW.replace(hour=0)
    bounds = [(f"p{n}", midnight + timedelta(days=n), midnight + timedelta(days=n + 1)) for n in days]
    assert database.partitions_found({"calls": bounds, "receipts": bounds}, NOW).level is level


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [
        pytest.param(100 * GB, 1000 * GB, Level.OK, id="plenty"),
        pytest.param(4 * GB, 50 * GB, Level.WARNING, id="little"),
        pytest.param(6 * GB, 80 * GB, Level.OK, id="a small part, but much"),
        pytest.param(GB // 2, 5 * GB, Level.ERROR, id="next to nothing"),
    ],
)
def test_disk(free: int, total: int, level: Level) -> None:
    assert database.disk_found(Path("/data"), free, total).level is level


@pytest.mark.parametrize(
    ("facts", "ping_ms", "expected"),
    [
        ({"redis_version": "7.2.4", "maxmemory_policy": "noeviction"}, 0.2, [Level.OK]),
        ({"redis_version": "7.2.4", "maxmemory_policy": "allkeys-lru"}, 0.2, [Level.OK, Level.ERROR]),
        ({"redis_version": "5.0.1"}, 50.0, [Level.WARNING, Level.WARNING]),
    ],
)
def test_redis(facts: dict[str, str], ping_ms: float, expected: list[Level]) -> None:
    assert levels(broker.redis_found(facts, ping_ms)) == expected


@pytest.mark.parametrize(
    ("running", "servers", "worker", "gone"),
    [
        pytest.param(processes.Running([a_process()], 0.5), [Level.OK], [Level.OK], [], id="all is well"),
        pytest.param(processes.Running([], None), [Level.WARNING], [], [], id="nothing runs"),
        pytest.param(processes.Running([], 90.0), [Level.WARNING], [], [], id="stopped properly"),
        pytest.param(processes.Running([a_process("engine")], 0.5), [Level.ERROR], [Level.OK], [], id="no server"),
        pytest.param(processes.Running([a_process()], None), [Level.OK], [Level.ERROR], [], id="never swept"),
        pytest.param(processes.Running([a_process()], 60.0), [Level.OK], [Level.ERROR], [], id="dead worker"),
        pytest.param(processes.Running([a_process()], -5.0), [Level.OK], [Level.WARNING], [], id="worker's clock"),
        pytest.param(
            processes.Running([a_process(), a_process(left_s=-60)], 0.5),
            [Level.OK],
            [Level.OK],
            [Level.WARNING],
            id="one was killed",
        ),
    ],
)
def test_processes(running: processes.Running, servers: list[Level], worker: list[Level], gone: list[Level]) -> None:
    assert levels(processes.servers(running)) == servers
    assert levels(processes.worker(running)) == worker
    assert levels(processes.gone(running)) == gone


@pytest.mark.parametrize(
    ("orphaned", "overdue", "level"), [(0, 0, Level.OK), (2, 0, Level.WARNING), (2, 1, Level.ERROR)]
)
def test_open_calls(orphaned: int, overdue: int, level: Level) -> None:
    assert processes.open_calls_found(orphaned, overdue, 5).level is level


@pytest.mark.parametrize(
    ("status", "body", "level"),
    [
        pytest.param(200, b'{"status":"ready","parts":{"database":"ok"}}', Level.OK, id="ready"),
        pytest.param(200, b'{"status":"degraded","parts":{"broker":"gone"}}', Level.WARNING, id="degraded"),
        pytest.param(503, b'{"status":"not_ready","parts":{"database":"gone"}}', Level.ERROR, id="not ready"),
        pytest.param(404, b"<html>", Level.ERROR, id="somebody else"),
        pytest.param(200, b"[]", Level.ERROR, id="somebody else's JSON"),
    ],
)
def test_readiness(status: int, body: bytes, level: Level) -> None:
    assert processes.readiness_found("http://reach/readyz", status, body).level is level


@pytest.mark.parametrize(
    ("given", "role", "machines", "level"),
    [
        ("", "all", 1, Level.OK),
        ("", "dispatcher", 1, Level.WARNING),
        ("", "all", 2, Level.WARNING),
        ("short", "all", 1, Level.WARNING),
        ("x" * 50, "dispatcher", 3, Level.OK),
    ],
)
def test_secret_key(given: str, role: str, machines: int, level: Level) -> None:
    assert installation.secret_key_found(given, role, machines).level is level


@pytest.mark.parametrize(
    ("given", "host", "level"),
    [
        ([], "127.0.0.1", Level.OK),
        (["reach.internal"], "0.0.0.0", Level.OK),
        ([], "0.0.0.0", Level.WARNING),
        (["*"], "0.0.0.0", Level.WARNING),
    ],
)
def test_allowed_hosts(given: list[str], host: str, level: Level) -> None:
    assert installation.allowed_hosts_found(given, host).level is level


@pytest.mark.parametrize(
    ("entries", "level"),
    [
        ([], Level.OK),
        (["10.0.0.0/8", "agents.internal", "fd00::/8", "10.1.2.3"], Level.OK),
        (["0.0.0.0/0"], Level.WARNING),
        (["10.0.0.0/33"], Level.ERROR),
        (["10.0.0"], Level.ERROR),
        (["http://agents"], Level.ERROR),
    ],
)
def test_allowed_addresses(entries: list[str], level: Level) -> None:
    assert installation.allowed_addresses_found(entries).level is level
