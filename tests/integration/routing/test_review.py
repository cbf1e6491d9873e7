import pytest

from registry.errors import InvalidRequest, NotFound
from registry.models import AuditEvent, SnapshotVersion
from routing import review
from routing.core.review import Status
from routing.errors import CannotRevert, IllegalMove, NotAllowed, NotApproved, OwnChange, StaleBase
from routing.models import RouteChange, TableRevision
from routing.querysets import live_number, table_of
from tests.integration.routing.people import a_rule, analysed, approved, published


def propose(author, **more):
    return review.propose(author=author, title="t", **{"base_revision": 0, "routes": [a_rule("a")], **more})


def live_ids():
    return [route["id"] for route in table_of(live_number())["routes"]]


def test_the_whole_way(author, approver):
    rule = {"condition": "no_available_node", "action": "return_503", "wait_before_retry_ms": 500}
    change = propose(author, routes=[a_rule("a"), a_rule("b", priority=5)], fallback_rules=[rule])
    assert change.status == Status.DRAFT
    assert review.submit(change.pk, by=author).status == Status.IN_REVIEW
    analysed(change.pk)
    assert review.approve(change.pk, by=approver, comment="fine").status == Status.APPROVED
    before = SnapshotVersion.objects.get().version
    done, version = review.publish(change.pk, by=author)
    assert (done.status, done.published_revision_id, version) == (Status.PUBLISHED, 1, before + 1)
    assert table_of(1) == {"routes": [a_rule("a"), a_rule("b", priority=5)], "fallback_rules": [rule]}
    revision = TableRevision.objects.get()
    assert (revision.published_by, revision.note) == (author, "t")
    trail = AuditEvent.objects.filter(target=f"route_change:{change.pk}").order_by("pk")
    assert [(e.actor, e.action) for e in trail] == [
        ("user:author", "route_change.propose"),
        ("user:author", "route_change.submit"),
        ("user:approver", "route_change.approve"),
        ("user:author", "route_change.publish"),
    ]


def test_nobody_approves_their_own(author):
    change = propose(author)
    review.submit(change.pk, by=author)
    with pytest.raises(OwnChange):
        review.approve(change.pk, by=author)


def test_who_lacks_the_permission_may_not(author, colleague, viewer, approver):
    change = propose(author)
    with pytest.raises(NotAllowed):
        propose(viewer)
    with pytest.raises(NotAllowed):
        review.submit(change.pk, by=colleague)
    review.submit(change.pk, by=author)
    with pytest.raises(NotAllowed):
        review.approve(change.pk, by=colleague)
    with pytest.raises(NotAllowed):
        review.reject(change.pk, by=colleague)
    analysed(change.pk)
    review.approve(change.pk, by=approver)
    with pytest.raises(NotAllowed):
        review.publish(change.pk, by=viewer)
    assert review.publish(change.pk, by=colleague).change.status == Status.PUBLISHED


def test_an_edit_drops_approvals(author, approver):
    change_id = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    change = review.edit(change_id, by=author, routes=[a_rule("b")])
    assert change.status == Status.DRAFT
    assert not change.approvals.filter(withdrawn_at=None).exists()
    with pytest.raises(IllegalMove):
        review.publish(change_id, by=author)
    review.submit(change_id, by=author)
    analysed(change_id)
    review.approve(change_id, by=approver)
    review.publish(change_id, by=author)
    assert live_ids() == ["b"]


def test_only_what_was_approved_is_published(author, approver):
    """Whatever else rewrites the row: the approval is of the content that was read."""
    change_id = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    RouteChange.objects.filter(pk=change_id).update(document={"routes": [a_rule("evil")], "fallback_rules": []})
    with pytest.raises(NotApproved):
        review.publish(change_id, by=author)
    assert live_number() == 0


def test_an_approval_by_who_became_the_author_does_not_count(author, approver):
    change_id = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    RouteChange.objects.filter(pk=change_id).update(author=approver)
    with pytest.raises(NotApproved):
        review.publish(change_id, by=author)


def test_a_moved_base_is_not_published(author, approver):
    first = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    second = approved(author, approver, base_revision=0, routes=[a_rule("b")])
    review.publish(first, by=author)
    with pytest.raises(StaleBase) as caught:
        review.publish(second, by=author)
    assert (caught.value.base, caught.value.live) == (0, 1)
    assert live_ids() == ["a"]


def test_operations_apply_to_the_base(author, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a"), a_rule("b")])
    operations = [
        {"op": "put", **a_rule("a", priority=9)},
        {"op": "put", **a_rule("c")},
        {"op": "delete", "id": "b"},
    ]
    published(author, approver, base_revision=1, operations=operations)
    assert table_of(2)["routes"] == [a_rule("a", priority=9), a_rule("c")]


def test_an_edit_of_the_base_applies_operations_anew(author, approver):
    change = propose(author, routes=None, operations=[{"op": "put", **a_rule("mine")}])
    published(author, approver, base_revision=0, routes=[a_rule("theirs")])
    change = review.edit(change.pk, by=author, base_revision=1)
    assert [route["id"] for route in change.document["routes"]] == ["theirs", "mine"]


def test_an_edit_of_the_base_alone_would_undo_others_where_the_table_is_whole(author, approver):
    change = propose(author)
    published(author, approver, base_revision=0, routes=[a_rule("theirs")])
    with pytest.raises(InvalidRequest, match="whole table"):
        review.edit(change.pk, by=author, base_revision=1)


@pytest.mark.parametrize(
    ("proposal", "path"),
    [
        ({"base_revision": 1}, "/base_revision"),
        ({"routes": None}, "/routes"),
        ({"operations": [{"op": "delete", "id": "a"}]}, "/routes"),
        ({"routes": None, "operations": [{"op": "delete", "id": "a"}]}, "/operations/0/id"),
        ({"routes": None, "operations": [{"op": "put", **a_rule("a")}], "fallback_rules": []}, "/fallback_rules"),
        ({"routes": [a_rule("a", match={"input.x": {"gte": "5"}})]}, "/routes/0/match/input.x/gte"),
    ],
)
def test_a_malformed_proposal_is_refused(author, proposal, path):
    with pytest.raises(InvalidRequest) as caught:
        propose(author, **proposal)
    assert [error["path"] for error in caught.value.errors] == [path]
    assert not RouteChange.objects.exists()


def test_reject_and_withdraw_are_final(author, approver):
    rejected, withdrawn = propose(author), propose(author)
    review.submit(rejected.pk, by=author)
    review.reject(rejected.pk, by=approver, comment="too wide")
    review.withdraw(withdrawn.pk, by=author)
    for change in (rejected, withdrawn):
        with pytest.raises(IllegalMove):
            review.submit(change.pk, by=author)
        with pytest.raises(IllegalMove):
            review.edit(change.pk, by=author, title="again")


def test_an_unknown_change(author):
    with pytest.raises(NotFound):
        review.submit(10**30, by=author)


def test_a_revert_undoes_only_its_change_and_keeps_later_ones(author, colleague, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a"), a_rule("b")])
    wrong = published(
        author,
        approver,
        base_revision=1,
        operations=[{"op": "delete", "id": "a"}, {"op": "put", **a_rule("b", priority=1)}],
    )
    published(author, approver, base_revision=2, operations=[{"op": "put", **a_rule("c")}])
    change = review.revert(wrong, by=colleague)
    assert (change.status, change.reverts_id, change.base_revision, change.author) == (
        Status.DRAFT,
        wrong,
        3,
        colleague,
    )
    review.submit(change.pk, by=colleague)
    analysed(change.pk)
    review.approve(change.pk, by=approver)
    review.publish(change.pk, by=colleague)
    assert {route["id"]: route for route in table_of(4)["routes"]} == {i: a_rule(i) for i in "abc"}
    with pytest.raises(CannotRevert):
        review.revert(wrong, by=colleague)


def test_a_revert_of_what_changed_again_names_the_conflicts(author, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a")])
    wrong = published(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("a", priority=1)}])
    published(author, approver, base_revision=2, operations=[{"op": "put", **a_rule("a", priority=2)}])
    with pytest.raises(CannotRevert) as caught:
        review.revert(wrong, by=author)
    assert caught.value.conflicts == ("a",)


def test_only_a_published_change_is_reverted(author):
    with pytest.raises(IllegalMove):
        review.revert(propose(author).pk, by=author)
