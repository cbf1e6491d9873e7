"""After a publication: what is compared, what is told, and what is taken back."""

from datetime import timedelta

import pytest

from registry import clock
from registry.models import AuditEvent
from routing import review, watch
from routing.core.review import Status
from routing.core.watch import WatchStatus
from routing.errors import NotAllowed
from routing.models import RouteChange, Watch
from routing.querysets import live_number, table_of
from tests.factories import a_node, tables
from tests.integration.routing.people import a_rule, analysed, api_of, published
from tests.integration.routing.traffic import stored

pytestmark = pytest.mark.django_db


def weights(one, two):
    strategy = {"type": "weighted_random", "weights": {"one": one, "two": two}}
    return {"id": "all", "match": {"capability": "file_summary"}, "strategy": strategy}


def watched(author, approver, *, auto_revert=False):
    """A published change that gives a third of the calls to `two`; there were 100 good ones before."""
    published(author, approver, base_revision=0, routes=[weights(100, 0)])
    ago = clock.now() - timedelta(seconds=60)
    stored(100, route_id="all", table_revision=1, at=ago)
    change = review.propose(
        author=author, title="t", base_revision=1, routes=[weights(70, 30)], auto_revert=auto_revert
    )
    review.submit(change.pk, by=author)
    analysed(change.pk, tables(a_node("one"), a_node("two")))
    review.approve(change.pk, by=approver)
    review.publish(change.pk, by=author)
    return change.pk


def call_after(count, **facts):
    stored(count, route_id="all", table_revision=2, at=clock.now(), **facts)


def look():
    """The next look is due, however soon."""
    Watch.objects.exclude(due_at=None).update(due_at=clock.now())
    watch.look_at_due()


def test_a_change_that_does_well_is_fine_at_the_end(author, approver):
    change = watched(author, approver)
    call_after(50)
    look()
    found = Watch.objects.get(pk=change)
    assert (found.status, found.before[""]["calls"], found.after[""]["calls"]) == (WatchStatus.WATCHING, 100, 50)
    Watch.objects.filter(pk=change).update(ends_at=clock.now())
    look()
    found.refresh_from_db()
    assert (found.status, found.due_at) == (WatchStatus.FINE, None)


def test_a_change_that_nobody_tried_says_so(author, approver):
    change = watched(author, approver)
    Watch.objects.update(ends_at=clock.now())
    look()
    assert Watch.objects.get(pk=change).status == WatchStatus.UNTRIED


def test_worse_calls_raise_an_alert_once_and_change_nothing_by_themselves(author, approver):
    change = watched(author, approver)
    call_after(28)
    call_after(12, status="failed", service_id="two")
    look()
    look()
    _, shown = api_of(author).get(f"route-changes/{change}")
    assert shown["watch"]["status"] == "worse"
    assert "30% of 40 calls on the changed routes fail or need a retry, before 0%" in shown["watch"]["told"]
    alerts = AuditEvent.objects.filter(action="route_change.alert")
    assert [(alert.target, alert.detail["comment"]) for alert in alerts] == [
        (f"route_change:{change}", shown["watch"]["told"])
    ]
    assert shown["history"][-1]["action"] == "alert"
    assert live_number() == 2


def test_retries_count_as_trouble(author, approver):
    change = watched(author, approver)
    call_after(28)
    call_after(12, attempts=2)
    look()
    assert Watch.objects.get(pk=change).status == WatchStatus.WORSE


def test_calls_of_other_routes_and_revisions_are_not_its_doing(author, approver):
    change = watched(author, approver)
    stored(40, status="failed", route_id="other", table_revision=2, at=clock.now())
    stored(40, status="failed", route_id="all", table_revision=1, at=clock.now())
    look()
    assert Watch.objects.get(pk=change).status == WatchStatus.WATCHING


def test_a_change_that_asked_for_it_is_taken_back(author, approver):
    change = watched(author, approver, auto_revert=True)
    call_after(28)
    call_after(12, status="failed", service_id="two")
    look()
    assert live_number() == 3
    assert table_of(3) == table_of(1)
    undo = RouteChange.objects.get(reverts=change)
    assert (undo.status, undo.author.username, undo.author.is_active) == (Status.PUBLISHED, "reach-watch", False)
    assert not undo.author.has_usable_password()
    _, shown = api_of(author).get(f"route-changes/{change}")
    assert (shown["watch"]["status"], shown["reverted_by"], shown["status"]) == ("reverted", undo.pk, "published")
    actions = (
        AuditEvent.objects.filter(target=f"route_change:{undo.pk}").order_by("pk").values_list("action", flat=True)
    )
    assert list(actions) == ["route_change.propose", "route_change.restore"]


def test_what_cannot_be_taken_back_says_why(author, approver):
    change = watched(author, approver, auto_revert=True)
    call_after(40, status="failed")
    RouteChange.objects.filter(pk=change).update(auto_revert=False)  # between the look and the deed
    watch.take_back(RouteChange.objects.get(pk=change), watch.Verdict(True, "bad"))
    assert "could not be taken back: the change has not asked" in Watch.objects.get(pk=change).told


def test_a_later_revision_ends_the_watch(author, approver):
    change = watched(author, approver, auto_revert=True)
    published(author, approver, base_revision=2, operations=[{"op": "put", **a_rule("b", match={"capability": "ocr"})}])
    call_after(5)
    look()
    assert Watch.objects.get(pk=change).status == WatchStatus.SUPERSEDED


def test_nobody_but_the_reach_restores(author, approver, settings):
    change = watched(author, approver, auto_revert=True)
    review.watcher().delete()
    from django.contrib.auth.models import User

    User.objects.create(username=review.WATCHER, is_active=True)  # a person of that name is a person
    with pytest.raises(NotAllowed):
        review.restore(change, why="no")


def test_auto_revert_is_part_of_what_is_approved(author, approver):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    before = change.content_digest
    assert review.edit(change.pk, by=author, auto_revert=True).content_digest != before
