"""Rebase, break-glass, comments, what pages ask: every step with its audit row."""

import pytest
from django.contrib.auth.models import Permission

from registry.errors import InvalidRequest
from registry.models import AuditEvent
from routing import review
from routing.core.review import Move, Status
from routing.errors import IllegalMove, NotAllowed, NotApproved, RebaseConflict, StaleBase
from routing.models import RouteChange
from routing.querysets import live_number, table_of
from tests.integration.routing.conftest import a_person
from tests.integration.routing.people import a_rule, analysed, api_of, approved, published

pytestmark = pytest.mark.django_db


@pytest.fixture
def fireman():
    user = a_person("fireman", "operator")
    user.user_permissions.add(Permission.objects.get(codename="break_glass_routechange"))
    return user


def actions(change_id):
    trail = AuditEvent.objects.filter(target=f"route_change:{change_id}").order_by("pk")
    return [event.action.removeprefix("route_change.") for event in trail]


def live_ids():
    return [route["id"] for route in table_of(live_number())["routes"]]


# --- Rebase ----------------------------------------------------------------------------------------------------------


def test_a_moved_base_is_rebased_approved_again_and_published(author, approver):
    mine = approved(author, approver, base_revision=0, routes=[a_rule("mine")])
    published(author, approver, base_revision=0, routes=[a_rule("theirs")])
    status, problem = api_of(author).post(f"route-changes/{mine}/publish")
    assert (status, problem["code"]) == (409, "conflict")
    status, change = api_of(author).post(f"route-changes/{mine}/rebase", {"comment": "they were first"})
    assert (status, change["status"], change["base_revision"], change["approvals_standing"]) == (200, "in_review", 1, 0)
    assert [approval["standing"] for approval in change["approvals"]] == [False]
    with pytest.raises(IllegalMove):
        review.publish(mine, by=author)
    analysed(mine)
    review.approve(mine, by=approver)
    review.publish(mine, by=author)
    assert live_ids() == ["theirs", "mine"]
    assert actions(mine) == ["propose", "submit", "approve", "rebase", "approve", "publish"]


def test_a_conflicting_rebase_names_the_conflicts_with_all_three_sides(author, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a"), a_rule("b")])
    mine = approved(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("a", priority=1)}])
    published(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("a", priority=2)}])
    status, problem = api_of(author).post(f"route-changes/{mine}/rebase")
    assert (status, problem["code"], problem["conflicts"]) == (409, "conflict", ["a"])
    (place,) = problem["three_way"]
    assert (place["base"], place["theirs"], place["mine"]) == (
        a_rule("a"),
        a_rule("a", priority=2),
        a_rule("a", priority=1),
    )
    _, change = api_of(author).get(f"route-changes/{mine}")
    assert (change["status"], change["base_revision"], change["approvals_standing"]) == ("approved", 1, 1)
    assert change["three_way"] == problem["three_way"]


def test_the_author_says_whose_routes_are_meant(author, colleague, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a")])
    mine = approved(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("a", priority=1)}])
    published(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("a", priority=2)}])
    with pytest.raises(NotAllowed, match="only its author"):
        review.rebase(mine, by=colleague, take={"a": "mine"})
    status, change = api_of(author).post(f"route-changes/{mine}/rebase", {"take": {"a": "mine"}})
    assert (status, change["routes"], change["three_way"]) == (200, [a_rule("a", priority=1)], [])
    assert api_of(author).post(f"route-changes/{mine}/rebase", {"take": {"a": "ours"}})[0] == 400


def test_anybody_who_may_author_rebases_where_nothing_conflicts(author, colleague, approver, viewer):
    mine = approved(author, approver, base_revision=0, routes=[a_rule("mine")])
    published(author, approver, base_revision=0, routes=[a_rule("theirs")])
    with pytest.raises(NotAllowed):
        review.rebase(mine, by=viewer)
    assert review.rebase(mine, by=colleague).base_revision == 1


def test_a_rebase_onto_the_same_base_drops_nothing(author, approver):
    mine = approved(author, approver, base_revision=0, routes=[a_rule("mine")])
    assert review.rebase(mine, by=author).status == Status.APPROVED
    assert review.approval_state(RouteChange.objects.get(pk=mine)) == (1, 1)


def test_what_is_published_is_not_rebased(author, approver):
    done = published(author, approver, base_revision=0, routes=[a_rule("a")])
    published(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("b")}])
    with pytest.raises(IllegalMove):
        review.rebase(done, by=author)


def test_a_conflict_lists_deletions_too(author, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a"), a_rule("b")])
    change = review.propose(
        author=author, title="t", base_revision=1, operations=[{"op": "put", **a_rule("a", priority=1)}]
    )
    published(author, approver, base_revision=1, operations=[{"op": "delete", "id": "a"}])
    with pytest.raises(RebaseConflict) as caught:
        review.rebase(change.pk, by=author)
    assert caught.value.three_way[0]["theirs"] is None


# --- Break glass -----------------------------------------------------------------------------------------------------


def test_glass_is_broken_with_a_permission_and_a_reason_and_stays_broken(author, fireman):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    path = f"route-changes/{change.pk}/publish"
    for user, body, expected in (
        (author, {"break_glass": True, "reason": "it burns"}, 403),
        (fireman, {"break_glass": True, "reason": "  "}, 400),
        (fireman, {}, 409),
        (fireman, {"break_glass": True, "reason": "it burns"}, 200),
    ):
        status, answer = api_of(user).post(path, body)
        assert status == expected, answer
    assert (answer["status"], answer["broke_glass"], answer["published_revision"]) == ("published", "it burns", 1)
    assert actions(change.pk) == ["propose", "break_glass"]
    assert answer["history"][-1]["comment"] == "it burns"
    _, listed = api_of(author).get("route-changes")
    assert listed["results"][0]["broke_glass"] == "it burns"


def test_broken_glass_does_not_overwrite_what_others_published(author, approver, fireman):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    published(author, approver, base_revision=0, routes=[a_rule("b")])
    with pytest.raises(StaleBase):
        review.break_glass(change.pk, by=fireman, reason="it burns")


# --- Comments, and what pages ask ------------------------------------------------------------------------------------


def test_comments_are_part_of_the_history(author, approver, viewer):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    path = f"route-changes/{change.pk}/comment"
    status, shown = api_of(approver).post(path, {"comment": "why not glob?"})
    assert (status, shown["history"][-1]["comment"]) == (200, "why not glob?")
    assert api_of(approver).post(path, {"comment": " "})[0] == 400
    review.withdraw(change.pk, by=author)
    assert api_of(author).post(path, {"comment": "better idea"})[0] == 200
    with pytest.raises(NotAllowed):
        review.comment_on(change.pk, by=viewer, comment="hm")


def test_a_page_shows_buttons_only_to_those_who_may(author, approver, viewer):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    review.submit(change.pk, by=author)
    change.refresh_from_db()
    assert "their own" in review.moves_for(change, author)[Move.APPROVE]
    assert review.moves_for(change, approver)[Move.APPROVE] is None
    assert all(review.moves_for(change, viewer).values())


def test_the_inbox_holds_what_waits_for_this_person(author, approver, viewer):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    assert not review.waiting_for(approver).exists()
    review.submit(change.pk, by=author)
    assert list(review.waiting_for(approver)) == [change]
    assert not review.waiting_for(author).exists()
    assert not review.waiting_for(viewer).exists()


def test_two_changes_on_one_base(author, colleague, approver):
    first = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    second = approved(colleague, approver, base_revision=0, routes=[a_rule("b")])
    review.publish(first, by=author)
    with pytest.raises(StaleBase):
        review.publish(second, by=colleague)
    review.rebase(second, by=colleague)
    with pytest.raises((NotApproved, IllegalMove)):
        review.publish(second, by=colleague)


def test_a_change_tells_who_has_taken_it_back(author, approver):
    done = published(author, approver, base_revision=0, routes=[a_rule("a")])
    undo = review.revert(done, by=author)
    _, shown = api_of(author).get(f"route-changes/{done}")
    assert shown["reverted_by"] is None
    review.submit(undo.pk, by=author)
    analysed(undo.pk)
    review.approve(undo.pk, by=approver)
    review.publish(undo.pk, by=author)
    _, shown = api_of(author).get(f"route-changes/{done}")
    assert shown["reverted_by"] == undo.pk


def test_names_that_nobody_registered_are_warnings(author):
    rule = a_rule("a", strategy={"type": "weighted_random", "weights": {"ghost": 1}})
    status, change = api_of(author).post("route-changes", {"title": "t", "base_revision": 0, "routes": [rule]})
    assert status == 201
    assert [(w["path"], w["route"]) for w in change["warnings"]] == [
        ("/routes/0/match/capability", "a"),
        ("/routes/0/strategy/weights/ghost", "a"),
    ]


@pytest.mark.parametrize(
    ("match", "path"),
    [
        ({"input.x": {"eq": "a", "ne": "a"}}, "match/input.x"),
        ({"input.x": {"gt": 5, "lt": 5}}, "match/input.x"),
        ({"capability": "file_[ab"}, "match/capability"),
    ],
)
def test_what_can_never_match_is_refused(author, approver, match, path):
    for proposal, where in (
        ({"routes": [a_rule("a", match=match)]}, "/routes/0"),
        ({"operations": [{"op": "put", **a_rule("a", match=match)}]}, "/operations/0"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            review.propose(author=author, title="t", base_revision=0, **proposal)
        assert [error["path"] for error in caught.value.errors] == [f"{where}/{path}"]


def test_what_is_live_already_does_not_stop_other_changes(author, approver):
    """A route that was published before its mistake could be seen."""
    from routing.models import Route

    published(author, approver, base_revision=0, routes=[a_rule("old")])
    old = a_rule("old", match={"input.x": {"eq": 1, "ne": 1}})
    Route.objects.update(document=old)
    review.propose(author=author, title="t", base_revision=1, operations=[{"op": "put", **a_rule("b")}])
    review.propose(author=author, title="t", base_revision=1, routes=[old, a_rule("b")])
