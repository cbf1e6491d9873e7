import logging
from pathlib import Path

import pytest

from registry.models import AuditEvent
from routing import review
from routing.core.review import Status
from routing.models import RouteChange
from routing.querysets import live_number, table_of
from routing.route_file import sync_route_file
from tests.integration.routing.people import a_rule, analysed, published

DATA = Path(__file__).resolve().parents[2] / "data"
A = "routes:\n  - {id: a, match: {capability: file_summary}, strategy: {type: least_loaded}}\n"
B = A.replace("id: a", "id: b")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "routes.yaml"


def statuses():
    return list(RouteChange.objects.order_by("pk").values_list("status", flat=True))


def test_the_file_makes_revision_1(file):
    file.write_text((DATA / "summary_routes.yaml").read_text())
    assert "published as revision 1" in sync_route_file(file)
    assert [route["id"] for route in table_of(1)["routes"]] == ["summary_main_route", "summary_general_route"]
    assert table_of(1)["fallback_rules"][0]["action"] == "return_503"
    assert sync_route_file(file) == ""
    assert (live_number(), statuses()) == (1, [])


def test_an_edit_is_a_change_in_review(file, approver, colleague):
    file.write_text(A)
    sync_route_file(file)
    file.write_text(B)
    assert "in review" in sync_route_file(file)
    assert sync_route_file(file) == ""
    change = RouteChange.objects.get()
    assert (change.status, change.author.username, live_number()) == (Status.IN_REVIEW, "route-file", 1)
    assert not change.author.is_active
    assert not change.author.has_usable_password()
    analysed(change.pk)
    review.approve(change.pk, by=approver)
    review.publish(change.pk, by=colleague)
    assert [route["id"] for route in table_of(2)["routes"]] == ["b"]
    assert sync_route_file(file) == ""


def test_a_later_edit_takes_the_place_of_an_open_one(file):
    for text in (A, B, A.replace("id: a", "id: c")):
        file.write_text(text)
        sync_route_file(file)
    assert statuses() == [Status.WITHDRAWN, Status.IN_REVIEW]


def test_an_edit_taken_back_leaves_nothing_open(file):
    for text in (A, B, A):
        file.write_text(text)
        sync_route_file(file)
    assert statuses() == [Status.WITHDRAWN]
    file.write_text(B)
    sync_route_file(file)
    assert statuses() == [Status.WITHDRAWN, Status.IN_REVIEW]


def test_new_comments_change_nothing(file):
    file.write_text(A)
    sync_route_file(file)
    file.write_text("# reviewed\n" + A)
    assert "reads like the live revision" in sync_route_file(file)
    assert statuses() == []


def test_a_rejected_content_is_not_proposed_again(file, approver):
    for text in (A, B):
        file.write_text(text)
        sync_route_file(file)
    review.reject(RouteChange.objects.get().pk, by=approver)
    assert sync_route_file(file) == ""
    assert statuses() == [Status.REJECTED]


def test_the_file_does_not_undo_what_people_published(file, author, approver):
    file.write_text(A)
    sync_route_file(file)
    published(author, approver, base_revision=1, routes=[a_rule("theirs")])
    assert sync_route_file(file) == ""
    assert [route["id"] for route in table_of(live_number())["routes"]] == ["theirs"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"routes: [", "line 1"),
        (b"\xff\xfe", "not UTF-8"),
        (
            b"routes:\n  - {id: a, match: {}, strategy: {type: sticky}}",
            "routes.yaml:2: route a: strategy/key: is required",
        ),
        (b"", "must be an object"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_file_breaks_nothing_and_is_logged_once(file, caplog, content, complaint):
    file.write_text(A)
    sync_route_file(file)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    said = sync_route_file(file)
    assert sync_route_file(file) == ""
    assert complaint in said
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [said]
    assert (live_number(), statuses()) == (1, [])
    file.write_text(B)
    assert "in review" in sync_route_file(file)


def test_a_bad_first_file_can_be_mended(file):
    file.write_text("routes: 5")
    sync_route_file(file)
    assert live_number() == 0
    file.write_text(A)
    sync_route_file(file)
    assert live_number() == 1
    assert AuditEvent.objects.filter(actor="user:route-file").count() == 2
