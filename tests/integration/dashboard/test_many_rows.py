"""The lists stay quick when there is much: nothing is counted, and the first pages come from an index."""

import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from receipts.partitions import ensure_partitions
from registry.models import AuditEvent, Node
from routing.core.advisories import Kind
from routing.models import Advisory
from tests.integration.dashboard.sample import TRACE, a_call, a_node

pytestmark = pytest.mark.django_db
MANY = 50_000

MANY_CALLS = """
INSERT INTO calls (id, trace_id, depth, caller, origin_caller, capability, status, route_id, table_revision, service_id,
    node_id, attempts, seq, accepted_at, ended_at, deadline, idempotent, request, request_digest, payload_digest, owner,
    epoch, step, labels, idempotency_key, session_id, error)
SELECT (lpad(to_hex(ms), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
    md5(n::text), 0, 'caller-' || n %% 50, 'caller', 'capability_' || n %% 20,
    CASE WHEN n %% 40 = 0 THEN 'failed' ELSE 'succeeded' END, 'auto', 0, 'service-' || n %% 10, 'n', 1, 0,
    to_timestamp(ms / 1000.0), to_timestamp(ms / 1000.0 + 1), to_timestamp(ms / 1000.0 + 60), true,
    '{"payload": {}}', 'd', 'd', '00000000-0000-0000-0000-000000000007', 1, 1,
    CASE WHEN n %% 10 = 0 THEN jsonb_build_object('tenant', n::text) END,
    CASE WHEN n %% 3 = 0 THEN 'key-' || n END, CASE WHEN n %% 5 = 0 THEN 'session-' || n / 100 END,
    CASE WHEN n %% 40 = 0 THEN '{"code": "upstream_error", "detail": "d"}' END
FROM (SELECT n, (extract(epoch FROM now()) * 1000)::bigint - n * 100 AS ms FROM generate_series(1, %s) AS n) AS made
"""


def make_calls(many: int) -> None:
    """Calls of the last hours, whatever the time of day: those of yesterday have their partition too."""
    ensure_partitions(timezone.now() - timedelta(days=1), hours=24, ahead=1)
    with connection.cursor() as cursor:
        cursor.execute(MANY_CALLS, [many])
        cursor.execute("ANALYZE calls")


def queries_of(client: Client, path: str, **query: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        answer = client.get(path, query)
    assert answer.status_code == 200
    return [one["sql"] for one in captured.captured_queries]


def test_pages_of_calls_neither_count_nor_scan(administrator: Client) -> None:
    make_calls(MANY)
    middle = "9" * 5
    for query in (
        {},
        {"p": "2"},
        {"p": "5"},
        {"status": "failed"},
        {"capability": "capability_7"},
        {"service_id": "service-3", "status": "succeeded"},
        {"within": "1"},
        {"q": f"key-{middle}"},
        {"q": "session-7"},
        {"q": "tenant:15000"},
        {"q": TRACE},
        {"trace_id": TRACE},
        {"q": "01900000-0000-7000-8000-000000000000"},
    ):
        sql = queries_of(administrator, "/admin/receipts/call/", **query)
        assert not [one for one in sql if re.search(r"count\(", one, re.IGNORECASE)], query
        of_calls = [one for one in sql if 'FROM "calls"' in one]
        assert len(of_calls) == 1, query
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + of_calls[0])
            plan = "\n".join(row[0] for row in cursor.fetchall())
        scanned = re.findall(r"Seq Scan on (\w+)", plan)
        assert not [name for name in scanned if holds_much(name)], f"{query}\n{plan}"


def holds_much(table: str) -> bool:
    """Shortly after midnight today's partition holds so little that to read it all is right."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return cursor.fetchone()[0] > MANY / 5


def test_the_page_of_a_call_asks_as_much_whatever_its_size(administrator: Client) -> None:
    small = a_call(1, receipts=[("accepted", None)])
    path = "/admin/receipts/call/{}/change/"
    before = len(queries_of(administrator, path.format(small.pk)))
    large = a_call(2, receipts=[("running", {"progress": 0.1})] * 300, trace_id="5" * 32)
    for number in range(3, 60):
        a_call(number, trace_id="5" * 32, parent_call_id=large.pk)
    assert len(queries_of(administrator, path.format(large.pk))) == before


@pytest.mark.parametrize("path", ["node", "service", "capability", "apikey", "auditevent"])
def test_lists_of_the_registry_ask_as_much_for_many_as_for_one(administrator: Client, path: str) -> None:
    url = f"/admin/registry/{path}/"
    make_rows(1)
    before = len(queries_of(administrator, url))
    make_rows(15)
    assert len(queries_of(administrator, url)) == before


def make_rows(many: int) -> None:
    from registry import services

    for number in range(many):
        a_node(f"service-{number % 5}", f"n{number}")
        services.create_service_key(f"service-{number}", ["dispatch"], by="user:root")


def test_the_audit_trail_of_a_node_comes_from_an_index(administrator: Client) -> None:
    node = a_node()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO registry_auditevent (at, actor, action, target, detail)"
            " SELECT now(), 'user:x', 'change', 'service/' || n, '{}' FROM generate_series(1, 20000) AS n"
        )
        cursor.execute("ANALYZE registry_auditevent")
    plan = AuditEvent.objects.filter(target=str(node)).order_by("-pk")[:20].explain()
    assert "Seq Scan" not in plan and "target" in plan
    sql = queries_of(administrator, "/admin/registry/auditevent/")
    assert not [one for one in sql if re.search(r"count\(", one, re.IGNORECASE)]


def test_thousands_of_nodes_are_a_page(administrator: Client, django_assert_max_num_queries: Any) -> None:
    first = a_node()
    Node.objects.bulk_create(
        Node(service_id=first.service_id, node_id=f"n{n}", address="http://127.0.0.1:1", declaration_hash="d")
        for n in range(2000)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO registry_nodelease (node_id, last_heartbeat_at, lease_expires_at, expired)"
            " SELECT id, now(), now(), false FROM registry_node WHERE id <> %s",
            [first.pk],
        )
    with django_assert_max_num_queries(13):
        assert administrator.get("/admin/registry/node/").status_code == 200


# --- Services, failures, flows ---------------------------------------------------------------------------------------

MANY_FLOWS = """
INSERT INTO calls (id, trace_id, depth, caller, origin_caller, capability, status, route_id, table_revision, service_id,
    node_id, attempts, seq, accepted_at, ended_at, deadline, idempotent, request, request_digest, payload_digest, owner,
    epoch, step, error)
SELECT (lpad(to_hex(ms), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
    md5(n::text), 0, 'service-' || n %% 7, 'caller', 'capability_' || CASE WHEN n %% 6 = 0 THEN 0 ELSE n %% 20 END,
    CASE WHEN n %% 3 = 0 THEN 'failed' ELSE 'succeeded' END, 'auto', 0,
    'service-' || CASE WHEN n %% 6 = 0 THEN 6 ELSE n END, 'n' || n, 1, 0,
    to_timestamp(ms / 1000.0), to_timestamp(ms / 1000.0 + 1), to_timestamp(ms / 1000.0 + 60), true,
    '{"payload": {}}', 'd', 'd', '00000000-0000-0000-0000-000000000007', 1, 1,
    CASE WHEN n %% 3 = 0 THEN '{"code": "upstream_error", "detail": "d"}' END
FROM (SELECT n, (extract(epoch FROM now()) * 1000)::bigint - 60000 - n * 100 AS ms
      FROM generate_series(%s, %s) AS n) AS made
"""


def grow(first: int, last: int) -> None:
    """Each with a node, a history, a declaration, an advisory, and a call of its own; every sixth fails alike."""
    now, facts = timezone.now(), {"capability": "c", "service": "s"}
    for number in range(first, last + 1):
        a_node(f"service-{number}", f"n{number}")
        Advisory.objects.create(
            kind=Kind.UNPROVIDED, subject=f"cap-{number}", facts=facts, first_seen_at=now, last_seen_at=now
        )
    with connection.cursor() as cursor:
        cursor.execute(MANY_FLOWS, [first, last])


ONE_CAUSE = urlencode({"cause": json.dumps(["upstream_error", "capability_0", "service-6"])})
OF_THE_CONSOLE = (
    "/admin/",
    "/admin/live/",
    "/admin/registry/node/",
    "/admin/registry/service/",
    "/admin/registry/service/service-1/change/",
    "/admin/registry/capability/",
    "/admin/registry/capability/?q=sumary",
    "/admin/registry/capability/file_summary/change/",
    "/admin/registry/auditevent/",
    "/admin/routing/advisory/",
    "/admin/topology/?most=300",
    "/admin/dead-letters/",
    f"/admin/dead-letters/again/?{ONE_CAUSE}",
    "/admin/try/file_summary/",
)


@pytest.mark.timeout(400)
def test_no_page_of_the_console_asks_more_for_a_hundred_rows_than_for_ten(administrator: Client) -> None:
    grow(1, 10)
    few = {path: len(queries_of(administrator, path)) for path in OF_THE_CONSOLE}
    grow(11, 100)
    assert {path: len(queries_of(administrator, path)) for path in OF_THE_CONSOLE} == few
