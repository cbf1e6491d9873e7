"""Every table that grows is bounded: what is past its time goes, in batches, and nothing else."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest
from axes.models import AccessAttempt
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.utils import timezone

from receipts import retention
from receipts.models import Call, IdempotencyKey, Maintenance, ProcessLease
from receipts.partitions import drop_partitions, ensure_partitions, make_partition, partition_bounds
from receipts.tasks import forget_what_is_old
from registry import services
from registry.auth import Key
from registry.core.node import AdminState
from registry.errors import NotFound
from registry.models import ApiKey, AuditEvent, Declaration, Node, NodeLease, RefusalCount, StatusChange
from registry.serializers import NodeBody
from tests.factories import a_capability

pytestmark = pytest.mark.django_db
LONG_AGO = datetime(2001, 5, 6, 7, 8, 9, tzinfo=UTC)
DAY = timedelta(days=1)
KEY = Key("k", "summarizer", None, None, frozenset({"register"}))


@pytest.fixture
def now() -> datetime:
    return timezone.now()


def a_node(node_id: str, *, deleted_at: datetime | None = None, **facts: Any) -> Node:
    body = msgspec.convert({"address": "http://127.0.0.1:1", "capabilities": [a_capability()]}, NodeBody)
    node = services.register_node("summarizer", node_id, body, by=KEY).node
    Node.objects.filter(pk=node.pk).update(deleted_at=deleted_at, **facts)
    return node


def expire(node: Node, since: datetime) -> None:
    NodeLease.objects.filter(node=node).update(expired=True, expired_since=since)


def names(rows: Any, field: str) -> set[Any]:
    return set(rows.values_list(field, flat=True))


# --- Each rule -------------------------------------------------------------------------------------------------------


def test_calls_go_with_their_partition(stored_call: Callable[..., Any], settings: Any):
    settings.REACH_RETENTION_DAYS = 30
    ensure_partitions(LONG_AGO, hours=24, ahead=1)
    old, newer = stored_call(at=LONG_AGO), stored_call(at=LONG_AGO + DAY)
    done = retention.forget(datetime(2001, 5, 7, tzinfo=UTC) + 30 * DAY)
    assert set(Call.objects.filter(pk__in=[old.pk, newer.pk])) == {newer}
    assert done.deleted["calls"] == 2  # a partition of each table


def test_rows_that_fell_into_the_default_partition_are_moved_and_then_dropped(
    stored_call: Callable[..., Any], settings: Any
):
    settings.REACH_RETENTION_DAYS = 30
    old, newer = stored_call(at=LONG_AGO), stored_call(at=LONG_AGO + 2 * DAY)
    retention.forget(LONG_AGO + 31 * DAY)
    assert set(Call.objects.filter(pk__in=[old.pk, newer.pk])) == {newer}
    assert {"calls_p2001050800", "receipts_p2001050800"} <= {
        name for table in ("calls", "receipts") for name, _low, _high in partition_bounds(table)
    }


def test_a_stray_row_finds_the_gap_between_partitions_of_another_span(stored_call: Callable[..., Any]):
    from receipts.partitions import rescue_default_rows

    midnight = LONG_AGO.replace(hour=0, minute=0, second=0)
    for table, key in (("calls", "id"), ("receipts", "call_id")):
        make_partition(table, key, midnight, midnight + timedelta(hours=6))
        make_partition(table, key, midnight + timedelta(hours=9), midnight + timedelta(hours=12))
    call = stored_call(at=LONG_AGO)  # at 07:08
    assert rescue_default_rows(hours=24) == ["calls_p2001050606", "receipts_p2001050606"]
    assert Call.objects.filter(pk=call.pk).exists()


def test_idempotency_keys_go_when_their_time_is_over(now: datetime):
    for key, offset in (("over", -1), ("valid", 1)):
        IdempotencyKey.objects.create(
            caller="c", key=key, call_id=uuid4(), request_digest="r", expires_at=now + timedelta(seconds=offset)
        )
    assert retention.forget(now).deleted == {"idempotency_keys": 1}
    assert names(IdempotencyKey.objects, "key") == {"valid"}


def test_leases_of_dead_processes_go(now: datetime):
    for host, hours in (("dead", 2), ("silent", 0.5)):
        at = now - timedelta(hours=hours)
        facts = {"role": "asgi", "pid": 1, "started_at": at, "held_since": at}
        ProcessLease.objects.create(owner=uuid4(), host=host, lease_expires_at=at, **facts)
    retention.forget(now)
    assert names(ProcessLease.objects, "host") == {"silent"}


def test_counts_of_refusals_go_with_the_calls(now: datetime, settings: Any):
    settings.REACH_RETENTION_DAYS = 3
    for code, days in (("old", 4), ("recent", 2)):
        RefusalCount.objects.create(key_id="k", code=code, minute=now - days * DAY, count=1)
    retention.forget(now)
    assert names(RefusalCount.objects, "code") == {"recent"}


def test_a_node_silent_for_long_leaves_the_lists_and_keeps_its_operators_choice(now: datetime, settings: Any):
    settings.REACH_EXPIRED_NODE_DAYS = 7
    away, chosen, briefly = a_node("away"), a_node("chosen", operator_weight=5), a_node("briefly")
    expire(away, now - 8 * DAY)
    expire(chosen, now - 8 * DAY)
    expire(briefly, now - 6 * DAY)
    assert retention.forget(now).deleted == {"silent_nodes": 2}
    assert names(Node.objects.present(), "node_id") == {"briefly"}
    assert Node.objects.get(pk=chosen.pk).operator_weight == 5
    assert names(AuditEvent.objects.filter(actor="retention", action="remove"), "target") == {
        "summarizer/away",
        "summarizer/chosen",
    }
    with pytest.raises(NotFound, match="register"):  # when it is back it is told to
        services.heartbeat("summarizer", "away", in_flight=None, declaration_hash=None)
    assert a_node("chosen").operator_weight == 5


def test_rows_of_removed_nodes_go_unless_an_operator_chose_something(now: datetime, settings: Any):
    settings.REACH_RETENTION_DAYS = 30
    old, recent = now - 31 * DAY, now - 29 * DAY
    gone = a_node("pod-1", deleted_at=old)
    a_node("pod-2", deleted_at=recent)
    a_node("weighted", deleted_at=old, operator_weight=0)
    a_node("disabled", deleted_at=old, admin_state=AdminState.DISABLED)
    a_node("here")
    assert retention.forget(now).deleted == {"removed_nodes": 1}
    assert names(Node.objects, "node_id") == {"pod-2", "weighted", "disabled", "here"}
    assert not Declaration.objects.filter(node_id=gone.pk).exists()


def test_ended_keys_go_and_valid_ones_stay(now: datetime, settings: Any):
    settings.REACH_ENDED_KEY_DAYS = 90
    made = {
        name: services.create_service_key("summarizer", ["dispatch"], by="test").key_id
        for name in ("revoked", "ran out", "revoked lately", "valid")
    }
    ApiKey.objects.filter(pk=made["revoked"]).update(revoked_at=now - 91 * DAY)
    ApiKey.objects.filter(pk=made["ran out"]).update(expires_at=now - 91 * DAY)
    ApiKey.objects.filter(pk=made["revoked lately"]).update(revoked_at=now - 89 * DAY)
    assert retention.forget(now).deleted == {"ended_keys": 2}
    assert names(ApiKey.objects, "pk") == {made["revoked lately"], made["valid"]}


def test_old_audit_rows_go_but_the_route_file_s_last_content_is_remembered(now: datetime, settings: Any):
    settings.REACH_AUDIT_DAYS = 400
    for detail in ("first", "last"):
        AuditEvent.objects.create(at=now - 401 * DAY, actor="a", action="route_file.read", target="/r", detail=detail)
    AuditEvent.objects.create(at=now - 401 * DAY, actor="a", action="change", target="old")
    AuditEvent.objects.create(at=now - 399 * DAY, actor="a", action="change", target="recent")
    assert retention.forget(now).deleted == {"audit": 2}
    assert names(AuditEvent.objects, "target") == {"/r", "recent"}
    assert AuditEvent.objects.get(target="/r").detail == "last"


def test_django_s_own_tables_are_bounded_too(now: datetime, settings: Any):
    settings.REACH_AUDIT_DAYS, settings.REACH_LOGIN_LOCKOUT_S = 400, 300
    user = User.objects.create(username="olga")
    for kept, offset in (("old", timedelta(days=401)), ("new", timedelta(seconds=10))):
        entry = LogEntry.objects.create(
            user=user,
            content_type=ContentType.objects.get_for_model(User),
            object_repr=kept,
            action_flag=CHANGE,
            change_message="",
        )
        LogEntry.objects.filter(pk=entry.pk).update(action_time=now - offset)
        attempt = AccessAttempt.objects.create(username=kept, failures_since_start=1, path_info="/", user_agent=kept)
        AccessAttempt.objects.filter(pk=attempt.pk).update(attempt_time=now - offset)
    Session.objects.create(session_key="over", session_data="", expire_date=now - timedelta(seconds=1))
    Session.objects.create(session_key="valid", session_data="", expire_date=now + timedelta(seconds=1))
    assert retention.forget(now).deleted == {"admin_log": 1, "sessions": 1, "failed_logins": 1}
    assert names(Session.objects, "session_key") == {"valid"}
    assert names(AccessAttempt.objects, "username") == names(LogEntry.objects, "object_repr") == {"new"}


# --- In batches ------------------------------------------------------------------------------------------------------


def refusals(number: int, at: datetime) -> None:
    RefusalCount.objects.bulk_create(RefusalCount(key_id=f"k{n}", code="c", minute=at) for n in range(number))


def test_a_backlog_is_worked_off_in_batches(now: datetime):
    refusals(25, LONG_AGO)
    done = retention.forget(now, batch=10)
    assert (done.deleted, done.finished) == ({"refusals": 25}, True)


def test_a_run_out_of_time_carries_the_rest_over_and_says_so(now: datetime):
    refusals(25, LONG_AGO)
    IdempotencyKey.objects.create(caller="c", key="k", call_id=uuid4(), request_digest="r", expires_at=LONG_AGO)
    done = retention.forget(now, batch=10, run_s=0)
    assert (done.deleted, done.finished) == ({"refusals": 10, "idempotency_keys": 1}, False)
    assert RefusalCount.objects.count() == 15


def test_rows_that_somebody_holds_are_left_to_the_next_run(database: str, now: datetime):
    refusals(2, LONG_AGO)
    with psycopg.connect(database) as other:
        other.execute("SELECT * FROM registry_refusalcount WHERE key_id = 'k0' FOR UPDATE")
        assert retention.forget(now).deleted == {"refusals": 1}
    assert retention.forget(now).deleted == {"refusals": 1}


def test_a_partition_in_use_is_dropped_next_time(database: str, monkeypatch: pytest.MonkeyPatch):
    from receipts import partitions

    monkeypatch.setattr(partitions, "LOCK_PATIENCE", "50ms")
    ensure_partitions(LONG_AGO, hours=24, ahead=0)
    with psycopg.connect(database) as backup:
        backup.execute("SELECT * FROM calls_p2001050600")
        assert drop_partitions(LONG_AGO + DAY) == ["receipts_p2001050600"]
    assert drop_partitions(LONG_AGO + DAY) == ["calls_p2001050600"]


# --- Shown -----------------------------------------------------------------------------------------------------------


def test_the_task_says_when_it_ran():
    assert retention.last_run() is None
    forget_what_is_old()
    forget_what_is_old()
    [row] = Maintenance.objects.all()
    assert row == retention.last_run() and row.finished
    assert timezone.now() - row.ran_at < timedelta(minutes=1)


def test_what_is_stored_is_shown_with_its_age_and_its_end(now: datetime, settings: Any):
    settings.REACH_RETENTION_DAYS = 30
    refusals(3, now - 2 * DAY)
    shown = {kind.kind.name: kind for kind in retention.stored(now)}
    assert shown["refusals"].oldest == now - 2 * DAY
    assert shown["refusals"].next_deletion == now + 28 * DAY
    assert shown["refusals"].size_bytes > 0 and shown["refusals"].rows == 3
    assert shown["silent_nodes"].oldest is shown["silent_nodes"].next_deletion is None
    assert shown["routes"].kind.kept is None
    assert shown["calls"].next_deletion > now + 29 * DAY


def test_estimates_add_up_the_partitions(stored_call: Callable[..., Any], database: str):
    for _ in range(5):
        stored_call()
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("ANALYZE calls")
    assert retention.estimate(["calls"])[0] == 5
    assert retention.estimate([]) == (None, 0)


def test_a_question_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch):
    from django.db import connection

    monkeypatch.setattr(retention, "LOOK_PATIENCE", "20ms")

    def slow() -> datetime:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5), now()")
            return cursor.fetchone()[1]

    assert retention.glance(slow) is None
    assert not Call.objects.filter(caller="nobody").exists()  # the connection is still good


def test_every_table_has_a_rule_or_a_reason():
    """A new table must say how it is bounded."""
    from django.apps import apps

    bounded = {table for kind in retention.kinds() for table in kind.tables}
    named_by_people = {
        "registry_service", "registry_capability", "auth_user", "auth_group", "auth_permission", "auth_user_groups",
        "auth_user_user_permissions", "auth_group_permissions", "django_content_type",
    }  # fmt: skip
    few_rows = {"registry_snapshotchange"}
    one_row = {"registry_snapshotversion", "registry_leasesweep", "registry_installationkey", "receipts_maintenance"}
    unused = {"axes_accesslog", "axes_accessfailurelog", "axes_accessattemptexpiration"}
    ours = {model._meta.db_table for model in apps.get_models(include_auto_created=True) if model._meta.managed}
    assert ours - bounded - named_by_people - few_rows - one_row - unused == set()


def test_the_history_of_nodes_goes_but_each_one_s_last_change(now: datetime, settings: Any):
    settings.REACH_RETENTION_DAYS = 30
    node = a_node("n1")
    StatusChange.objects.filter(node=node).update(at=now - 50 * DAY)
    last = StatusChange.objects.create(node=node, at=now - 40 * DAY, status="ready")
    assert retention.forget(now).deleted == {"status_changes": 1}
    assert names(StatusChange.objects, "pk") == {last.pk}
    [shown] = [row for row in retention.stored(now) if row.kind.name == "status_changes"]
    assert (shown.oldest, shown.next_deletion) == (last.at, None)
