"""Every page of the admin opens, for those who may see it, and says what it should."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.utils import timezone

from receipts.models import Call
from registry.models import ApiKey, AuditEvent, Capability, Node, NodeLease, Service
from routing.models import Advisory, Route, RouteChange, TableRevision
from tests.integration.dashboard.sample import TRACE, a_call, a_node

pytestmark = pytest.mark.django_db

LISTS = [
    "registry/node", "registry/service", "registry/capability", "registry/apikey", "registry/auditevent",
    "receipts/call", "routing/route", "routing/routechange", "routing/tablerevision",
    "routing/advisory",
]  # fmt: skip
MODELS = [Node, Service, Capability, ApiKey, AuditEvent, Call, Route, RouteChange, TableRevision, Advisory]
EVERY_LIST = [*LISTS, "auth/user", "auth/group"]


def text(client: Client, path: str, **query: str) -> str:
    answer = client.get(f"/admin/{path}/", query)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


@pytest.mark.parametrize("path", EVERY_LIST)
def test_every_list_opens(administrator: Client, in_use: None, path: str) -> None:
    text(administrator, path)


@pytest.mark.parametrize(
    "model", [Node, Service, Capability, ApiKey, AuditEvent, Call, Route, RouteChange, TableRevision, Advisory]
)
def test_every_page_of_one_thing_opens(administrator: Client, in_use: None, model: Any) -> None:
    things = model.objects.all()
    assert things
    for thing in things:
        options = model._meta
        if model is Route and thing.revision_id != 2:
            continue
        text(administrator, f"{options.app_label}/{options.model_name}/{quote(thing.pk)}/change")


@pytest.mark.parametrize("path", LISTS)
def test_an_empty_list_says_how_to_fill_it(administrator: Client, path: str) -> None:
    AuditEvent.objects.all().delete()
    page = text(administrator, path)
    assert "reach-empty" in page
    assert "curl" in page or "reach_key create" in page or path in ("registry/auditevent", "routing/advisory")


def test_a_search_without_a_hit_offers_the_way_back(administrator: Client, in_use: None) -> None:
    for path in ("registry/node", "receipts/call", "routing/route"):
        assert 'href="?"' in text(administrator, path, q="no such thing")


@pytest.mark.parametrize("path", LISTS)
def test_a_viewer_sees_everything_and_no_action(viewer: Client, in_use: None, path: str) -> None:
    page = text(viewer, path)
    assert 'name="action"' not in page and "/add/" not in page


def test_a_viewer_sees_no_button_on_a_node_and_no_people(viewer: Client, in_use: None) -> None:
    node = Node.objects.order_by("pk")[0]
    assert "reach-button" not in text(viewer, f"registry/node/{node.pk}/change")
    assert viewer.get("/admin/auth/user/").status_code == 403
    assert "/admin/auth/user/" not in text(viewer, "registry/node")


@pytest.mark.parametrize("path", LISTS)
def test_nothing_is_shown_to_strangers(client: Client, path: str) -> None:
    answer = client.get(f"/admin/{path}/")
    assert answer.status_code == 302 and "/admin/login/" in answer["Location"]


def test_the_first_page_is_the_overview(operator: Client) -> None:
    assert "<h1>Overview</h1>" in operator.get("/admin/").content.decode()


def test_secrets_are_on_no_page(administrator: Client, in_use: None) -> None:
    secrets = {service.signing_secret for service in Service.objects.all()}
    secrets |= {key.digest for key in ApiKey.objects.all()}
    pages = [text(administrator, path) for path in LISTS]
    pages += [text(administrator, f"registry/service/{s.pk}/change") for s in Service.objects.all()]
    pages += [text(administrator, f"registry/apikey/{k.pk}/change") for k in ApiKey.objects.all()]
    assert not [secret for secret in secrets for page in pages if secret in page]


# --- What the lists answer -------------------------------------------------------------------------------------------


def rows(page: str) -> list[str]:
    found = re.findall(r"<tbody.*?</tbody>", page, re.DOTALL)
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)) for row in found]


@pytest.mark.parametrize("written", ["agent_24", "agent_5F24"])
def test_a_name_may_look_like_an_escaped_one(viewer: Client, written: str) -> None:
    a_node("agent_24")
    assert "agent_24" in text(viewer, f"registry/service/{written}/change")


def test_nodes_that_need_attention_stand_first(administrator: Client, in_use: None) -> None:
    listed = rows(text(administrator, "registry/node"))
    assert "doc-summarizer/b" in listed[0] and "says it is not ready: gpu" in listed[0]
    assert "doc-summarizer/a" in listed[-1] and "Ready" in listed[-1] and "operator" in listed[-1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"status": "ready"}, ["doc-summarizer/a"]),
        ({"status": "not_ready"}, ["doc-summarizer/b"]),
        ({"status": "draining"}, ["llm/c"]),
        ({"status": "disabled"}, ["llm/d"]),
        ({"status": "expired"}, ["llm/e"]),
        ({"status": "starting"}, ["llm/f"]),
        ({"service_id": "doc-summarizer"}, ["doc-summarizer/a", "doc-summarizer/b"]),
        ({"tag": "prod"}, ["doc-summarizer/a"]),
        ({"q": "llm"}, ["llm/c", "llm/d", "llm/e", "llm/f"]),
    ],
)
def test_nodes_are_filtered(administrator: Client, in_use: None, query: dict[str, str], expected: list[str]) -> None:
    page = " ".join(rows(text(administrator, "registry/node", **query)))
    assert sorted(set(re.findall(r"(?:doc-summarizer|llm)/[a-f]", page))) == expected


def test_services_and_capabilities_count_their_ready_nodes(administrator: Client, in_use: None) -> None:
    assert "1/2" in next(row for row in rows(text(administrator, "registry/service")) if "doc-summarizer" in row)
    assert "1/6" in next(row for row in rows(text(administrator, "registry/capability")) if "file_summary" in row)


def test_a_lease_that_ran_out_is_said(administrator: Client) -> None:
    node = a_node()
    NodeLease.objects.filter(node=node).update(lease_expires_at=timezone.now() + timedelta(seconds=30))
    assert re.search(r"\b(29|30)\.\d s\b", text(administrator, "registry/node"))


@pytest.mark.parametrize(
    "term",
    [TRACE, TRACE.upper(), "i1", "s1", "t:e", "0", "1"],
    ids=["trace", "TRACE", "key", "session", "label", "0", "1"],
)
def test_calls_are_found_by_what_somebody_pastes(administrator: Client, in_use: None, term: str) -> None:
    found = rows(text(administrator, "receipts/call", q=term))
    assert len(found) == {TRACE: 3, TRACE.upper(): 3, "i1": 1, "s1": 1, "t:e": 1}.get(term, 0)


def test_a_call_is_found_by_its_id(administrator: Client, in_use: None) -> None:
    call = Call.objects.order_by("pk")[1]
    assert len(rows(text(administrator, "receipts/call", q=f" {call.pk} "))) == 1


def test_calls_are_filtered_and_newest_first(administrator: Client, in_use: None) -> None:
    assert len(rows(text(administrator, "receipts/call", status="failed"))) == 1
    assert len(rows(text(administrator, "receipts/call", status="succeeded", service_id="doc-summarizer"))) == 1
    assert len(rows(text(administrator, "receipts/call", within="1", capability="file_summary"))) == 7
    assert len(rows(text(administrator, "receipts/call", trace_id=TRACE))) == 3
    first = Call.objects.order_by("-pk")[0]
    page = text(administrator, "receipts/call")
    assert page.index(str(first.pk)) < page.index(str(Call.objects.order_by("pk")[0].pk))


def test_a_call_tells_what_happened_and_why(administrator: Client, in_use: None) -> None:
    call = Call.objects.get(status="failed")
    page = text(administrator, f"receipts/call/{call.pk}/change")
    for said in ("upstream_error", "Why this node", "lease expired", "40.0 %", "connection refused", "40 %", "+4 ms"):
        assert said in page
    for said in (
        "“报告” was read as report",
        "report 0.97",
        "canary: 2.5 % to llm",
        "a narrower service",
        "likeness 0.7",
    ):
        assert said in page
    children = Call.objects.filter(parent_call_id=call.pk)
    assert children and all(f"/admin/receipts/call/{child.pk}/change/" in page for child in children)


def test_a_call_shows_where_its_end_is_told_and_how_that_went(administrator: Client) -> None:
    from receipts.models import Callback

    call = a_call(async_rank=1, callback_url="https://billing.test/done?<b>")
    page = f"/admin/receipts/call/{call.pk}/change/"
    before = administrator.get(page).content.decode()
    assert "Due when the call ends" in before and "https://billing.test/done?&lt;b&gt;" in before
    now = timezone.now()
    log = [
        {"at": "2026-12-01T09:30:01Z", "took_ms": 5000, "error": "no answer within 5 s"},
        {"at": "2026-12-01T09:30:04Z", "took_ms": 9, "status": 503, "error": "answered 503"},
    ]
    known = {"made_at": now, "due_at": now, "tries": 22, "log": log}
    Callback.objects.create(call_id=call.pk, url=call.callback_url, host="billing.test", caller=call.caller, **known)
    shown = administrator.get(page).content.decode()
    for expected in ("On its way", "no answer within 5 s", "answered 503", "and 20 tries more", "Tried next"):
        assert expected in shown, expected
    assert shown.index("answered 503") < shown.index("no answer within 5 s"), "the last one first"


def test_what_callers_send_is_text_and_nothing_else(administrator: Client) -> None:
    call = a_call(capability="<script>alert(1)</script>", output='{"a": "<script>alert(2)</script>"}')
    page = text(administrator, f"receipts/call/{call.pk}/change") + text(administrator, "receipts/call")
    assert "<script>alert" not in page


@pytest.mark.parametrize("path", ["receipts/call/nonsense/change", "registry/node/0/change", "registry/node/x/change"])
def test_what_is_not_there_leads_back(administrator: Client, path: str) -> None:
    assert administrator.get(f"/admin/{path}/").status_code == 302


def test_routes_stand_in_the_order_in_which_they_are_tried(administrator: Client, in_use: None) -> None:
    page = text(administrator, "routing/route")
    assert [page.index(f">{name}<") for name in ("r0", "r1", "r3")] == sorted(
        page.index(f">{name}<") for name in ("r0", "r1", "r3")
    )
    assert "the capability fits file_*" in page and "by weight: llm 60 %, doc-summarizer 40 %" in page
    assert ">r4<" not in page  # deleted by the second change


def test_a_change_on_a_moved_base_says_so(administrator: Client, in_use: None) -> None:
    change = RouteChange.objects.get(title="third")
    assert "cannot be published as it stands" in text(administrator, f"routing/routechange/{change.pk}/change")


# --- Headers ---------------------------------------------------------------------------------------------------------


def test_pages_allow_no_foreign_and_no_inline_scripts(administrator: Client) -> None:
    answer = administrator.get("/admin/registry/node/")
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self' 'unsafe-eval'" in policy and "frame-ancestors 'none'" in policy
    assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", answer.content.decode())
    assert "script-src" not in administrator.get("/")["Content-Security-Policy"]


def test_the_environment_is_shown_red_in_production(administrator: Client, settings: Any) -> None:
    settings.REACH_ENVIRONMENT = "production"
    page = text(administrator, "registry/node")
    assert re.search(r"bg-red-100[^>]*>\s*production", page)


def test_advisories_say_what_to_do_and_those_that_stand_come_first(viewer: Client, in_use: None) -> None:
    page = text(viewer, "routing/advisory")
    assert page.index("Ready, and never asked") < page.index("The route table changes often")
    assert "Propose a route change that names it" in page
    assert "The route table changes often" not in page_of(text(viewer, "routing/advisory", state="stands"))
    one = text(viewer, f"routing/advisory/{Advisory.objects.get(kind='takes_most').pk}/change")
    assert "llm took 91 % of the calls of file_summary" in one and "What to do" in one


def page_of(page: str) -> str:
    """The list itself, without its filters."""
    return page.partition('id="result_list"')[2].partition("</table>")[0]
