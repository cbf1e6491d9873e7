"""The page of a trace, and that of live calls."""

import html
import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from tests.integration.dashboard.sample import RECEIPTS, TRACE, a_call, a_node
from tests.integration.dashboard.test_many_rows import queries_of

pytestmark = pytest.mark.django_db
SECRET = {
    "name": "file_summary",
    "input": {"type": "object", "properties": {"pin": {"type": "string", "x-reach-sensitive": True}}},
    "output": {"type": "object", "properties": {"token": {"type": "string", "x-reach-sensitive": True}}},
}


def text(client: Client, path: str, **query: str) -> str:
    answer = client.get(f"/admin/{path}/", query)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode())


def a_failed_chain() -> None:
    """report → query, which failed and took its caller with it; and a check that had succeeded."""
    at = datetime.now(UTC) - timedelta(seconds=60)
    error = {"code": "upstream_error", "detail": "data-query/a: answered 500: boom", "upstream": {"code": "b"}}
    broken: dict[str, Any] = {"status": "failed", "error": json.dumps(error), "at": at}
    report = a_call(1, capability="report", service_id="report-agent", receipts=RECEIPTS[:3], **broken)
    within = {"parent_call_id": report.pk, "depth": 1}
    a_call(2, capability="check", at=at, ended_at=at + timedelta(milliseconds=90), **within)
    told = [*RECEIPTS[:3], ("attempt_failed", {"reason": "answered 500"})]
    a_call(
        3, capability="query", service_id="data-query", ended_at=at + timedelta(milliseconds=200), receipts=told,
        **within, **broken,
    )  # fmt: skip


def test_a_failed_trace_says_first_what_failed_where_and_what_to_try(administrator: Client) -> None:
    a_failed_chain()
    page = text(administrator, f"traces/{TRACE}")
    first, _mark, rest = page.partition('id="waterfall"')
    told = re.sub(r"<[^>]+>", " ", first.partition('id="failure"')[2])
    for words in ("The last attempt failed at the node.", "query", "and with it report", "data-query/a", "answered 500",
                  "What to try", "Look at the node", "Do again"):  # fmt: skip
        assert words in told, words
    assert "here it began" in rest and rest.count("<li") > 3
    assert "What happened" in rest, "the failed call stands below in full"


def test_the_waterfall_shows_attempts_and_what_is_left_of_the_budget(administrator: Client) -> None:
    a_call(1, receipts=RECEIPTS, status="failed", error=json.dumps({"code": "upstream_error", "detail": "d"}))
    page = text(administrator, f"traces/{TRACE}")
    assert "attempt 1 at doc-summarizer/a, 60.0 s left: failed after" in page
    assert "connection refused" in page and "59.8 s of 1 min 0 s left" in page
    assert page.count('class="reach-piece reach-bad"') >= 2


def test_any_call_of_a_trace_can_be_chosen(administrator: Client, in_use: None) -> None:
    page = text(administrator, f"traces/{TRACE}", call="nonsense")
    chosen = re.findall(r"\?call=([0-9a-f-]{36})#call", page)
    for call_id in set(chosen):
        one = text(administrator, f"traces/{TRACE}", call=call_id)
        assert re.search(rf"Call id</dt><dd>{call_id}", one)


def test_a_trace_without_calls_is_not_found(administrator: Client) -> None:
    for trace_id in ("f" * 32, "no-trace"):
        assert administrator.get(f"/admin/traces/{trace_id}/").status_code == 404


def test_a_wide_trace_costs_no_more_queries(administrator: Client) -> None:
    root = a_call(1, receipts=RECEIPTS)
    for number in range(2, 12):
        a_call(number, parent_call_id=root.pk, receipts=RECEIPTS[:3])
    before = len(queries_of(administrator, f"/admin/traces/{TRACE}/"))
    for number in range(12, 240):
        a_call(number, parent_call_id=root.pk, receipts=RECEIPTS[:3])
    assert len(queries_of(administrator, f"/admin/traces/{TRACE}/")) == before
    assert "The first 200 calls are shown." in text(administrator, f"traces/{TRACE}")


def test_live_calls_cost_no_more_queries(administrator: Client) -> None:
    for number in range(10):
        a_call(number)
    before = len(queries_of(administrator, "/admin/live/"))
    for number in range(10, 200):
        a_call(number)
        if number % 5 == 0:
            a_node(f"s{number}")
    assert len(queries_of(administrator, "/admin/live/")) == before


@pytest.mark.parametrize("path", [f"traces/{TRACE}", "receipts/call/{pk}/change"])
def test_what_a_schema_marks_is_on_no_page(administrator: Client, path: str) -> None:
    a_node(capabilities=[SECRET])
    error = {"code": "invalid_payload", "detail": "it does not fit: /payload/pin: '4711' is too short",
             "errors": [{"path": "/payload/pin", "message": "'4711' is too short"}]}  # fmt: skip
    call = a_call(
        status="failed", request=json.dumps({"payload": {"pin": "4711", "user": "u-17"}, "urgency": "normal"}),
        output=json.dumps({"token": "s3cret", "rows": 7}), error=json.dumps(error),
        receipts=[("accepted", {"capability": "file_summary"}), ("attempt_failed", error), ("failed", error)],
    )  # fmt: skip
    page = text(administrator, path.format(pk=call.pk))
    assert "4711" not in page and "s3cret" not in page
    assert "u-17" in page and "•••" in page and "is hidden" in page


def test_a_call_is_copied_for_a_shell(administrator: Client) -> None:
    request = {"payload": {"q": "it's"}, "urgency": "bulk", "tags": ["prod"], "timeout_ms": 500}
    call = a_call(request=json.dumps(request), labels='{"t": "e"}', session_id="s1")
    page = administrator.get(f"/admin/receipts/call/{call.pk}/change/").content.decode()
    curl = re.search(r'<code id="curl">(.*?)</code>', page, re.DOTALL)
    assert curl
    words = shlex.split(html.unescape(curl[1]).replace("\\\n", " "))
    body = json.loads(words[words.index("-d") + 1])
    assert body == {
        "capability": "file_summary", "payload": {"q": "it's"}, "urgency": "bulk", "tags": ["prod"], "timeout_ms": 500,
        "labels": {"t": "e"}, "session_id": "s1",
    }  # fmt: skip


# --- Live calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "many"),
    [
        ({}, 7),
        ({"status": "failed"}, 1),
        ({"status": "running"}, 1),
        ({"service_id": "nobody"}, 0),
        ({"caller": "scheduler"}, 7),
    ],
)
def test_live_calls_begin_with_the_last_ones_that_fit(
    administrator: Client, in_use: None, query: dict[str, Any], many: int
) -> None:
    page = text(administrator, "live", **query)
    assert page.count("<tr data-call=") == many
    assert ('id="live-empty" hidden' in page) is bool(many)


def test_only_who_may_see_calls_sees_them(as_person: Any, in_use: None) -> None:
    nobody = as_person(name="nina")
    for path in ("live", f"traces/{TRACE}"):
        assert nobody.get(f"/admin/{path}/").status_code == 403


def test_a_viewer_sees_a_trace_and_no_button(viewer: Client, in_use: None) -> None:
    assert 'name="action"' not in text(viewer, f"traces/{TRACE}")
