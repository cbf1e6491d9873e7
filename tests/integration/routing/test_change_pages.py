"""The pages of route changes: who sees which button, what a refused move leaves, what the editor keeps."""

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from routing import review
from routing.core.review import Status
from routing.models import Impact, RouteChange
from routing.querysets import live_number, table_of
from tests.factories import a_node, tables
from tests.integration.routing.conftest import a_person
from tests.integration.routing.people import a_rule, analysed, published
from tests.integration.routing.traffic import stored

pytestmark = pytest.mark.django_db
SPECIFIC = {
    "id": "reports",
    "match": {"capability": "file_summary", "input.content_type": "report"},
    "strategy": {"type": "exact", "service": "one"},
    "priority": 50,
}
GENERAL = {"id": "everything", "match": {"capability": "file_*"}, "strategy": {"type": "exact", "service": "two"}}


def as_(user: Any, language: str = "en") -> Client:
    client = Client(headers={"accept-language": language})
    client.force_login(user)
    return client


def page(user: Any, change_id: int, **more: Any) -> str:
    answer = as_(user, **more).get(reverse("admin:routing_routechange_change", args=[change_id]))
    assert answer.status_code == 200
    return answer.content.decode()


def move(user: Any, change_id: int, move: str, **more: Any) -> Any:
    address = reverse("admin:routing_routechange_move", args=[change_id])
    return as_(user, more.pop("language", "en")).post(address, {"move": move, **more})


def buttons(text: str) -> set[str]:
    """The moves that a page offers."""
    found = set()
    for move in ("approve", "submit", "publish", "reject", "withdraw", "comment", "revert", "rebase", "break_glass"):
        if f'name="move" value="{move}"' in text:
            found.add(move)
    return found


def in_review(author: Any, **proposal: Any) -> RouteChange:
    change = review.propose(author=author, title="t", base_revision=live_number(), **proposal)
    return review.submit(change.pk, by=author)


# --- Buttons ---------------------------------------------------------------------------------------------------------


def test_buttons_are_only_for_those_who_may(author, approver, colleague, viewer):
    change = in_review(author, routes=[a_rule("a")])
    analysed(change.pk)
    assert buttons(page(author, change.pk)) == {"withdraw", "reject", "comment"}
    assert "nobody may approve their own route change" in page(author, change.pk)
    assert buttons(page(approver, change.pk)) == {"approve", "reject", "comment"}
    assert buttons(page(colleague, change.pk)) == {"comment"}
    assert buttons(page(viewer, change.pk)) == set()
    assert buttons(page(a_person("boss", "admin"), change.pk)) >= {"approve", "break_glass"}


def test_what_a_page_does_not_offer_is_refused_when_it_is_asked_for(author, colleague, viewer, client):
    change = in_review(author, routes=[a_rule("a")])
    analysed(change.pk)
    for user, wanted in ((author, "approve"), (colleague, "approve"), (viewer, "reject"), (colleague, "withdraw")):
        answer = move(user, change.pk, wanted, comment="let me")
        assert answer.status_code == 403, (user, wanted)
        assert "let me" in answer.content.decode(), "what was typed stays"
    assert move(author, change.pk, "publish").status_code == 409
    assert move(author, change.pk, "nonsense").status_code == 409
    assert move(author, change.pk, "restore").status_code == 409
    assert client.post(reverse("admin:routing_routechange_move", args=[change.pk])).status_code == 302
    change.refresh_from_db()
    assert change.status == Status.IN_REVIEW and not change.approvals.exists()


def test_a_change_goes_its_way_by_the_buttons(author, approver):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    assert move(author, change.pk, "submit", comment="please look").status_code == 302
    analysed(change.pk)
    assert move(approver, change.pk, "comment", comment="why?").status_code == 302
    assert move(approver, change.pk, "comment", comment=" ").status_code == 400
    assert move(approver, change.pk, "approve", comment="fine", digest=change.content_digest).status_code == 302
    assert buttons(page(author, change.pk)) == {"publish", "reject", "withdraw", "comment"}
    assert move(author, change.pk, "publish").status_code == 302
    shown = page(author, change.pk)
    assert buttons(shown) == {"revert", "comment"}
    for said in ("please look", "why?", "fine", "Being watched"):
        assert said in shown
    assert live_number() == 1


def test_a_revert_with_a_reason_is_in_review_at_once(author, approver):
    change_id = published(author, approver, base_revision=0, routes=[a_rule("a")])
    assert move(author, change_id, "revert", comment="").status_code == 400
    answer = move(author, change_id, "revert", comment="it burns")
    undo = RouteChange.objects.get(reverts=change_id)
    assert answer.headers["Location"] == reverse("admin:routing_routechange_change", args=[undo.pk])
    assert (undo.status, undo.description, undo.document["routes"]) == (Status.IN_REVIEW, "it burns", [])
    assert "it burns" in page(approver, undo.pk)


def test_glass_is_broken_on_the_page_with_a_reason_that_stays(author):
    boss = a_person("boss", "admin")
    change = in_review(author, routes=[a_rule("a")])
    assert move(boss, change.pk, "break_glass", comment="").status_code == 400
    assert move(author, change.pk, "break_glass", comment="fire").status_code == 403
    assert move(boss, change.pk, "break_glass", comment="fire").status_code == 302
    shown = page(author, change.pk)
    assert "Published without approval" in shown and "fire" in shown


# --- Impact ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def robbing(author: Any, approver: Any) -> RouteChange:
    """A general route is put above the one for reports: 7 of 12 calls would be stolen from it."""
    published(author, approver, base_revision=0, routes=[SPECIFIC, GENERAL | {"priority": 10}])
    stored(7, payload={"content_type": "report"}, route_id="reports", table_revision=1)
    stored(5, payload={"content_type": "email"}, route_id="everything", table_revision=1, service_id="two")
    change = in_review(author, operations=[{"op": "put", **GENERAL, "priority": 90}])
    analysed(change.pk, tables(a_node("one"), a_node("two"), known={"file_summary"}))
    return change


def test_the_page_names_the_robbed_route_and_the_calls_and_asks_to_acknowledge(robbing, approver):
    shown = page(approver, robbing.pk)
    assert "reports loses all of its calls to everything: 7 calls of the sample." in shown
    assert "<b>7</b> of 12 calls of the last day would move (58.3 %)" in " ".join(shown.split())
    samples = Impact.objects.get(change=robbing).report["samples"]
    assert samples and all(f"/admin/receipts/call/{sample['call_id']}/change/" in shown for sample in samples)
    assert "I have seen that 1 route loses calls to another" in shown
    options = json.loads(shown.partition('id="flow-options"')[2].partition(">")[2].partition("</script>")[0])
    (link,) = options["series"][0]["links"]
    assert {name: link[name] for name in ("source", "target", "value")} == {
        "source": "0 reports → one",
        "target": "1 everything → two",
        "value": 7,
    }
    digest = robbing.content_digest
    answer = move(approver, robbing.pk, "approve", comment="hm", digest=digest)
    assert answer.status_code == 409
    assert "routes are shadowed: reports by everything (7 calls)" in answer.content.decode()
    assert move(approver, robbing.pk, "approve", digest=digest, acknowledge="yes").status_code == 302
    assert "knowing that these lose calls: reports" in page(approver, robbing.pk)


def test_the_page_and_its_refusals_speak_chinese(robbing, author, approver):
    assert "reports 的全部调用被 everything 抢走：样本中 7 次。" in page(approver, robbing.pk, language="zh-hans")
    refused = move(author, robbing.pk, "approve", language="zh-hans").content.decode()
    assert "不能批准自己的路由变更：必须由另一个人来做" in refused


def test_approving_what_was_edited_meanwhile_is_refused(author, approver):
    change = in_review(author, routes=[a_rule("a")])
    looked_at = change.content_digest
    review.edit(change.pk, by=author, routes=[a_rule("b")])
    review.submit(change.pk, by=author)
    analysed(change.pk)
    answer = move(approver, change.pk, "approve", digest=looked_at)
    assert answer.status_code == 409 and "the change reads differently by now" in answer.content.decode()


def test_a_pending_impact_shows_its_progress_and_no_way_to_approve(author, approver):
    change = in_review(author, routes=[a_rule("a")])
    Impact.objects.filter(change=change).update(done=50, total=200)
    shown = page(approver, change.pk)
    assert 'value="25"' in shown and 'data-live="1000"' in shown
    assert 'value="approve" disabled' in shown


# --- A moved base ----------------------------------------------------------------------------------------------------


def test_conflicts_stand_side_by_side_and_the_author_chooses(author, colleague, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a"), a_rule("b")])
    change = review.propose(
        author=author, title="t", base_revision=1, operations=[{"op": "put", **a_rule("a", priority=5)}]
    )
    published(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("a", priority=7)}])
    shown = page(author, change.pk)
    assert buttons(shown) >= {"rebase"} and "priority: 5" in shown and "priority: 7" in shown
    assert 'name="take:a" value="mine"' in shown
    assert 'name="take:a"' not in page(colleague, change.pk)
    answer = move(author, change.pk, "rebase")
    assert answer.status_code == 409 and "edited on both sides: a" in answer.content.decode()
    assert move(author, change.pk, "rebase", **{"take:a": "mine"}).status_code == 302
    change.refresh_from_db()
    assert change.base_revision == 2
    assert [route.get("priority") for route in change.document["routes"]] == [5, None]


# --- The inbox -------------------------------------------------------------------------------------------------------


def inbox(user: Any) -> str:
    return as_(user).get(reverse("admin:routing_routechange_inbox")).content.decode()


def test_the_inbox_holds_what_waits_for_each_and_the_sidebar_counts_it(robbing, author, approver, viewer):
    assert "To be judged by you" in inbox(approver) and "7 of 12 calls would move" in inbox(approver)
    assert "1 route robbed" in inbox(approver)
    assert '<span class="reach-count">1</span>' in page(approver, robbing.pk)
    assert "Nothing waits for you" in inbox(author) and "Nothing waits for you" in inbox(viewer)
    assert "reach-count" not in inbox(author)
    move(approver, robbing.pk, "approve", acknowledge="yes")
    assert "Yours, approved" in inbox(author) and '<span class="reach-count">1</span>' in inbox(author)
    assert "Nothing waits for you" in inbox(approver)


# --- The editor ------------------------------------------------------------------------------------------------------

YAML = """routes:
  - id: a
    match: {capability: file_summary}
    strategy: {type: exact, service: one}
"""


def save(user: Any, address: str, **more: Any) -> Any:
    return as_(user, more.pop("language", "en")).post(
        address, {"title": "a title", "base_revision": live_number(), "text": YAML, **more}
    )


def test_a_draft_is_saved_and_submitted(author):
    answer = save(author, reverse("admin:routing_routechange_add"), description="why", auto_revert="on")
    change = RouteChange.objects.get()
    assert answer.headers["Location"] == reverse("admin:routing_routechange_change", args=[change.pk])
    assert (change.status, change.title, change.description, change.auto_revert) == ("draft", "a title", "why", True)
    assert change.document["routes"][0]["strategy"] == {"type": "exact", "service": "one"}
    edit = reverse("admin:routing_routechange_edit", args=[change.pk])
    changed = YAML.replace("service: one", "service: two")
    assert save(author, edit, text=changed, digest=change.content_digest, submit="yes").status_code == 302
    change.refresh_from_db()
    assert (change.status, change.document["routes"][0]["strategy"]["service"]) == ("in_review", "two")
    assert not change.auto_revert


def test_nothing_that_was_typed_is_lost_over_a_mistake(author):
    wrong = YAML.replace("exact", "exactly").replace("file_summary}", "file_summary, tagz: [x]}") + "# a note\n"
    answer = save(author, reverse("admin:routing_routechange_add"), text=wrong, description="a long story")
    shown = answer.content.decode()
    assert not RouteChange.objects.exists()
    for kept in ("a title", "a long story", "exactly", "# a note"):
        assert kept in shown
    assert "line 3 · a" in shown and "/routes/0/match/tagz" in shown
    assert "unknown key &#x27;tagz&#x27;; did you mean &#x27;tags&#x27;?" in shown
    untitled = save(author, reverse("admin:routing_routechange_add"), title="")
    assert "service: one" in untitled.content.decode() and not RouteChange.objects.exists()


def test_mistakes_are_said_in_chinese(author):
    wrong = YAML.replace("exact", "exactly")
    shown = save(author, reverse("admin:routing_routechange_add"), text=wrong, language="zh-hans").content.decode()
    assert "必须是" in shown and "您是想写 &#x27;exact&#x27; 吗" in shown


def test_an_edit_of_what_was_edited_elsewhere_is_refused_and_keeps_its_text(author):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    looked_at = change.content_digest
    review.edit(change.pk, by=author, routes=[a_rule("b")])
    edit = reverse("admin:routing_routechange_edit", args=[change.pk])
    shown = save(author, edit, digest=looked_at).content.decode()
    assert "the change reads differently by now" in shown and "service: one" in shown
    change.refresh_from_db()
    assert change.document["routes"][0]["id"] == "b"


@pytest.mark.parametrize("who", ["viewer", "colleague"])
def test_only_the_author_edits_and_only_authors_draft(who, author, request):
    somebody = request.getfixturevalue(who)
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    assert as_(somebody).get(reverse("admin:routing_routechange_edit", args=[change.pk])).status_code == 403
    drafts = as_(somebody).get(reverse("admin:routing_routechange_add")).status_code
    assert drafts == (403 if who == "viewer" else 200)


def check(user: Any, **asked: Any) -> Any:
    return as_(user).post(reverse("admin:routing_routechange_check"), {"base_revision": 0, **asked}, "application/json")


def test_each_form_is_made_of_the_other_and_checked(author):
    of_text = check(author, text=YAML).json()
    assert of_text["document"]["routes"][0]["id"] == "a" and of_text["mistakes"] == []
    assert (of_text["order"], of_text["edits"], of_text["lines"]["0"]) == (["a"], {"a": "added"}, 2)
    assert {one["path"] for one in of_text["warnings"]} == {"/routes/0/match/capability", "/routes/0/strategy/service"}
    of_document = check(author, document=of_text["document"]).json()
    assert check(author, text=of_document["text"]).json()["document"] == of_text["document"]
    wrong = {"routes": [{"id": "a", "match": {"input.n": {"gt": 5, "lt": 3}}, "strategy": {"type": "exact"}}, 5]}
    told = check(author, document=wrong).json()
    places = {(one["path"], one["line"]) for one in told["mistakes"]}
    assert ("/routes/0/strategy/service", 7) in places and told["document"] == wrong
    assert any(path == "/routes/1" for path, _line in places)
    broken = check(author, text="routes:\n  - id: [a\n").json()
    assert broken["document"] is None and broken["mistakes"][0]["line"] == 3
    assert check(author, text="5").json()["document"] is None
    assert check(author, nothing=1).status_code == 400


# --- The tester ------------------------------------------------------------------------------------------------------


def try_call(user: Any, **asked: Any) -> str:
    body = {"capability": "file_summary", "payload": "{}", "urgency": "normal", **asked}
    answer = as_(user).post(reverse("admin:routing_route_test"), body)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


@pytest.mark.django_db(transaction=True)
def test_a_call_is_tried_on_the_live_table_and_on_a_draft(author, approver, viewer):
    from registry.core.node import Health
    from registry.models import Node
    from tests.integration.dashboard.sample import SUMMARY
    from tests.integration.dashboard.sample import a_node as registered_node

    for name in ("one", "two"):
        node = registered_node(name, "n1", capabilities=[SUMMARY | {"input": {"type": "object"}, "allow_callers": []}])
        Node.objects.filter(pk=node.pk).update(health=Health.READY)
    published(author, approver, base_revision=0, routes=[SPECIFIC, GENERAL | {"priority": 10}])
    draft = review.propose(
        author=author, title="other way", base_revision=1, operations=[{"op": "put", **GENERAL, "priority": 90}]
    )
    report = '{"content_type": "report"}'
    live = try_call(viewer, payload=report)
    assert "<b>one/n1</b> by route reports" in live
    email = try_call(viewer, payload='{"content_type": "email"}')
    assert "<b>two/n1</b> by route everything" in email
    assert "input.content_type fails eq &#x27;report&#x27;" in email
    assert "<b>two/n1</b> by route everything" in try_call(viewer, payload=report, table=draft.pk)
    assert "no_available_node" in try_call(viewer, capability="unheard_of") or "unknown_capability" in try_call(
        viewer, capability="unheard_of"
    )
    assert "Not JSON" in try_call(viewer, payload="{")
    assert table_of(1)["routes"], "nothing was written"
