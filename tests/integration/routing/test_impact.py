"""Impact analyses of real rows: what is sampled, kept, shown by REST, and asked for again."""

import json
import time
from datetime import timedelta
from typing import Any

import pytest

from receipts.models import Call
from registry import clock
from registry.core.node import Node
from routing import impact, replay, review
from routing.core.review import Status
from routing.errors import AlreadyApproved, ContentChanged, ImpactPending, Unacknowledged
from routing.models import Impact, RouteChange
from tests.factories import a_node, an_offer, tables
from tests.integration.dashboard.sample import a_node as registered_node
from tests.integration.routing.people import a_rule, analysed, api_of, published
from tests.integration.routing.traffic import stored, stored_all

pytestmark = pytest.mark.django_db
TWO: tuple[Node, ...] = (a_node("one"), a_node("two"))

SPECIFIC = {
    "id": "reports",
    "match": {"capability": "file_summary", "input.content_type": "report"},
    "strategy": {"type": "exact", "service": "one"},
    "priority": 50,
}
GENERAL = {"id": "everything", "match": {"capability": "file_*"}, "strategy": {"type": "exact", "service": "two"}}


def in_review(author, *, base_revision=0, **proposal):
    change = review.propose(author=author, title="t", base_revision=base_revision, **proposal)
    return review.submit(change.pk, by=author)


def impact_by_rest(user, change_id) -> dict[str, Any]:
    status, found = api_of(user).get(f"route-changes/{change_id}/impact")
    assert status == 200
    return found


def test_a_general_route_above_a_specific_one_names_what_it_robs_and_how_many_calls(author, approver):
    """Yesterday: 7 reports (one of them through another service, one a copy), 5 emails, 3 of another capability."""
    published(author, approver, base_revision=0, routes=[SPECIFIC, GENERAL | {"priority": 10}])
    report = {"content_type": "report"}
    stored(5, payload=report)
    stored(1, payload=report, service_id="two")
    stored(1, payload=report, status="failed", at=clock.now() - timedelta(hours=23))
    stored(1, payload=report, at=clock.now() - timedelta(hours=25))  # not of the last day
    (original,) = stored(1, payload={"content_type": "email"})
    stored(1, payload=report, mirror_of=original)
    stored(4, payload={"content_type": "email"})
    stored(3, capability="ocr", payload=report)
    change = in_review(author, base_revision=1, operations=[{"op": "put", **GENERAL, "priority": 90}])
    assert impact_by_rest(author, change.pk)["status"] == "pending"
    with pytest.raises(ImpactPending):
        review.approve(change.pk, by=approver)
    analysed(change.pk, tables(*TWO, known={"file_summary", "ocr"}))

    found = impact_by_rest(approver, change.pk)
    assert (found["status"], found["sampled_calls"], found["progress"]) == ("ready", 15, 1.0)
    assert found["shadowed_routes"] == [{"route": "reports", "by": "everything", "calls": 7, "whole": True}]
    assert found["moved"]["total"] == 7
    assert found["moved"]["by_route"] == [{"from": "reports", "to": "everything", "calls": 7}]
    assert found["moved"]["by_service"] == [{"from": "one", "to": "two", "calls": 7}]
    assert Call.objects.filter(pk__in=[sample["call_id"] for sample in found["samples"]]).count() == 3

    status, problem = api_of(approver).post(f"route-changes/{change.pk}/approve")
    assert (status, problem["code"]) == (409, "conflict")
    assert "reports by everything (7 calls)" in problem["detail"]
    assert problem["shadowed_routes"] == found["shadowed_routes"]
    with pytest.raises(Unacknowledged):
        review.approve(change.pk, by=approver)
    status, done = api_of(approver).post(f"route-changes/{change.pk}/approve", {"acknowledge": True})
    assert (status, done["status"]) == (200, "approved")
    assert done["approvals"][0]["impact_digest"] == found["digest"] != ""
    assert done["approvals"][0]["digest"] == done["digest"]


def test_the_impact_has_the_shape_of_the_contract(author):
    change = in_review(author, routes=[a_rule("a")])
    named = {
        *("sampled_calls", "moved", "unprovided_capabilities", "shadowed_routes", "dominant_services"),
        *("rate_limit_risks", "cost_shift", "samples"),
    }
    pending = impact_by_rest(author, change.pk)
    analysed(change.pk)
    ready = impact_by_rest(author, change.pk)
    for found in (pending, ready):
        assert named <= found.keys()
        assert {"total", "by_route", "by_service"} <= found["moved"].keys()
    assert (pending["status"], ready["status"]) == ("pending", "ready")


def test_approving_before_it_is_ready_is_409(author, approver):
    change = in_review(author, routes=[a_rule("a")])
    status, problem = api_of(approver).post(f"route-changes/{change.pk}/approve")
    assert (status, problem["code"]) == (409, "conflict")
    assert "is being analysed" in problem["detail"]


def test_an_edit_makes_the_impact_stale(author, approver):
    change = in_review(author, routes=[a_rule("a")])
    analysed(change.pk)
    review.edit(change.pk, by=author, title="another title")
    assert impact_by_rest(author, change.pk)["status"] == "ready"
    review.edit(change.pk, by=author, routes=[a_rule("b")])
    assert impact_by_rest(author, change.pk)["status"] == "pending"
    review.submit(change.pk, by=author)
    with pytest.raises(ImpactPending):
        review.approve(change.pk, by=approver)


def test_what_was_analysed_of_an_older_content_is_not_kept_for_the_newer(author):
    change = in_review(author, routes=[a_rule("a")])
    review.edit(change.pk, by=author, routes=[a_rule("b")])
    replay.analyse(change, tables(*TWO))  # a worker that began before the edit
    assert impact_by_rest(author, change.pk)["status"] == "pending"


def test_an_old_impact_is_made_anew_before_anybody_approves(author, approver, settings):
    change = in_review(author, routes=[a_rule("a")])
    analysed(change.pk)
    long_ago = clock.now() - timedelta(seconds=settings.REACH_IMPACT_MAX_AGE_S + 1)
    Impact.objects.update(computed_at=long_ago)
    with pytest.raises(ImpactPending):
        review.approve(change.pk, by=approver)
    assert Impact.objects.get().due_at is not None
    assert replay.analyse_due(lambda: tables(*TWO)) == 1
    assert review.approve(change.pk, by=approver).status == Status.APPROVED


def test_reading_asks_for_what_nobody_has_asked_for_yet(author):
    """A change that an older version drafted has no row."""
    change = in_review(author, routes=[a_rule("a")])
    Impact.objects.all().delete()
    assert impact_by_rest(author, change.pk)["status"] == "pending"
    assert replay.analyse_due(lambda: tables(*TWO)) == 1
    assert impact_by_rest(author, change.pk)["status"] == "ready"


def test_a_worker_takes_what_is_due_once(author):
    in_review(author, routes=[a_rule("a")])
    assert impact.take_due() is not None
    assert impact.take_due() is None
    Impact.objects.update(due_at=clock.now() - timedelta(seconds=1))  # its worker has died
    assert impact.take_due() is not None


def test_nobody_analyses_what_has_ended(author):
    change = in_review(author, routes=[a_rule("a")])
    review.withdraw(change.pk, by=author)
    assert replay.analyse_due(lambda: tables(*TWO)) == 0


def test_an_approval_of_what_was_looked_at_meets_an_edit(author, approver):
    change = in_review(author, routes=[a_rule("a")])
    looked_at = change.content_digest
    review.edit(change.pk, by=author, routes=[a_rule("b")])
    review.submit(change.pk, by=author)
    analysed(change.pk)
    with pytest.raises(ContentChanged):
        review.approve(change.pk, by=approver, digest=looked_at)
    now = RouteChange.objects.get().content_digest
    assert review.approve(change.pk, by=approver, digest=now).status == Status.APPROVED


def test_several_approvals_are_of_several_people(author, approver, settings):
    from tests.integration.routing.conftest import a_person

    settings.REACH_APPROVALS = 2
    change = in_review(author, routes=[a_rule("a")])
    analysed(change.pk)
    assert review.approve(change.pk, by=approver).status == Status.IN_REVIEW
    with pytest.raises(AlreadyApproved):
        review.approve(change.pk, by=approver)
    second = a_person("second", "approver")
    assert list(review.waiting_for(second)) == [change]
    assert not review.waiting_for(approver).exists()
    assert review.approve(change.pk, by=second).status == Status.APPROVED


def test_a_large_impact_needs_more_people(author, approver, settings):
    settings.REACH_APPROVALS_WHEN_LARGE, settings.REACH_IMPACT_LARGE_CALLS = 2, 10
    stored(10)
    to_two = a_rule("all", match={"capability": "file_summary"}, strategy={"type": "exact", "service": "two"})
    change = in_review(author, routes=[to_two])
    analysed(change.pk, tables(a_node("one"), a_node("two", weight=1)))
    assert review.approve(change.pk, by=approver).status == Status.IN_REVIEW
    _, shown = api_of(author).get(f"route-changes/{change.pk}")
    assert (shown["approvals_standing"], shown["approvals_needed"]) == (1, 2)
    assert "sampled calls would move" in shown["large_because"]


def test_a_sample_is_even_and_bounded(author, settings):
    settings.REACH_IMPACT_SAMPLE = 100
    stored(450)
    sample = replay.choose_sample(clock.now())
    assert (len(sample.ids), sample.stands_for) == (90, 5)
    every = list(Call.objects.order_by("pk").values_list("pk", flat=True))
    assert sorted(sample.ids) == every[4::5]


def test_large_and_unreadable_calls_are_left_out_and_counted(author, settings):
    settings.REACH_IMPACT_MAX_REQUEST_BYTES = 1000
    stored(3)
    stored(1, payload="x" * 1000)
    stored(1, request="{}")
    change = in_review(author, routes=[a_rule("a")])
    analysed(change.pk)
    found = impact_by_rest(author, change.pk)
    assert (found["sampled_calls"], found["left_out_calls"]) == (3, 2)


def test_conditions_on_sensitive_fields_are_unknown(author):
    schema = {"type": "object", "properties": {"content_type": {"type": "string", "x-reach-sensitive": True}}}
    registered_node("one", "n1", capabilities=[{"name": "file_summary", "input": schema}])
    stored(4, payload={"content_type": "report"})
    change = in_review(author, routes=[SPECIFIC])
    analysed(change.pk, tables(a_node("one", an_offer(input=schema)), a_node("two")))
    found = impact_by_rest(author, change.pk)
    condition = {
        "route": "reports", "condition": "input.content_type", "capability": "file_summary", "calls": 4
    }  # fmt: skip
    assert found["unknown"] == {"calls": 4, "conditions": [condition]}


def test_twenty_thousand_stored_calls_through_two_tables_of_a_thousand_routes():
    """All routes are for one capability: the hardest case. With progress, and in less than 20 s of CPU."""
    stored_all(
        {"payload": {"kind": f"k{n % 220}", "size": n % 977 / 8}, "at": clock.now() - timedelta(seconds=n * 4)}
        for n in range(20_000)
    )

    def rules(shift: int) -> list[dict[str, Any]]:
        found = []
        for n in range(1000):
            match: dict[str, Any] = {"capability": "file_summary", "input.kind": f"k{n % 200}"}
            match |= {"input.size": {"gte": n // 200 * 25, "lt": n // 200 * 25 + 25}}
            service = ("one", "two")[(n + shift * (n % 10 == 0)) % 2]
            found.append({"id": f"r{n}", "match": match, "strategy": {"type": "exact", "service": service}})
        return found

    told: list[tuple[int, int]] = []
    began = time.thread_time()
    report = replay.replayed(
        {"routes": rules(0), "fallback_rules": []},
        {"routes": rules(1), "fallback_rules": []},
        1,
        tables(*TWO),
        tell=lambda done, total: told.append((done, total)),
    )
    took_s = time.thread_time() - began
    print(f"20,000 calls, two tables of 1,000 routes: {took_s:.1f} s of CPU")
    assert took_s < 20
    assert report["sampled_calls"] == 20_000
    assert told[0] == (0, 20_000) and told[-1] == (20_000, 20_000) and len(told) > 50
    assert 1_500 < report["moved"]["total"] < 2_500, "a tenth of the routes of the calls that match one"
    json.dumps(report)
