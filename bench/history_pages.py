"""How long each page over a long history takes at the server, and by which plan. A line of JSON.

    REACH_HOME=… .venv/bin/python -m bench.history_pages

Django's test client asks in this process: nothing is measured but the work behind the page. Everything is asked several
times; the slowest but one counts.
"""

import json
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "reach_project.settings")

import django
import msgspec

django.setup()

# ruff: noqa: E402
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.overview import SPANS
from receipts import statistics
from receipts.partitions import lowest_id
from registry import services
from registry.auth import SCOPES, Key
from registry.http import encode_cursor
from registry.serializers import NodeBody

ASKED = 7
SCANS = re.compile(r"Seq Scan on ((?:receipts|calls)_p\w+)")
LARGE = "SELECT relname FROM pg_class WHERE reltuples > 1000 AND relname ~ '^(calls|receipts)_p'"
"""To read an empty partition from end to end is no fault."""
ROLL_UP_AT_MOST_S = 900


def one(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def roll_up() -> dict[str, float]:
    """Count the whole history, and then one more minute."""
    began, minutes = time.monotonic(), 0
    while counted := statistics.roll_up(timezone.now()):
        minutes += counted
        if time.monotonic() - began > ROLL_UP_AT_MOST_S:
            break
    took_s = time.monotonic() - began
    last = statistics.start_of(timezone.now() - timedelta(hours=3), statistics.MINUTE)
    began = time.monotonic()
    with connection.cursor() as cursor:
        statistics.count(cursor, last, last + statistics.MINUTE)
    return {"minutes": minutes, "history_s": took_s, "one_minute_ms": (time.monotonic() - began) * 1e3}


def fleet() -> int:
    """The services of the history with five nodes each, every one with a status that changed each minute of a day; the
    primary key of one."""
    key = Key("bench", None, None, "bench", frozenset(SCOPES))
    for service in range(20):
        for number in range(5):
            capabilities = [{"name": f"cap-{(service + n) % 25}", "input": {"type": "object"}} for n in range(3)]
            body = {"address": "http://127.0.0.1:1", "capabilities": capabilities, "lease_ttl_s": 3600}
            services.register_node(f"service-{service}", f"n{number}", msgspec.convert(body, NodeBody), by=key)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO registry_statuschange (node_id, at, status, reason)"
            " SELECT n.id, now() - m * interval '1 min', CASE WHEN mod(m, 2) = 0 THEN 'ready' ELSE 'suspect' END, ''"
            " FROM registry_node n, generate_series(1440, 1, -1) AS m"
        )
        cursor.execute("ANALYZE registry_statuschange")
    return one("SELECT id FROM registry_node WHERE service_id = 'service-1' AND node_id = 'n1'")


def measured(ask: Callable[[], Any]) -> dict[str, Any]:
    """Milliseconds in all, of this process's CPU and of SQL; KiB; and which large partitions were read throughout."""
    taken, cpu = [], []
    for _turn in range(ASKED):
        began, began_cpu = time.perf_counter(), time.process_time()
        answer = ask()
        taken.append((time.perf_counter() - began) * 1e3)
        cpu.append((time.process_time() - began_cpu) * 1e3)
    with CaptureQueriesContext(connection) as captured:
        ask()
    sql_ms = sum(float(query["time"]) for query in captured.captured_queries) * 1e3
    scans: set[str] = set()
    with connection.cursor() as cursor:
        cursor.execute(LARGE)
        large = {name for (name,) in cursor.fetchall()}
        for query in captured.captured_queries:
            if query["sql"].startswith("SELECT"):
                cursor.execute(f"EXPLAIN {query['sql']}")
                scans.update(SCANS.findall("\n".join(line for (line,) in cursor.fetchall())))
    return {
        "ms": sorted(taken)[-2],
        "cpu_ms": sorted(cpu)[-2],
        "sql_ms": sql_ms,
        "kib": len(getattr(answer, "content", b"")) / 1024,
        "scans": sorted(scans & large),
    }


def main() -> None:
    counting = roll_up()
    person = get_user_model().objects.filter(is_superuser=True).first()
    page = Client(SERVER_NAME="127.0.0.1", headers={"accept-encoding": "gzip"})  # as a browser asks
    page.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    key = services.create_service_key("bench-reader", ["observe"], by="bench").text
    rest = Client(SERVER_NAME="127.0.0.1", headers={"authorization": f"Bearer {key}"})

    def get(client: Client, path: str, **query: str) -> Callable[[], Any]:
        def ask() -> Any:
            answer = client.get(path, query)
            assert answer.status_code == 200, (path, query, answer.content[:300])
            return answer

        return ask

    now = timezone.now()

    def over_time(span: timedelta, step: timedelta) -> Callable[[], Any]:
        return lambda: statistics.over_time(now - span, now, now, step)

    middle = lowest_id(now - timedelta(hours=12))
    key_used = one(
        "SELECT idempotency_key FROM calls WHERE idempotency_key IS NOT NULL ORDER BY id OFFSET 5000 LIMIT 1"
    )
    trace = one("SELECT trace_id FROM calls WHERE parent_call_id IS NOT NULL ORDER BY id DESC OFFSET 1000 LIMIT 1")
    call = one("SELECT id FROM calls ORDER BY id DESC OFFSET 70000 LIMIT 1")
    label = one("SELECT labels->>'tenant' FROM calls WHERE labels IS NOT NULL ORDER BY id DESC OFFSET 5000 LIMIT 1")
    node = fleet()
    cause = json.dumps(["upstream_error", "cap-1", "service-1"])
    no_cause = json.dumps(["upstream_error", "cap-rare", "service-0"])
    ago = {hours: (now - timedelta(hours=hours)).isoformat() for hours in (1, 2, 12, 24)}
    calls, admin = "/api/v1/calls", "/admin/receipts/call/"
    asked = {
        "calls, first page": get(rest, calls),
        "calls, 500 of them": get(rest, calls, limit="500"),
        "calls, a deep page": get(rest, calls, cursor=encode_cursor([str(middle)])),
        **{
            f"calls, {name}={value}": get(rest, calls, **{name: value})
            for name, value in (
                ("status", "succeeded"), ("status", "failed"), ("status", "rejected"), ("status", "running"),
                ("status", "cancelled"), ("capability", "cap-0"), ("capability", "cap-rare"),
                ("capability", "cap-nobody"), ("service_id", "service-3"), ("service_id", "service-nobody"),
                ("caller", "caller-1"), ("caller", "caller-rare"), ("caller", "caller-nobody"), ("trace_id", trace),
                ("idempotency_key", key_used), ("session_id", "session-77"), ("label", f"tenant:{label}"),
                ("since", ago[1]), ("until", ago[12]),
            )
        },
        "calls, a rare capability that failed": get(rest, calls, capability="cap-rare", status="failed"),
        "calls, an hour long ago": get(rest, calls, since=ago[12], until=ago[2]),
        "a call": get(rest, f"{calls}/{call}"),
        "a trace": get(rest, f"/api/v1/traces/{trace}"),
        "a wide trace": get(rest, f"/api/v1/traces/{'e' * 32}"),
        **{f"stats by {name}": get(rest, "/api/v1/stats", group_by=name) for name in statistics.DIMENSIONS},
        "stats of a day": get(rest, "/api/v1/stats", since=ago[24]),
        "overview: an hour by the minute": over_time(timedelta(hours=1), statistics.MINUTE),
        "overview: a day by the hour": over_time(timedelta(days=1), statistics.HOUR),
        "admin: calls": get(page, admin),
        "admin: page 40": get(page, admin, p="40"),
        **{
            f"admin: {name}={value}": get(page, admin, **{name: value})
            for name, value in (
                ("status", "failed"), ("status", "running"), ("status", "cancelled"), ("capability", "cap-rare"),
                ("service_id", "service-3"), ("within", "0.25"), ("within", "24"), ("q", trace), ("q", key_used),
                ("q", f"tenant:{label}"), ("q", "nothing-like-it"),
            )
        },
        "admin: a call": get(page, f"{admin}{call}/change/"),
        **{f"admin: overview, {span}": get(page, "/admin/", span=span) for span in SPANS},
        "admin: live calls": get(page, "/admin/live/"),
        "admin: live calls, filtered": get(page, "/admin/live/", capability="cap-rare", status="failed"),
        "admin: a trace": get(page, f"/admin/traces/{trace}/"),
        "admin: a wide trace": get(page, f"/admin/traces/{'e' * 32}/"),
        "admin: calls by cause": get(page, admin, status="failed", code="upstream_error", within="24"),
        "admin: calls by a cause that none has": get(page, admin, status="failed", code="invalid_output", within="24"),
        **{
            f"console: {name}": get(page, f"/admin/{path}", **query)
            for name, path, query in (
                ("nodes", "registry/node/", {}),
                ("a node", f"registry/node/{node}/change/", {}),
                ("services", "registry/service/", {}),
                ("a service", "registry/service/service-1/change/", {}),
                ("capabilities", "registry/capability/", {}),
                ("capabilities, sumary", "registry/capability/", {"q": "sumary"}),
                ("a capability", "registry/capability/cap-1/change/", {}),
                ("try it", "try/cap-1/", {}),
                ("topology, 15 min", "topology/", {"span": "15"}),
                ("topology, a day", "topology/", {"span": "1440", "most": "300"}),
                ("topology, a week", "topology/", {"span": "10080"}),
                ("dead letters, an hour", "dead-letters/", {"span": "1"}),
                ("dead letters, a week", "dead-letters/", {"span": "168"}),
                ("dead letters, one cause", "dead-letters/again/", {"cause": cause, "span": "168"}),
                ("dead letters, none of them", "dead-letters/again/", {"cause": no_cause, "span": "168"}),
                ("advisories", "routing/advisory/", {}),
                ("audit log", "registry/auditevent/", {}),
            )
        },
    }  # fmt: skip
    found = {name: measured(ask) for name, ask in asked.items()}
    print(json.dumps({"counting": counting, "pages": found}))


if __name__ == "__main__":
    main()
