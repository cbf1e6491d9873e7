"""Changing the route table, with four eyes: each verb is one transaction with its audit row.

Who may do what, and from where to where, is decided in `core/review.py`; this file fetches, asks and records.
"""

from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from receipts.core.envelope import digest_of
from registry import audit as trail
from registry import changes
from registry.errors import Conflict, InvalidRequest, NotFound
from registry.models import AuditEvent
from routing.core.edits import Document, applied, by_id, undone
from routing.core.review import Move, Person, Status, after, check_may, check_may_propose
from routing.errors import CannotRevert, NotApproved, StaleBase
from routing.models import Approval, Route, RouteChange, TableRevision
from routing.querysets import live_number, table_of
from routing.rules import check_operations, parse_document

PUBLISH_LOCK = 7_401_228_015
"""PostgreSQL advisory lock: one publisher at a time, so that the live revision stays what it was checked against."""


class Published(NamedTuple):
    """A published change, and the snapshot version from which dispatchers use it."""

    change: RouteChange
    version: int


def propose(
    *,
    author: User,
    title: str,
    base_revision: int,
    description: str = "",
    routes: list[Any] | None = None,
    fallback_rules: list[Any] | None = None,
    operations: list[Any] | None = None,
) -> RouteChange:
    """Draft the next table, either whole (`routes`, `fallback_rules`) or as `operations` on the base revision.

    Raises InvalidRequest with every mistake, NotAllowed.
    """
    check_may_propose(person(author))
    document = proposed_table(base_revision, routes, fallback_rules, operations)
    with transaction.atomic():
        return draft(
            author=author,
            title=title,
            description=description,
            base_revision=base_revision,
            document=document,
            operations=operations,
        )


def draft(*, author: User, title: str, base_revision: int, document: Document, **more: Any) -> RouteChange:
    """Record a new draft of a checked table. Whether `author` may propose is the caller's question."""
    change = RouteChange.objects.create(
        author=author, title=title, base_revision=base_revision, document=document, **more
    )
    audit(author, "propose", change, title=title, base_revision=base_revision, digest=content_digest(change))
    return change


@transaction.atomic
def edit(
    change_id: int,
    *,
    by: User,
    title: str | None = None,
    description: str | None = None,
    base_revision: int | None = None,
    routes: list[Any] | None = None,
    fallback_rules: list[Any] | None = None,
    operations: list[Any] | None = None,
) -> RouteChange:
    """Replace what is given; approvals are dropped and the change is a draft again.

    Operations are applied anew when only the base moves; a whole table has to be sent again with it.
    """
    change = locked(change_id)
    check_may(Move.EDIT, person(by), author_id=change.author_id)
    status = after(Status(change.status), Move.EDIT)
    new_content = routes is not None or operations is not None or fallback_rules is not None
    if base_revision is not None and not new_content and change.operations is None:
        message = "send the whole table that is meant for this base (or operations) with it"
        raise InvalidRequest(f"/base_revision: {message}", [{"path": "/base_revision", "message": message}])
    if new_content or base_revision is not None:
        change.base_revision = change.base_revision if base_revision is None else base_revision
        change.operations = operations if new_content else change.operations
        change.document = proposed_table(change.base_revision, routes, fallback_rules, change.operations)
    change.title = change.title if title is None else title
    change.description = change.description if description is None else description
    change.approvals.filter(withdrawn_at=None).update(withdrawn_at=timezone.now())
    settle(change, status)
    audit(by, Move.EDIT, change, digest=content_digest(change))
    return change


def submit(change_id: int, *, by: User, comment: str = "") -> RouteChange:
    """Ask for review."""
    return moved(change_id, Move.SUBMIT, by=by, comment=comment)


def reject(change_id: int, *, by: User, comment: str = "") -> RouteChange:
    """Refuse a change for good."""
    return moved(change_id, Move.REJECT, by=by, comment=comment)


def withdraw(change_id: int, *, by: User, comment: str = "") -> RouteChange:
    """Take one's own change back for good."""
    return moved(change_id, Move.WITHDRAW, by=by, comment=comment)


@transaction.atomic
def approve(change_id: int, *, by: User, comment: str = "") -> RouteChange:
    """Say yes to somebody else's change as it now reads: the approval keeps the digest of its content."""
    change = locked(change_id)
    check_may(Move.APPROVE, person(by), author_id=change.author_id)
    status = after(Status(change.status), Move.APPROVE)
    Approval.objects.create(change=change, approver=by, comment=comment, digest=content_digest(change))
    settle(change, status)
    audit(by, Move.APPROVE, change, comment=comment, digest=content_digest(change))
    return change


@transaction.atomic
def publish(change_id: int, *, by: User, comment: str = "") -> Published:
    """Make an approved change the next revision. Two publishers at once: one wins, the other meets a moved base.

    Raises NotAllowed, IllegalMove, StaleBase, NotApproved.
    """
    hold_publish_lock()
    change = locked(change_id)
    check_may(Move.PUBLISH, person(by), author_id=change.author_id)
    status = after(Status(change.status), Move.PUBLISH)
    if (live := live_number()) != change.base_revision:
        raise StaleBase(change.base_revision, live)
    standing = change.approvals.filter(withdrawn_at=None, digest=content_digest(change))
    if not standing.exclude(approver_id=change.author_id).exists():
        raise NotApproved("no standing approval by another person covers the content as it now reads")
    parse_document(change.document, max_routes=settings.REACH_MAX_ROUTES)
    change.published_revision = record_revision(live + 1, change.document, by=by, note=change.title)
    settle(change, status)
    audit(by, Move.PUBLISH, change, comment=comment, revision=live + 1, digest=content_digest(change))
    return Published(change, changes.bump())


@transaction.atomic
def revert(change_id: int, *, by: User, comment: str = "") -> RouteChange:
    """Draft a new change that undoes only what this published one did, and keeps what came later.

    Raises CannotRevert naming the routes that were changed again since.
    """
    check_may_propose(person(by))
    change = locked(change_id)
    if change.published_revision_id is None:
        raise Conflict(f"cannot revert a route change that is {change.status}: it was never published")
    live = live_number()
    result = undone(table_of(change.base_revision), table_of(change.published_revision_id), table_of(live))
    if not result.is_change:
        raise CannotRevert("the change changed nothing, so there is nothing to undo")
    if result.conflicts:
        names = ", ".join(result.conflicts)
        raise CannotRevert(f"changed again since: {names}; propose a change instead", result.conflicts)
    return draft(
        author=by,
        title=f"Revert “{change.title}”",
        description=comment,
        base_revision=live,
        document=result.table,
        reverts=change,
    )


# --- What the verbs are made of --------------------------------------------------------------------------------------


def person(user: User) -> Person:
    """The facts about a user that the rules ask for."""
    return Person(
        user.pk,
        may_author=user.has_perm("routing.add_routechange"),
        may_approve=user.has_perm("routing.approve_routechange"),
    )


def locked(change_id: int) -> RouteChange:
    """The change, its row locked until the end of the transaction. Raises NotFound."""
    change = RouteChange.objects.select_for_update(of=("self",)).select_related("author").filter(pk=change_id).first()
    if change is None:
        raise NotFound(f"no route change {change_id}")
    return change


@transaction.atomic
def moved(change_id: int, move: Move, *, by: User, comment: str) -> RouteChange:
    """A move that does nothing but change the status."""
    change = locked(change_id)
    check_may(move, person(by), author_id=change.author_id)
    return carry(change, move, by=by, comment=comment)


def carry(change: RouteChange, move: Move, *, by: User, comment: str = "") -> RouteChange:
    """Make a plain move of a locked change, with its audit row. Whether `by` may is the caller's question."""
    settle(change, after(Status(change.status), move))
    audit(by, move, change, comment=comment)
    return change


def settle(change: RouteChange, status: Status) -> None:
    change.status = status
    change.updated_at = timezone.now()
    change.save()


def proposed_table(
    base_revision: int,
    routes: list[Any] | None,
    fallback_rules: list[Any] | None,
    operations: list[Any] | None,
) -> Document:
    """The whole table that is proposed, checked. Raises InvalidRequest with every mistake."""
    if (live := live_number()) < base_revision or base_revision < 0:
        message = f"no such revision; live is {live}"
        raise InvalidRequest(f"/base_revision: {message}", [{"path": "/base_revision", "message": message}])
    if (routes is None) == (operations is None):
        message = "send either routes (the whole table) or operations"
        raise InvalidRequest(message, [{"path": "/routes", "message": message}])
    if operations is None:
        document: Document = {"routes": routes, "fallback_rules": fallback_rules or []}
    elif fallback_rules is not None:
        message = "goes with routes, the whole table; operations leave it as it is"
        raise InvalidRequest(f"/fallback_rules: {message}", [{"path": "/fallback_rules", "message": message}])
    else:
        base = table_of(base_revision)
        check_operations(operations, known_ids=by_id(base), base_revision=base_revision)
        document = applied(base, operations)
    parse_document(document, max_routes=settings.REACH_MAX_ROUTES)
    return document


def content_digest(change: RouteChange) -> str:
    """What an approval approves: the table and the revision it replaces."""
    return digest_of([change.base_revision, change.document])


def hold_publish_lock() -> None:
    """Wait until no other transaction publishes, and keep others waiting until this one ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [PUBLISH_LOCK])


def record_revision(number: int, document: Document, *, by: User, note: str) -> TableRevision:
    """Write one revision with its routes. Call `changes.bump()` after it."""
    revision = TableRevision.objects.create(
        number=number, fallback_rules=document["fallback_rules"], published_by=by, note=note
    )
    Route.objects.bulk_create(
        Route(revision=revision, route_id=route["id"], position=position, document=route)
        for position, route in enumerate(document["routes"])
    )
    return revision


def audit(by: User, action: str, change: RouteChange, **detail: Any) -> None:
    told = {key: value for key, value in detail.items() if value != ""}
    trail.audit(f"user:{by.get_username()}", f"route_change.{action}", audit_target(change), **told)


def audit_target(change: RouteChange) -> str:
    return f"route_change:{change.pk}"


def history(change: RouteChange) -> QuerySet[AuditEvent]:
    """What was done to a change, in order."""
    return AuditEvent.objects.filter(at__gte=change.created_at, target=audit_target(change)).order_by("pk")
