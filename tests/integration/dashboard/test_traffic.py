"""Services, nodes, capabilities and topology with what traffic says of them."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from registry.models import Node, StatusChange
from tests.integration.dashboard.sample import SUMMARY, a_call, a_node

pytestmark = pytest.mark.django_db
FAILED = {"status": "failed", "error": '{"code": "upstream_error", "detail": "d"}'}


def text(client: Client, path: str, **query: str) -> str:
    answer = client.get(f"/admin/{path}/", query)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


@pytest.fixture
def traffic() -> None:
    """desk calls summaries of two services, one of which calls the other; some calls fail, one finds nobody."""
    a_node("doc-summarizer", "a")
    a_node("llm", "x", capabilities=[SUMMARY | {"name": "ask"}])
    for number in range(8):
        a_call(number, caller="desk")
    a_call(20, caller="desk", **FAILED)
    a_call(21, caller="doc-summarizer", capability="ask", service_id="llm", node_id="x")
    refused = {"status": "rejected", "error": '{"code": "unknown_capability", "detail": "d"}'}
    a_call(22, caller="desk", capability="unheard", service_id=None, node_id=None, attempts=0, **refused)


def test_lists_say_how_much_of_the_traffic_each_has(viewer: Client, traffic: None) -> None:
    page = text(viewer, "registry/node")
    assert "9 calls" in page and "11 % failed" in page and "share 100 %" in page
    page = text(viewer, "registry/service")
    assert "share 82 %" in page and "share 9 %" in page
    assert "9 calls" in text(viewer, "registry/capability")


def test_a_node_s_page_has_its_strip_and_its_course(viewer: Client, traffic: None) -> None:
    node = Node.objects.get(service_id="doc-summarizer")
    now = datetime.now(UTC)
    StatusChange.objects.filter(node=node).delete()
    for hours, status in ((30, "ready"), (12, "not_ready"), (6, "ready")):
        StatusChange.objects.create(node=node, at=now - timedelta(hours=hours), status=status)
    page = text(viewer, f"registry/node/{node.pk}/change")
    assert "The last 24 hours: Ready 75 %, Not ready 25 %" in page
    assert "<polyline" in page and "reach-course-bad" in page
    assert "The last 6 hours: Ready 100 %" in text(viewer, "registry/node")


def test_a_service_s_page_says_who_calls_it(viewer: Client, operator: Client, traffic: None) -> None:
    page = text(viewer, "registry/service/doc-summarizer/change")
    assert "<td>desk</td>" in page
    assert 'name="action"' not in page, "a viewer has no verbs"
    assert 'value="drain"' in text(operator, "registry/service/doc-summarizer/change")


def test_a_capability_s_page_says_who_calls_it_and_shows_the_newest_calls(viewer: Client, traffic: None) -> None:
    page = text(viewer, "registry/capability/file_summary/change")
    assert "<td>desk</td>" in page and page.count("/?call=0") == 9


@pytest.mark.parametrize(
    ("words", "found"),
    [("file_summary", True), ("sumary", True), ("summarises", True), ("docs", True), ("SUMM", True), ("rocket", False)],
)
def test_the_catalogue_is_searched_with_tolerance(viewer: Client, in_use: None, words: str, found: bool) -> None:
    assert ("/file_5Fsummary/change/" in text(viewer, "registry/capability", q=words)) is found


def test_the_nearest_capability_comes_first(viewer: Client) -> None:
    offers = [SUMMARY | {"name": name, "description": told} for name, told in (
        ("a_report", "with a summary of the file"), ("file_summary", "short"), ("z", "nothing"))]  # fmt: skip
    a_node(capabilities=offers)
    page = text(viewer, "registry/capability", q="file summary")
    assert re.findall(r"capability/(\w+)/change", page)[:2] == ["file_5Fsummary", "a_5Freport"]


def test_a_name_that_looks_like_an_escape_is_found(viewer: Client) -> None:
    a_node("my_feed", capabilities=[SUMMARY | {"name": "data_feed"}])
    for path in ("service/my_5Ffeed", "capability/data_5Ffeed"):
        assert f"/admin/registry/{path}/change/" in text(viewer, f"registry/node/{Node.objects.get().pk}/change")
        text(viewer, f"registry/{path}/change")
    assert "/admin/registry/capability/data_5Ffeed/change/" in text(viewer, "registry/service/my_5Ffeed/change")


# --- Topology --------------------------------------------------------------------------------------------------------


def graph_of(page: str) -> Any:
    found = re.search(r'<script id="topology-graph" type="application/json">(.*?)</script>', page)
    return json.loads(found[1]) if found else None


def pairs(page: str) -> set[tuple[str, str]]:
    graph = graph_of(page)
    return {(edge["source"], edge["target"]) for edge in graph["edges"]} if graph else set()


def test_topology_shows_who_calls_whom(viewer: Client, traffic: None) -> None:
    page = text(viewer, "topology")
    assert pairs(page) == {("desk", "doc-summarizer"), ("doc-summarizer", "llm"), ("desk", "—")}
    kinds = {node["name"]: node["kind"] for node in graph_of(page)["nodes"]}
    assert kinds == {"desk": "caller", "doc-summarizer": "service", "llm": "service", "—": "lost"}
    assert "11 % failed" in page and "nobody: not placed" in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"focus": "llm"}, {("doc-summarizer", "llm")}),
        ({"focus": "llm", "steps": "2"}, {("doc-summarizer", "llm"), ("desk", "doc-summarizer")}),
        ({"q": "LLM"}, {("doc-summarizer", "llm")}),
        ({"failing": "1"}, {("desk", "doc-summarizer"), ("desk", "—")}),
        ({"q": "no such name"}, set()),
        ({"span": "nonsense", "most": "-1"}, {("desk", "doc-summarizer"), ("doc-summarizer", "llm"), ("desk", "—")}),
    ],
)
def test_topology_is_narrowed(viewer: Client, traffic: None, query: dict[str, str], expected: set[Any]) -> None:
    page = text(viewer, "topology", **query)
    assert pairs(page) == expected
    assert expected or "Nobody matches" in page


def test_topology_without_calls_says_what_to_do(viewer: Client) -> None:
    assert "No call has ended in this time" in text(viewer, "topology")


def test_strangers_see_no_topology(client: Client, as_person: Any) -> None:
    assert client.get("/admin/topology/").status_code == 302
    assert as_person(name="nobody").get("/admin/topology/").status_code == 403
