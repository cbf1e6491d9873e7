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
