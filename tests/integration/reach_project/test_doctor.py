"""The doctor beside a real PostgreSQL, with the faults made for real."""

import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from django.utils import timezone, translation
from psycopg.conninfo import make_conninfo

from reach_project.doctor import database, examine, installation, processes, registry_state
from reach_project.doctor.findings import Finding, Level
from receipts.models import ProcessLease
from receipts.partitions import partition_bounds
from registry.database import conninfo
from registry.models import LeaseSweep, Node
from routing.route_file import sync_route_file
from tests.integration.dashboard.sample import a_node, nodes_of_every_kind
from tests.integration.receipts.conftest import stored_call  # noqa: F401  a fixture

pytestmark = pytest.mark.django_db
RULE = "routes:\n  - {id: a, match: {capability: file_summary}, strategy: {type: least_loaded}}\n"


@pytest.fixture
def session(db: None) -> psycopg.Connection:
    """Django's own session: the check sees the fault that the test made, and nobody else does."""
    connection.ensure_connection()
    return connection.connection


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    with translation.override("en"):
        yield


def only(findings: Any) -> Finding:
    [finding] = findings
    return finding


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def test_a_sound_database(session: psycopg.Connection) -> None:
    checks = {*database.OF_ANY_DATABASE, *database.OF_A_PREPARED_DATABASE} - {database.notifications}
    found = [finding for check in checks for finding in check(session)]
    assert {finding.level for finding in found} == {Level.OK}, found


def test_a_migration_that_is_not_applied(session: psycopg.Connection) -> None:
    execute("DELETE FROM django_migrations WHERE app = 'receipts' AND name = '0001_initial'")
    finding = only(database.migrations(session))
    assert finding.level is Level.ERROR and "receipts.0001_initial" in finding.sentence
    assert "reach_prepare" in finding.fix


def test_a_database_of_a_newer_version(session: psycopg.Connection) -> None:
    execute("INSERT INTO django_migrations (app, name, applied) VALUES ('registry', '9999_to_come', now())")
    finding = only(database.migrations(session))
    assert finding.level is Level.WARNING and "registry.9999_to_come" in finding.sentence


def test_a_database_that_was_never_prepared(session: psycopg.Connection) -> None:
    execute("DROP TABLE django_migrations")
    assert only(database.migrations(session)).level is Level.ERROR


def test_a_database_that_takes_no_writes(session: psycopg.Connection) -> None:
    execute("SET LOCAL transaction_read_only = on")
    finding = only(database.writable(session))
    assert finding.level is Level.ERROR and "primary" in finding.fix


def test_a_user_who_may_not_write(session: psycopg.Connection) -> None:
    execute("CREATE ROLE stranger")
    execute("GRANT stranger TO CURRENT_USER")
    execute("SET LOCAL ROLE stranger")
    finding = only(database.writable(session))
    assert finding.level is Level.ERROR and "permission denied" in finding.sentence


def test_calls_that_a_crash_could_lose(session: psycopg.Connection) -> None:
    execute("SET LOCAL synchronous_commit = off")
    finding = only(database.durability(session))
    assert finding.level is Level.ERROR and "synchronous_commit is off" in finding.sentence


def test_more_processes_than_the_server_has_room_for(session: psycopg.Connection) -> None:
    now = timezone.now()
    for pid in range(15):
        ProcessLease.objects.create(
            owner=uuid4(), role="dispatcher", host="h", pid=pid, started_at=now, held_since=now,
            lease_expires_at=now + timedelta(seconds=60),
        )  # fmt: skip
    finding = only(database.connections(session))
    assert finding.level is Level.ERROR and "15 processes" in finding.sentence


def test_a_notification_that_does_not_arrive(session: psycopg.Connection) -> None:
    """As behind a pooler that hands the listener's session to others; here the listener sits in another database."""
    where = conninfo("tests")
    with (
        psycopg.connect(make_conninfo(where, dbname="postgres"), autocommit=True) as elsewhere,
        psycopg.connect(where, autocommit=True) as here,
    ):
        finding = database.notifications_found(elsewhere, here)
        assert finding.level is Level.ERROR and "pooler" in finding.sentence
        assert database.notifications_found(here, here).level is Level.OK


def test_a_missing_partition(session: psycopg.Connection) -> None:
    now = timezone.now()
    for name, low, high in partition_bounds("calls"):
        if low <= now < high:
            execute(f"DROP TABLE {name}")
    assert only(database.partitions(session)).level is Level.ERROR


def test_a_row_in_the_default_partition(session: psycopg.Connection, stored_call: Callable[..., Any]) -> None:  # noqa: F811
    stored_call(at=timezone.now() - timedelta(days=3000))
    finding = only(database.default_partitions(session))
    assert finding.level is Level.WARNING and "calls, receipts" in finding.sentence


def test_a_dead_worker_and_a_killed_process(session: psycopg.Connection) -> None:
    now = timezone.now()
    for host, seconds in (("alive", 60), ("killed", -60)):
        ProcessLease.objects.create(
            owner=uuid4(), role="all", host=host, pid=7, started_at=now, held_since=now,
            lease_expires_at=now + timedelta(seconds=seconds),
        )  # fmt: skip
    LeaseSweep.objects.update_or_create(pk=1, defaults={"swept_at": now - timedelta(minutes=5)})
    running = processes.running(session)
    assert "all alive:7" in only(processes.servers(running)).sentence
    assert only(processes.worker(running)).level is Level.ERROR
    assert "all killed:7" in only(processes.gone(running)).sentence


def test_calls_left_behind(session: psycopg.Connection, stored_call: Callable[..., Any]) -> None:  # noqa: F811
    assert only(processes.open_calls(session)).level is Level.OK
    stored_call(at=timezone.now() - timedelta(seconds=50), status="running")
    assert only(processes.open_calls(session)).level is Level.WARNING
    stored_call(at=timezone.now() - timedelta(minutes=5), status="running")
    finding = only(processes.open_calls(session))
    assert finding.level is Level.ERROR and "1 call is" in finding.sentence


def test_nodes_out_of_the_pool_are_named_with_their_reason(db: None) -> None:
    assert [finding.level for check in registry_state.OF_A_PREPARED_DATABASE for finding in check()] == [Level.OK]
    nodes_of_every_kind()
    sentence = only(registry_state.nodes()).sentence
    assert "5 of 6 nodes" in sentence and "doc-summarizer/b (Not ready: says it is not ready: gpu)" in sentence
    assert only(registry_state.services()).sentence.endswith(": llm")
    assert list(registry_state.capabilities()) == []
    assert "data_query" in only(registry_state.required()).sentence
    Node.objects.update(admin_state="disabled")
    assert "file_summary" in only(registry_state.capabilities()).sentence


def test_nodes_at_addresses_that_are_not_allowed_any_more(db: None, settings: Any) -> None:
    a_node("far", "away", address="http://203.0.113.7:80")
    settings.REACH_ALLOWED_ADDRESSES = "10.0.0.0/8"
    assert "far/away (http://203.0.113.7:80)" in only(installation.registered_addresses()).sentence


def test_the_route_file_in_step_and_out_of_it(db: None, settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    settings.ROUTE_FILE = str(path)
    assert "cannot be read" in only(installation.route_file()).sentence
    path.write_text("routes: 7")
    assert only(installation.route_file()).level is Level.ERROR
    path.write_text(RULE)
    assert "Nobody has read it" in only(installation.route_file()).fix
    sync_route_file(path)
    assert only(installation.route_file()).level is Level.OK
    path.write_text(RULE.replace("id: a", "id: b"))
    sync_route_file(path)
    assert "approval" in only(installation.route_file()).fix


def test_secrets_that_others_can_read(settings: Any, tmp_path: Path) -> None:
    settings.REACH_HOME = tmp_path
    secret = tmp_path / "credentials.json"
    secret.write_text("{}")
    secret.chmod(0o640)
    finding = only(installation.secret_files())
    assert finding.level is Level.ERROR and finding.fix == f"chmod 600 {secret}"
    secret.chmod(0o600)
    assert only(installation.secret_files()).level is Level.OK


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens, kept for as long as the test takes."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def test_redis_and_the_collector_are_away(settings: Any, closed_port: int) -> None:
    from reach_project.doctor.broker import broker

    settings.REDIS_URL = f"redis://:secret@127.0.0.1:{closed_port}/0"
    finding = only(broker())
    assert finding.level is Level.ERROR and f"127.0.0.1:{closed_port}" in finding.sentence
    assert "secret" not in finding.sentence
    settings.OTEL_EXPORTER_OTLP_ENDPOINT = f"http://127.0.0.1:{closed_port}"
    assert only(processes.telemetry()).level is Level.WARNING
    with socket.create_server(("127.0.0.1", 0)) as collector:
        settings.OTEL_EXPORTER_OTLP_ENDPOINT = f"http://127.0.0.1:{collector.getsockname()[1]}"
        assert only(processes.telemetry()).level is Level.OK


@pytest.mark.django_db(transaction=True)
def test_everything_at_once_in_both_languages() -> None:
    in_english = examine()
    assert {"database", "migrations", "servers", "nodes", "SECRET_KEY"} <= {finding.check for finding in in_english}
    assert not [finding for finding in in_english if finding.sentence.startswith("This could not be looked at")]
    with translation.override("zh-hans"):
        chinese = examine()
    assert [finding.check for finding in chinese] == [finding.check for finding in in_english]
    assert not {f.sentence for f in chinese} & {f.sentence for f in in_english}
