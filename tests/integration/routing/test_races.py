"""Two people at once, each on a connection of their own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from registry.errors import ReachError
from routing import review
from routing.core.review import Status
from routing.errors import IllegalMove, StaleBase
from routing.models import Approval, RouteChange, TableRevision
from tests.integration.routing.conftest import a_person
from tests.integration.routing.people import a_rule, analysed, approved

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*verbs: Callable[[], Any]) -> list[ReachError | None]:
    """Start all together; what each raised."""
    barrier = Barrier(len(verbs))

    def run(verb: Callable[[], Any]) -> ReachError | None:
        try:
            barrier.wait(timeout=10)
            verb()
        except ReachError as exc:
            return exc
        finally:
            connection.close()
        return None

    with ThreadPoolExecutor(len(verbs)) as threads:
        return list(threads.map(run, verbs))


@pytest.mark.parametrize("_round", range(5))
def test_of_two_publishers_one_wins(_round, author, colleague, approver):
    first = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    second = approved(author, approver, base_revision=0, routes=[a_rule("b")])
    raised = at_once(lambda: review.publish(first, by=author), lambda: review.publish(second, by=colleague))
    assert [type(exc) for exc in raised if exc] == [StaleBase]
    assert TableRevision.objects.count() == 1
    assert RouteChange.objects.filter(status=Status.PUBLISHED).count() == 1


def test_of_two_publishers_of_one_change_one_wins(author, colleague, approver):
    change = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    raised = at_once(lambda: review.publish(change, by=author), lambda: review.publish(change, by=colleague))
    assert [type(exc) for exc in raised if exc] == [IllegalMove]
    assert TableRevision.objects.count() == 1


@pytest.mark.parametrize("_round", range(5))
def test_an_edit_and_a_publish_at_once_never_publish_what_nobody_approved(_round, author, colleague, approver):
    change = approved(author, approver, base_revision=0, routes=[a_rule("seen")])
    raised = at_once(
        lambda: review.edit(change, by=author, routes=[a_rule("unseen")]), lambda: review.publish(change, by=colleague)
    )
    assert [type(exc) for exc in raised if exc] == [IllegalMove]
    for revision in TableRevision.objects.all():
        assert [route.route_id for route in revision.routes.all()] == ["seen"]


def test_of_two_approvals_one_stands(author, approver):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    review.submit(change.pk, by=author)
    analysed(change.pk)
    raised = at_once(*[lambda: review.approve(change.pk, by=approver)] * 2)
    assert [type(exc) for exc in raised if exc] == [IllegalMove]
    assert Approval.objects.count() == 1


@pytest.mark.parametrize("_round", range(3))
def test_concurrent_approvals_are_each_counted_once(_round, author, settings):
    """Three must agree, and four approve at the same moment: three stand, the fourth comes too late."""
    settings.REACH_APPROVALS = 3
    people = [a_person(f"approver-{n}", "approver") for n in range(4)]
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("a")])
    review.submit(change.pk, by=author)
    analysed(change.pk)
    raised = at_once(*[lambda who=who: review.approve(change.pk, by=who) for who in people])
    assert [type(exc) for exc in raised if exc] == [IllegalMove]
    change.refresh_from_db()
    assert change.status == Status.APPROVED
    assert Approval.objects.filter(withdrawn_at=None, digest=change.content_digest).count() == 3
    review.publish(change.pk, by=author)


@pytest.mark.parametrize("_round", range(5))
def test_an_edit_during_an_approval_leaves_no_approval_of_the_new_content(_round, author, approver):
    change = review.propose(author=author, title="t", base_revision=0, routes=[a_rule("seen")])
    review.submit(change.pk, by=author)
    analysed(change.pk)
    raised = at_once(
        lambda: review.edit(change.pk, by=author, routes=[a_rule("unseen")]),
        lambda: review.approve(change.pk, by=approver),
    )
    assert all(isinstance(exc, IllegalMove) for exc in raised if exc)
    change.refresh_from_db()
    assert change.status == Status.DRAFT
    assert not Approval.objects.filter(withdrawn_at=None).exists()
    review.submit(change.pk, by=author)
    with pytest.raises(IllegalMove):
        review.publish(change.pk, by=author)


@pytest.mark.parametrize("_round", range(3))
def test_a_rebase_and_publications_at_once(_round, author, colleague, approver):
    """Whoever comes first, revisions count up one by one and each holds what somebody approved."""
    first = approved(author, approver, base_revision=0, routes=[a_rule("a")])
    second = approved(colleague, approver, base_revision=0, routes=[a_rule("b")])
    at_once(
        lambda: review.publish(first, by=author),
        lambda: review.publish(second, by=colleague),
        lambda: review.rebase(second, by=colleague),
        lambda: review.rebase(first, by=author),
    )
    numbers = list(TableRevision.objects.order_by("number").values_list("number", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))
    for change in RouteChange.objects.filter(status=Status.PUBLISHED):
        standing = change.approvals.filter(withdrawn_at=None)
        assert [approval.digest for approval in standing] == [change.content_digest]


def test_many_publishers_and_glass_breakers_make_revisions_of_different_numbers(author, approver):
    boss = a_person("boss", "admin")
    changes = [approved(author, approver, base_revision=0, routes=[a_rule(f"r{n}")]) for n in range(3)]
    raised = at_once(
        *[lambda pk=pk: review.publish(pk, by=author) for pk in changes],
        *[lambda pk=pk: review.break_glass(pk, by=boss, reason="fire") for pk in changes],
    )
    assert sum(exc is None for exc in raised) == 1
    assert [revision.number for revision in TableRevision.objects.all()] == [1]
