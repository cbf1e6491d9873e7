"""Calls, traces and statistics by REST."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

pytestmark = pytest.mark.django_db
NOON = datetime(2020, 2, 3, 12, 0, tzinfo=UTC)  # nobody else's calls lie there
Get = Callable[..., tuple[int, Any]]
Store = Callable[..., Any]


@pytest.fixture
def as_service(db: None) -> Callable[..., Get]:
    from registry import services

    def reader(service_id: str, *scopes: str) -> Get:
        key = services.create_service_key(service_id, scopes, by="test").text

        def get(path: str, **query: Any) -> tuple[int, Any]:
            response = Client().get(f"/api/v1/{path}?{urlencode(query)}", headers={"authorization": f"Bearer {key}"})
            return response.status_code, json.loads(response.content)

        return get

    return reader


@pytest.fixture
def get(as_service: Callable[..., Get]) -> Get:
    return as_service("watcher", "observe")


def found(answer: tuple[int, Any]) -> list[str]:
    status, body = answer
    assert status == 200, body
    return [call["call_id"] for call in body["results"]]


def wire(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# --- Lists -----------------------------------------------------------------------------------------------------------


def test_newest_first_page_by_page(get: Get, stored_call: Store):
    made = [str(stored_call(at=NOON + timedelta(seconds=n), session_id="pages").id) for n in range(7)]
    walked: list[str] = []
    query: dict[str, Any] = {"session_id": "pages", "limit": 3}
    sizes = []
    while True:
        status, page = get("calls", **query)
        assert status == 200
        walked += [call["call_id"] for call in page["results"]]
        sizes.append(len(page["results"]))
        stored_call(at=NOON + timedelta(minutes=1), session_id="pages")  # newer ones do not shift the pages
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert walked == made[::-1]
    assert sizes == [3, 3, 1]


def test_a_last_page_that_is_full_has_no_next(get: Get, stored_call: Store):
    for n in range(4):
        stored_call(at=NOON + timedelta(seconds=n), session_id="full")
    first = get("calls", session_id="full", limit=2)[1]
    second = get("calls", session_id="full", limit=2, cursor=first["next_cursor"])[1]
    assert first["next_cursor"] and second["next_cursor"] is None


@pytest.mark.parametrize(
    ("facts", "query"),
    [
        ({"status": "failed"}, {"status": "failed"}),
        ({"status": "running"}, {"status": "running"}),
        ({"capability": "other"}, {"capability": "other"}),
        ({"service_id": "other"}, {"service_id": "other"}),
        ({"caller": "user:olga"}, {"caller": "user:olga"}),
        ({"trace_id": "b" * 32}, {"trace_id": "b" * 32}),
        ({"idempotency_key": "order-77"}, {"idempotency_key": "order-77"}),
        ({"labels": {"tenant": "emea", "user": "u"}}, {"label": "tenant:emea"}),
        ({"labels": {"url": "http://x"}}, {"label": "url:http://x"}),
        ({"status": "failed", "caller": "x"}, {"status": "failed", "caller": "x"}),
    ],
    ids=str,
)
def test_each_filter(get: Get, stored_call: Store, facts: dict[str, Any], query: dict[str, str]):
    wanted = stored_call(at=NOON, session_id="filters", **facts)
    stored_call(at=NOON, session_id="filters")
    stored_call(at=NOON, session_id="filters", status="timed_out", capability="third", labels={"tenant": "apac"})
    assert found(get("calls", session_id="filters", **query)) == [str(wanted.id)]


def test_since_is_within_and_until_is_not(get: Get, stored_call: Store):
    made = [str(stored_call(at=NOON + timedelta(seconds=n), session_id="time").id) for n in range(4)]
    since, until = wire(NOON + timedelta(seconds=1)), wire(NOON + timedelta(seconds=3))
    assert found(get("calls", session_id="time", since=since)) == made[:0:-1]
    assert found(get("calls", session_id="time", since=since, until=until)) == [made[2], made[1]]
    assert found(get("calls", session_id="time", until="2020-02-03T13:00:01+01:00")) == [made[0]]
    assert found(get("calls", session_id="time", until="9999-12-31T23:59:59Z")) == made[::-1]


@pytest.mark.parametrize(
    "query",
    [
        {"status": "lost"},
        {"label": "tenant"},
        {"since": "yesterday"},
        {"since": "2020-02-03T12:00:00"},
        {"until": "2020-02-30T12:00:00Z"},
        {"limit": "0"},
        {"limit": "501"},
        {"limit": "ten"},
        {"cursor": "nonsense"},
        {"cursor": "WyJ4Il0"},
        {"cursor": "W10"},
        {"caller": "a\x00b"},
        {"label": "a\x00:b"},
    ],
    ids=str,
)
def test_a_bad_parameter_is_named(get: Get, query: dict[str, str]):
    status, problem = get("calls", **query)
    assert (status, problem["code"]) == (400, "invalid_request")
    assert [error["path"] for error in problem["errors"]] == [f"/{name}" for name in query]


def test_a_key_with_dispatch_alone_sees_its_own(as_service: Callable[..., Get], stored_call: Store):
    mine = stored_call(at=NOON, session_id="own", caller="agent-a")
    other = stored_call(at=NOON, session_id="own", caller="agent-b")
    get = as_service("agent-a", "dispatch")
    assert found(get("calls", session_id="own")) == [str(mine.id)]
    assert found(get("calls", session_id="own", caller="agent-b")) == []
    assert get(f"calls/{mine.id}")[0] == 200
    assert get(f"calls/{other.id}")[0] == 403
    assert get(f"traces/{other.trace_id}")[0] == 404


def test_a_call_as_it_is_shown(get: Get, stored_call: Store):
    call = stored_call(at=NOON, output='{"summary": "短"}', labels={"a": "b"})
    status, document = get(f"calls/{call.id}")
    assert status == 200
    assert document == {
        "call_id": str(call.id),
        "trace_id": call.trace_id,
        "parent_call_id": None,
        "caller": "report-agent",
        "origin_caller": "report-agent",
        "capability": "file_summary",
        "status": "succeeded",
        "route_id": "auto",
        "table_revision": 0,
        "service_id": "summarizer",
        "node_id": "n1",
        "attempts": 0,
        "accepted_at": "2020-02-03T12:00:00Z",
        "ended_at": "2020-02-03T12:00:00.010000Z",
        "deadline": "2020-02-03T12:01:00Z",
        "output": {"summary": "短"},
        "error": None,
        "labels": {"a": "b"},
        "idempotency_key": None,
        "session_id": None,
        "mirror_of": None,
        "redispatch_of": None,
        "mode": "sync",
        "callback": None,
    }


# --- Traces ----------------------------------------------------------------------------------------------------------


def test_a_trace_is_its_calls_as_a_tree(get: Get, stored_call: Store):
    trace = "c" * 32
    top = stored_call(at=NOON, trace_id=trace)
    left = stored_call(at=NOON + timedelta(seconds=1), trace_id=trace, parent_call_id=top.id)
    leaf = stored_call(at=NOON + timedelta(seconds=2), trace_id=trace, parent_call_id=left.id)
    right = stored_call(at=NOON + timedelta(seconds=3), trace_id=trace, parent_call_id=top.id)
    apart = stored_call(at=NOON + timedelta(seconds=4), trace_id=trace, parent_call_id=UUID(int=7))
    stored_call(at=NOON)

    def shape(calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {call["call_id"]: shape(call["children"]) for call in calls}

    status, body = get(f"traces/{trace}")
    assert status == 200
    assert shape(body["calls"]) == {
        str(top.id): {str(left.id): {str(leaf.id): {}}, str(right.id): {}},
        str(apart.id): {},
    }
    assert [r["kind"] for r in body["calls"][0]["receipts"]] == ["accepted", "succeeded"]
    assert body["calls"][0]["receipts"][0].keys() == {"seq", "kind", "attempt", "service_id", "node_id", "at", "detail"}


@pytest.mark.parametrize(("trace", "status"), [("d" * 32, 404), ("xyz", 400), ("D" * 32, 400), ("0" * 32, 400)])
def test_no_such_trace(get: Get, trace: str, status: int):
    assert get(f"traces/{trace}")[0] == status


def test_nothing_that_is_read_scans_receipts(get: Get, stored_call: Store):
    call = stored_call(at=NOON)
    with connection.cursor() as cursor, CaptureQueriesContext(connection) as captured:
        cursor.execute("SET LOCAL enable_seqscan = off")  # so small, it would be the best plan
        assert get(f"traces/{call.trace_id}")[0] == 200
        for path in ("calls", f"calls/{call.id}", "stats"):
            assert get(path)[0] == 200
        asked = [one["sql"] for one in captured.captured_queries if one["sql"].startswith("SELECT")]
        for sql in asked:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert not re.search(r"Seq Scan on (receipts|calls)", plan), plan
    assert any("receipts" in sql for sql in asked)


# --- Statistics ------------------------------------------------------------------------------------------------------


@pytest.fixture
def an_hour_of_calls(stored_call: Store) -> dict[str, str]:
    """Ten ended calls within the hour, one that is open, one before it."""
    for n in range(8):
        stored_call(at=NOON + timedelta(minutes=n), ms=(n + 1) * 10, service_id="a", node_id=f"n{n % 2}")
    for n in range(2):
        stored_call(
            at=NOON + timedelta(minutes=n), ms=1000, service_id="b", status="failed", caller="x", route_id="r",
            capability="other",
        )  # fmt: skip
    stored_call(at=NOON, service_id="a", status="running")
    stored_call(at=NOON - timedelta(minutes=1), service_id="a")
    stored_call(at=NOON + timedelta(hours=1), service_id="a")
    return {"since": wire(NOON), "until": wire(NOON + timedelta(hours=1))}


def test_how_much_how_well_and_how_fast(get: Get, an_hour_of_calls: dict[str, str]):
    status, body = get("stats", group_by="service_id", **an_hour_of_calls)
    assert status == 200
    assert body["results"] == [
        {
            "service_id": "a",
            "calls": 8,
            "failures": 0,
            "share": 0.8,
            "latency_ms": pytest.approx({"p50": 45.0, "p90": 73.0, "p99": 79.3}, rel=0.1),
        },
        {
            "service_id": "b",
            "calls": 2,
            "failures": 2,
            "share": 0.2,
            "latency_ms": pytest.approx(dict.fromkeys(("p50", "p90", "p99"), 1000.0), rel=0.1),
        },
    ]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("capability", {"file_summary": 8, "other": 2}),
        ("route_id", {"auto": 8, "r": 2}),
        ("caller", {"report-agent": 8, "x": 2}),
        ("node_id", {"n0": 4, "n1": 6}),
    ],
)
def test_grouped_by(get: Get, an_hour_of_calls: dict[str, str], group: str, expected: dict[str, int]):
    _status, body = get("stats", group_by=group, **an_hour_of_calls)
    assert {row[group]: row["calls"] for row in body["results"]} == expected
    assert sum(row["share"] for row in body["results"]) == pytest.approx(1.0)


def test_the_default_is_the_last_hour(get: Get, stored_call: Store):
    stored_call(at=datetime.now(UTC) - timedelta(minutes=10), service_id="lately")
    stored_call(at=datetime.now(UTC) - timedelta(minutes=70), service_id="long-ago")
    groups = {row["service_id"] for row in get("stats")[1]["results"]}
    assert "lately" in groups and "long-ago" not in groups


@pytest.mark.parametrize(
    "query", [{"group_by": "id"}, {"group_by": "caller; DROP TABLE calls"}, {"since": "x"}], ids=str
)
def test_statistics_refuse_what_they_do_not_know(get: Get, query: dict[str, str]):
    assert get("stats", **query)[0] == 400
