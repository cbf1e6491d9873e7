"""What operators do in the admin: a permission each, the verb, its audit row, a report."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from receipts.models import Call, Receipt, WaitingCall
from registry import changes
from registry.auth import find_key
from registry.models import ApiKey, AuditEvent, Node
from tests.integration.dashboard.sample import a_node

pytestmark = pytest.mark.django_db
NODES = "/admin/registry/node/"
KEYS = "/admin/registry/apikey/"
CALLS = "/admin/receipts/call/"


WITHOUT_QUESTIONS = ("drain", "enable", "disable", "give_weight_back", "probe_now")


def act(client: Client, verb: str, *things: Any, url: str = NODES, **more: Any) -> Any:
    """Do it; what a verb only asks to have confirmed is confirmed."""
    chosen = [thing.pk for thing in things]
    confirmed = {"confirmed": "1"} if verb in WITHOUT_QUESTIONS else {}
    body = {"action": verb, "index": "0", "_selected_action": chosen, **confirmed, **more}
    return client.post(url, body, follow=True)


def said(answer: Any) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


@pytest.mark.parametrize(
    ("verb", "state", "words"),
    [("drain", "draining", "are draining"), ("disable", "disabled", "are disabled"), ("enable", "enabled", "enabled")],
)
def test_states_are_set_for_all_that_are_chosen(operator: Client, verb: str, state: str, words: str) -> None:
    nodes = [a_node(node_id="a"), a_node(node_id="b")]
    answer = act(operator, verb, *nodes)
    assert "2 nodes" in said(answer) and words in said(answer)
    assert set(Node.objects.values_list("admin_state", flat=True)) == {state}
    events = AuditEvent.objects.filter(action="change", actor="user:olga", detail={"admin_state": state})
    assert {event.target for event in events} == {"doc-summarizer/a", "doc-summarizer/b"}


def test_a_weight_is_asked_for_set_and_given_back(operator: Client) -> None:
    node = a_node(weight=100)
    page = act(operator, "set_weight", node).content.decode()
    assert 'name="weight"' in page and "doc-summarizer/a" in page and 'value="100"' in page
    assert Node.objects.get().operator_weight is None
    assert "weight 0" in said(act(operator, "set_weight", node, confirmed="1", weight="0"))
    assert Node.objects.get().weight == 0
    act(operator, "give_weight_back", node)
    assert Node.objects.get().weight == 100
    assert AuditEvent.objects.filter(action="change", target=str(node)).count() == 2


@pytest.mark.parametrize("weight", ["1001", "-1", "", "x", "1.5"])
def test_a_weight_that_cannot_be_is_asked_for_again(operator: Client, weight: str) -> None:
    page = act(operator, "set_weight", a_node(), confirmed="1", weight=weight).content.decode()
    assert "errors" in page
    assert Node.objects.get().operator_weight is None


def test_a_removed_node_drains_first_or_leaves_at_once(operator: Client) -> None:
    first, second = a_node(node_id="a"), a_node(node_id="b")
    assert 'name="drain_s"' in act(operator, "remove", first).content.decode()
    act(operator, "remove", first, confirmed="1", drain_s="30")
    act(operator, "remove", second, confirmed="1", drain_s="0")
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.admin_state, first.deleted_at) == ("draining", None)
    assert second.deleted_at is not None
    assert AuditEvent.objects.filter(action="remove", actor="user:olga").count() == 2


def test_a_node_that_is_leaving_refuses_and_says_why(operator: Client) -> None:
    node = a_node()
    act(operator, "remove", node, confirmed="1", drain_s="30")
    assert "is leaving" in said(act(operator, "disable", node))


def test_a_button_on_the_node_s_own_page_leads_back_to_it(operator: Client) -> None:
    node = a_node()
    here = f"{NODES}{node.pk}/change/"
    answer = act(operator, "drain", node, next=here)
    assert answer.redirect_chain == [(here, 302)]
    page = answer.content.decode()
    assert 'value="enable"' in page and 'value="drain"' not in page


@pytest.mark.parametrize("elsewhere", ["https://example.org/", "//example.org", "javascript:alert(1)"])
def test_a_button_leads_nowhere_else(operator: Client, elsewhere: str) -> None:
    answer = act(operator, "drain", a_node(), next=elsewhere)
    assert answer.redirect_chain == [(NODES, 302)]


@pytest.mark.parametrize(
    "verb", ["drain", "enable", "disable", "set_weight", "give_weight_back", "probe_now", "remove"]
)
@pytest.mark.parametrize("group", ["viewer", "approver"])
def test_others_cannot_do_what_operators_do(as_person: Any, group: str, verb: str) -> None:
    node = a_node()
    before = Node.objects.values().get()
    act(as_person(group), verb, node, confirmed="1", weight="7", drain_s="0")
    assert Node.objects.values().get() == before
    assert not AuditEvent.objects.exists()


def test_the_report_comes_when_dispatchers_know(operator: Client) -> None:
    waited: list[int] = []

    def follower(version: int, _timeout_s: float) -> bool:
        waited.append(version)
        return True

    changes.followers.append(follower)
    try:
        act(operator, "drain", a_node(node_id="a"), a_node(node_id="b"))
    finally:
        changes.followers.remove(follower)
    assert len(waited) == 1  # once, for the last of them


class Ready(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.answer(b'{"ready": true}')

    def do_GET(self) -> None:
        self.answer(b"{}")

    def answer(self, body: bytes) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def ready_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_probe_shows_what_was_asked_and_answered(operator: Client, ready_server: str) -> None:
    node = a_node(address=ready_server)
    page = act(operator, "probe_now", node, next=f"{NODES}{node.pk}/change/").content.decode()
    assert f"POST {ready_server}/reach/ready" in page and "{&quot;ready&quot;: true}" in page
    assert Node.objects.get().health == "ready"
    assert AuditEvent.objects.get(action="probe").detail["status"] == "ready"


def test_many_are_probed_and_counted(operator: Client, ready_server: str) -> None:
    nodes = [a_node(node_id="a", address=ready_server), a_node(node_id="b")]
    assert "2 nodes were probed, 1 are ready." in said(act(operator, "probe_now", *nodes))


# --- Keys ------------------------------------------------------------------------------------------------------------


def test_a_key_is_made_shown_once_and_works(operator: Client) -> None:
    answer = operator.post(f"{KEYS}add/", {"service_id": "report", "scopes": ["dispatch"], "lifetime": "30"})
    key = ApiKey.objects.get()
    text = answer.context["key"].text
    assert text in answer.content.decode() and "no-store" in answer["Cache-Control"]
    assert find_key(text).service_id == "report" and key.expires_at is not None
    assert text not in operator.get(f"{KEYS}{key.pk}/change/").content.decode()
    assert AuditEvent.objects.filter(action="create key", actor="user:olga", target=key.pk).exists()


@pytest.mark.parametrize(
    "wrong",
    [{"service_id": "Bad Name"}, {"service_id": ""}, {"scopes": []}, {"scopes": ["root"]}, {"lifetime": "9"}],
)
def test_a_key_that_cannot_be_is_not_made(operator: Client, wrong: dict[str, Any]) -> None:
    given = {"service_id": "report", "scopes": ["dispatch"], "lifetime": ""} | wrong
    assert operator.post(f"{KEYS}add/", given).status_code == 200
    assert not ApiKey.objects.exists()


def test_a_key_is_revoked(operator: Client) -> None:
    operator.post(f"{KEYS}add/", {"service_id": "report", "scopes": ["dispatch"], "lifetime": ""})
    key = ApiKey.objects.get()
    assert "revoked for good" in said(act(operator, "revoke", key, url=KEYS))
    assert ApiKey.objects.get().revoked_at is not None
    assert "already" in said(act(operator, "revoke", key, url=KEYS))


def test_a_viewer_neither_makes_nor_revokes_keys(viewer: Client, operator: Client) -> None:
    operator.post(f"{KEYS}add/", {"service_id": "report", "scopes": ["dispatch"], "lifetime": ""})
    assert viewer.get(f"{KEYS}add/").status_code == 403
    assert viewer.post(f"{KEYS}add/", {"service_id": "x", "scopes": ["dispatch"]}).status_code == 403
    act(viewer, "revoke", ApiKey.objects.get(), url=KEYS)
    assert ApiKey.objects.get().revoked_at is None


# --- Nothing is edited -----------------------------------------------------------------------------------------------


def test_facts_are_not_edited_by_anybody(administrator: Client, in_use: None) -> None:
    node = Node.objects.order_by("pk")[0]
    before = Node.objects.filter(pk=node.pk).values().get()
    for path in (f"{NODES}{node.pk}/change/", f"{NODES}{node.pk}/delete/", f"{NODES}add/"):
        administrator.post(path, {"address": "http://elsewhere", "post": "yes"})
    assert Node.objects.filter(pk=node.pk).values().get() == before
    act(administrator, "delete_selected", node, post="yes")
    assert Node.objects.filter(pk=node.pk).exists()


def test_what_is_done_to_people_is_written_down(administrator: Client) -> None:
    password = "a long enough passphrase"
    answer = administrator.post(
        "/admin/auth/user/add/",
        {"username": "new", "usable_password": "true", "password1": password, "password2": password},
    )
    assert answer.status_code == 302, answer.context["errors"]
    user = User.objects.get(username="new")
    assert AuditEvent.objects.filter(action="add", target="user:new", actor="user:root").exists()
    administrator.post("/admin/auth/user/", {"action": "delete_selected", "_selected_action": user.pk, "post": "yes"})
    assert AuditEvent.objects.filter(action="delete", target="user:new").exists()


def test_only_a_superuser_makes_superusers(as_person: Any) -> None:
    page = as_person("admin").get("/admin/auth/user/1/change/", follow=True).content.decode()
    assert 'name="is_superuser"' not in page


# --- Calls -----------------------------------------------------------------------------------------------------------


def test_an_open_call_is_cancelled_and_it_is_written_down(operator: Client, in_use: None) -> None:
    call = Call.objects.filter(status="running").first()
    page = f"{CALLS}{call.pk}/change/"
    assert 'value="cancel"' in operator.get(page).content.decode()
    assert "1 call is cancelled." in said(act(operator, "cancel", call, url=CALLS))
    call.refresh_from_db()
    assert (call.status, call.due_at, call.ended_at is not None) == ("cancelled", None, True)
    receipt = Receipt.objects.filter(call_id=call.pk).order_by("seq").last()
    assert (receipt.kind, receipt.seq) == ("cancelled", call.seq)
    assert AuditEvent.objects.filter(action="cancel call", actor="user:olga", target=str(call.pk)).count() == 1
    shown = operator.get(page).content.decode()
    assert 'value="cancel"' not in shown and "cancelled a call" in shown
    assert "has ended already" in said(act(operator, "cancel", call, url=CALLS))


def test_a_viewer_cancels_nothing(viewer: Client, in_use: None) -> None:
    call = Call.objects.filter(status="running").first()
    assert 'value="cancel"' not in viewer.get(f"{CALLS}{call.pk}/change/").content.decode()
    act(viewer, "cancel", call, url=CALLS)
    call.refresh_from_db()
    assert call.status == "running"


def test_a_failed_call_is_done_again_and_it_is_written_down(operator: Client, in_use: None) -> None:
    failed = Call.objects.get(status="failed")
    page = f"{CALLS}{failed.pk}/change/"
    assert 'value="redispatch"' in operator.get(page).content.decode()
    assert "1 call is done again." in said(act(operator, "redispatch", failed, url=CALLS))
    again = Call.objects.get(redispatch_of=failed.pk)
    assert (again.status, again.caller, again.capability, again.trace_id) == (
        "accepted", failed.caller, failed.capability, failed.trace_id,
    )  # fmt: skip
    assert WaitingCall.objects.get().call_id == again.pk
    [event] = AuditEvent.objects.filter(action="redispatch call", actor="user:olga", target=str(failed.pk))
    assert event.detail == {"again": str(again.pk)}
    shown = operator.get(page).content.decode()
    assert str(again.pk) in shown and "did a call again" in shown
    assert str(failed.pk) in operator.get(f"{CALLS}{again.pk}/change/").content.decode()
    assert "is being done again already" in said(act(operator, "redispatch", failed, url=CALLS))


def test_what_has_succeeded_or_not_ended_is_not_done_again(operator: Client, in_use: None) -> None:
    for status in ("succeeded", "running"):
        call = Call.objects.filter(status=status).first()
        assert 'value="redispatch"' not in operator.get(f"{CALLS}{call.pk}/change/").content.decode()
        assert f"this one is {status}" in said(act(operator, "redispatch", call, url=CALLS))
    assert not WaitingCall.objects.exists()


def test_a_viewer_does_nothing_again(viewer: Client, in_use: None) -> None:
    failed = Call.objects.get(status="failed")
    assert 'value="redispatch"' not in viewer.get(f"{CALLS}{failed.pk}/change/").content.decode()
    act(viewer, "redispatch", failed, url=CALLS)
    assert not WaitingCall.objects.exists()
