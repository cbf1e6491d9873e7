"""The overview: what is wrong stands first, every panel has its right, and more rows cost no more queries."""

import json
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from dashboard.overview import deployments
from receipts.core.counting import MINUTE
from receipts.models import ProcessLease
from registry.models import Declaration, LeaseSweep, Node, NodeLease, RefusalCount
from tests.integration.dashboard.sample import OWNER, SUMMARY, a_call, a_node, a_person
from tests.integration.dashboard.test_many_rows import make_calls, make_rows, queries_of

pytestmark = pytest.mark.django_db


def text(client: Client, **query: str) -> str:
    answer = client.get("/admin/", query)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode())


def region(page: str, name: str) -> str:
    """One part of the page, without tags."""
    found = re.search(rf'id="{name}" data-region>(.*?)(data-region|</body>)', page)
    assert found, name
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>?", " ", found[1]))


@pytest.fixture
def alive() -> None:
    """A dispatcher and a worker that swept a moment ago."""
    now = timezone.now()
    for number, role in enumerate(("all", "engine")):
        ProcessLease.objects.create(
            owner=OWNER if number else "00000000-0000-0000-0000-000000000008", role=role, host="h", pid=number,
            started_at=now, held_since=now, lease_expires_at=now + timedelta(minutes=5),
        )  # fmt: skip
    LeaseSweep.objects.update_or_create(pk=1, defaults={"swept_at": now})


def test_nothing_is_registered_yet(administrator: Client, alive: None) -> None:
    page = text(administrator)
    assert "nothing is registered yet" in region(page, "verdict")
    assert "curl -X PUT" in page and "data-chart" not in page


def test_all_is_well(administrator: Client, alive: None) -> None:
    node = a_node(version="2.0")
    Node.objects.filter(pk=node.pk).update(health="ready", health_reason="")
    a_call()
    page = text(administrator)
    assert region(page, "verdict").startswith(" All is well ")
    assert "doc-summarizer 2.0 is deployed" in region(page, "marks")


def test_no_dispatcher_is_alive_and_the_last_calls_are_shown(administrator: Client, in_use: None) -> None:
    ended = timezone.now() - timedelta(seconds=30)
    ProcessLease.objects.create(
        owner=OWNER, role="dispatcher", host="alpha", pid=7, started_at=ended, held_since=ended, lease_expires_at=ended
    )
    page = text(administrator)
    told = region(page, "verdict")
    assert "Something is wrong" in told and "No dispatcher is alive" in told and "alpha:7" in told
    assert "file_summary" in region(page, "newest") and "Not ready" in region(page, "nodes")


def test_a_console_is_no_dispatcher(administrator: Client) -> None:
    now = timezone.now()
    ProcessLease.objects.create(
        owner=OWNER, role="console", host="h", pid=1, started_at=now, held_since=now,
        lease_expires_at=now + timedelta(minutes=1),
    )  # fmt: skip
    assert "No dispatcher is alive" in text(administrator)


def test_a_failed_call_is_two_clicks_from_its_cause(administrator: Client, in_use: None, alive: None) -> None:
    page = text(administrator)
    causes = re.search(r'id="causes" data-region>(.*?)</section>', page)
    assert causes and "The last attempt failed at the node." in causes[1]
    row = next(row for row in causes[1].split("<tr>") if "upstream_error" in row)
    links = re.findall(r'href="([^"]+)"', row)
    listed = administrator.get(links[0].replace("&amp;", "&"))
    assert listed.status_code == 200 and listed.content.count(b"upstream_error") >= 2
    last = next(link for link in links if "/admin/traces/" in link)
    assert "What to try" in administrator.get(last.replace("&amp;", "&")).content.decode()


def test_what_needs_attention_is_named_with_a_way_to_it(administrator: Client, alive: None) -> None:
    now = timezone.now()
    busy, slow, out = a_node("busy", "a", max_concurrency=4), a_node("slow", "b"), a_node("out", "c")
    Node.objects.update(health="ready", health_reason="")
    NodeLease.objects.filter(node=busy).update(in_flight=4)
    Node.objects.filter(pk=slow.pk).update(
        ejected_until=now + timedelta(seconds=60), ejected_since=now,
        ejected_reason="its breaker is open: 9 of 10 attempts failed",
    )  # fmt: skip
    Node.objects.filter(pk=out.pk).update(health="not_ready", health_reason="connection refused")
    Declaration.objects.filter(node=slow).update(rate_per_s=0.1)
    for number in range(1, 40):
        fields = {"status": "failed", "error": json.dumps({"code": "upstream_error", "detail": "d"})}
        a_call(number, service_id="busy", **(fields if number % 3 == 0 else {}))
    a_call(99, service_id="slow", node_id="b")
    RefusalCount.objects.create(code="overloaded", minute=now, count=3)
    page = text(administrator)
    told = region(page, "verdict")
    for words in (
        "1 of 3 nodes cannot take calls: 1 × Not ready",
        "1 breaker is open: slow/b until",
        "busy/a at 100 % of its max_concurrency",
        "% of the calls of the last 15 minutes did not succeed",
        "busy takes 98 % of all calls",
        "3 requests were refused without a call",
    ):
        assert words in told, words
    assert "Something is wrong" in told, "a third has failed"
    assert "9 of 10 attempts failed" in region(page, "nodes")


def test_a_rate_that_is_nearly_used_up_is_shown(administrator: Client, alive: None) -> None:
    a_node(capabilities=[SUMMARY | {"rate_limit": 1}])
    for number in range(1, 16):
        a_call(number, at=timezone.now() - timedelta(seconds=1))
    assert "1 of 1 calls/s of file_summary" in region(text(administrator), "nodes")


@pytest.mark.parametrize("span", ["15m", "1h", "24h", "7d", "nonsense"])
def test_every_span_has_charts_and_marks(administrator: Client, in_use: None, span: str) -> None:
    page = text(administrator, span=span)
    options = re.search(r'<script id="throughput-options" type="application/json">(.*?)</script>', page)
    assert options
    series = json.loads(options[1])["series"]
    assert sum(value for _at, value in series[0]["data"]) > 0
    marks = [mark["name"] for one in series for mark in one.get("markLine", {}).get("data", [])]
    assert {"r1", "r2", "doc-summarizer 1.4"} <= set(marks)


def test_what_is_deployed_together_is_one_mark() -> None:
    now = timezone.now().replace(second=1)
    declared = [("a", "2", now), ("a", "2", now + timedelta(seconds=5)), ("a", "3", now), ("b", "", now - 5 * MINUTE)]
    found = {(mark.title, mark.nodes) for mark in deployments(declared, MINUTE)}
    assert found == {("a 2", 2), ("a 3", 1), ("b", 1)}


def test_a_new_version_at_the_same_address_is_a_deployment(administrator: Client) -> None:
    a_node(version="1")
    a_node(version="1", tags=["other"])
    a_node(version="2")
    told = region(text(administrator), "marks")
    assert told.count("doc-summarizer 1 is deployed") == 1 and told.count("doc-summarizer 2 is deployed") == 1


# --- Who sees what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permission", "sees"),
    [("view_call", "newest"), ("view_node", "nodes"), ("view_routechange", "changes"), ("view_advisory", "changes")],
)
def test_each_panel_has_its_own_right(in_use: None, permission: str, sees: str) -> None:
    person = a_person("pat")
    person.user_permissions.set(Permission.objects.filter(codename=permission))
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    page = text(client)
    shown = {name for name in ("newest", "causes", "nodes", "marks") if f'id="{name}"' in page}
    assert shown == {"view_call": {"newest", "causes", "marks"}, "view_node": {"nodes"}}.get(permission, set())
    assert f'id="{sees}"' in page
    assert ("third" in page) is (permission == "view_routechange")


def test_who_may_see_nothing_gets_an_empty_index(client: Client) -> None:
    person = a_person("pat")
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    page = text(client)
    assert "data-region" not in page and "Live calls" not in page


def test_strangers_are_sent_to_the_login(client: Client) -> None:
    for path in ("/admin/", "/admin/live/", f"/admin/traces/{'a' * 32}/"):
        assert "/admin/login/" in client.get(path)["Location"]


# --- What it costs ---------------------------------------------------------------------------------------------------


def test_more_of_everything_costs_no_more_queries(administrator: Client, alive: None) -> None:
    make_rows(10)
    make_calls(10)
    before = len(queries_of(administrator, "/admin/"))
    make_rows(200)
    make_calls_more()
    RefusalCount.objects.create(code="overloaded", minute=timezone.now(), count=3)
    Node.objects.update(ejected_until=timezone.now() + timedelta(minutes=1), ejected_reason="x")
    assert len(queries_of(administrator, "/admin/")) == before
    assert before < 40


def make_calls_more() -> None:
    for number in range(200):
        failed = json.dumps({"code": "upstream_error", "detail": "d"}) if number % 2 else None
        a_call(number, trace_id=f"{number:032x}", service_id=f"s{number}", status="failed" if failed else "succeeded",
               error=failed)  # fmt: skip
