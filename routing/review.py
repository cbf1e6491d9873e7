"""Changing the route table, with four eyes: each verb is one transaction with its audit row.

Who may do what, from where to where, and how many must agree is decided in `core/review.py`; this file fetches, asks
and records. What a change would do is worked out by a worker (`impact.py`) and is known before anybody approves.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from registry import audit as trail
from registry import changes, clock
from registry.errors import Conflict, InvalidRequest, NotFound
from registry.models import AuditEvent
from routing import impact
from routing.core.edits import Document, Place, applied, by_id, difference, merged, three_way, undone
from routing.core.review import (
    ApprovalRules,
    Move,
    Person,
    Status,
    after,
    after_approval,
    approvals_needed,
    check_may,
    check_may_propose,
    moves_of,
    why_large,
)
from routing.errors import (
    AlreadyApproved,
    CannotRevert,
    ContentChanged,
    ImpactPending,
    NotAllowed,
    NotApproved,
    RebaseConflict,
    StaleBase,
    Unacknowledged,
)
from routing.models import Approval, Impact, Route, RouteChange, TableRevision, Watch
from routing.querysets import live_number, table_of
from routing.rules import check_operations, parse_document
from routing.sense import check_operations_make_sense, check_table

WATCHER = "reach-watch"
"""The user in whose name the reach takes back what turned out badly: nobody can log in as it."""
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
    auto_revert: bool = False,
) -> RouteChange:
    """Draft the next table, either whole (`routes`, `fallback_rules`) or as `operations` on the base revision.

    With `auto_revert` the reach takes it back by itself when the calls that it moves fare worse.

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
            auto_revert=auto_revert,
        )


def draft(*, author: User, title: str, base_revision: int, document: Document, **more: Any) -> RouteChange:
    """Record a new draft of a checked table. Whether `author` may propose is the caller's question."""
    change = RouteChange.objects.create(
        author=author, title=title, base_revision=base_revision, document=document, **more
    )
    audit(author, "propose", change, title=title, base_revision=base_revision, digest=change.content_digest)
    impact.ask(change)
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
    auto_revert: bool | None = None,
    digest: str | None = None,
) -> RouteChange:
    """Replace what is given; approvals are dropped and the change is a draft again.

    Operations are applied anew when only the base moves; a whole table has to be sent again with it. `digest`: the
    content that the edit began with, where that is known. Raises NotAllowed, IllegalMove, ContentChanged,
    InvalidRequest with every mistake.
    """
    change = locked(change_id)
    check_may(Move.EDIT, person(by), author_id=change.author_id)
    if digest is not None and digest != change.content_digest:
        raise ContentChanged
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
    change.auto_revert = change.auto_revert if auto_revert is None else auto_revert
    drop_approvals(change)
    settle(change, status)
    audit(by, Move.EDIT, change, digest=change.content_digest)
    impact.ask(change)
    return change


@transaction.atomic
def rebase(change_id: int, *, by: User, comment: str = "", take: Mapping[str, str] | None = None) -> RouteChange:
    """Bring a change onto the live table: what others have published meanwhile stays. Approvals are dropped.

    `take` says for routes that both sides have edited whose is meant, `mine` or `theirs`; that is the author's to say.
    Raises NotAllowed, IllegalMove, RebaseConflict with what each side has made of them.
    """
    change = locked(change_id)
    check_may(Move.REBASE, person(by), author_id=change.author_id)
    if take and by.pk != change.author_id:
        raise NotAllowed("only its author may say whose routes are meant")
    status, live = after(Status(change.status), Move.REBASE), live_number()
    if live == change.base_revision:
        return change
    result = merged(table_of(change.base_revision), table_of(live), change.document, take)
    if result.conflicts:
        raise RebaseConflict(result.conflicts)
    parse_document(result.table, max_routes=settings.REACH_MAX_ROUTES)
    was, change.base_revision = change.base_revision, live
    change.document, change.operations = result.table, None
    drop_approvals(change)
    settle(change, status)
    audit(by, Move.REBASE, change, comment=comment, was=was, base_revision=live, digest=change.content_digest)
    impact.ask(change)
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


def approve(
    change_id: int, *, by: User, comment: str = "", acknowledge: bool = False, digest: str | None = None
) -> RouteChange:
    """Say yes to somebody else's change: the approval keeps the digests of the content and the impact that it saw.

    `acknowledge`: routes that lose calls to others are meant to. `digest`: the content that was looked at, where that
    is known. Raises NotAllowed, IllegalMove, ImpactPending, Unacknowledged, ContentChanged, AlreadyApproved.
    """
    try:
        return approved(change_id, by=by, comment=comment, acknowledge=acknowledge, digest=digest)
    except ImpactPending:
        impact.refresh(change_id)  # what is too old is made anew, outside of the transaction that has failed
        raise


@transaction.atomic
def approved(change_id: int, *, by: User, comment: str, acknowledge: bool, digest: str | None) -> RouteChange:
    change = locked(change_id)
    check_may(Move.APPROVE, person(by), author_id=change.author_id)
    after(Status(change.status), Move.APPROVE)
    content = change.content_digest
    if digest is not None and digest != content:
        raise ContentChanged
    seen, report = impact.report_of(change)
    if (shadowed := report["shadowed_routes"]) and not acknowledge:
        raise Unacknowledged(shadowed)
    standing = standing_approvals(change)
    if standing.filter(approver=by).exists():
        raise AlreadyApproved
    Approval.objects.create(change=change, approver=by, comment=comment, digest=content, impact_digest=seen.digest)
    status = after_approval(Status(change.status), standing=standing.count(), needed=needed(change, seen))
    settle(change, status)
    facts: dict[str, Any] = {"digest": content, "impact_digest": seen.digest}
    if shadowed:
        facts["acknowledged"] = sorted({one["route"] for one in shadowed})
    audit(by, Move.APPROVE, change, comment=comment, **facts)
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
    check_base(change)
    asked = needed(change, Impact.objects.filter(change=change, covers=change.content_digest).first())
    if (count := standing_approvals(change).count()) < asked:
        raise NotApproved(f"{count} of {asked} approvals by other people stand for the content as it now reads")
    return put_live(change, status, Move.PUBLISH, by=by, comment=comment)


@transaction.atomic
def break_glass(change_id: int, *, by: User, reason: str) -> Published:
    """Publish in an emergency, whoever has approved; the reason stays on the change.

    Raises NotAllowed, IllegalMove, StaleBase, InvalidRequest without a reason.
    """
    hold_publish_lock()
    change = locked(change_id)
    check_may(Move.BREAK_GLASS, person(by), author_id=change.author_id)
    status = after(Status(change.status), Move.BREAK_GLASS)
    change.broke_glass = said(reason, "reason")
    check_base(change)
    return put_live(change, status, Move.BREAK_GLASS, by=by, reason=reason)


@transaction.atomic
def revert(change_id: int, *, by: User, comment: str = "") -> RouteChange:
    """Draft a new change that undoes only what this published one did, and keeps what came later.

    Raises NotAllowed, IllegalMove, CannotRevert naming the routes that were changed again since.
    """
    change = locked(change_id)
    check_may(Move.REVERT, person(by), author_id=change.author_id)
    after(Status(change.status), Move.REVERT)
    return draft_of_undoing(change, by=by, comment=comment)


@transaction.atomic
def revert_in_review(change_id: int, *, by: User, comment: str) -> RouteChange:
    """`revert` in one step: the change that undoes it is in review at once, and says why.

    Raises what `revert` raises, and InvalidRequest without a reason.
    """
    return submit(revert(change_id, by=by, comment=said(comment, "comment")).pk, by=by)


@transaction.atomic
def restore(change_id: int, *, why: str) -> Published:
    """The reach itself takes back a published change that asked for it: whoever approved it has approved this, too.

    Raises CannotRevert, Conflict.
    """
    hold_publish_lock()
    by = watcher()
    bad = locked(change_id)
    after(Status(bad.status), Move.REVERT)
    if not bad.auto_revert:
        raise Conflict("the change has not asked to be taken back unasked")
    change = draft_of_undoing(bad, by=by, comment=why)
    check_may(Move.RESTORE, person(by), author_id=change.author_id)
    return put_live(change, after(Status(change.status), Move.RESTORE), Move.RESTORE, by=by, comment=why)


@transaction.atomic
def comment_on(change_id: int, *, by: User, comment: str) -> RouteChange:
    """Say something about a change, whatever its status. Raises InvalidRequest when nothing is said."""
    change = locked(change_id)
    check_may(Move.COMMENT, person(by), author_id=change.author_id)
    after(Status(change.status), Move.COMMENT)
    audit(by, Move.COMMENT, change, comment=said(comment, "comment"))
    return change


# --- What pages ask --------------------------------------------------------------------------------------------------


def moves_for(change: RouteChange, user: User) -> Mapping[Move, str | None]:
    """What can be done with a change where it stands, each with the reason why this person may not (None: they may)."""
    return moves_of(Status(change.status), person(user), author_id=change.author_id)


def waiting_for(user: User) -> QuerySet[RouteChange]:
    """Changes in review that this person could approve and has not yet: their inbox."""
    if not person(user).may_approve:
        return RouteChange.objects.none()
    done = Approval.objects.filter(approver=user, withdrawn_at=None).values("change")
    return RouteChange.objects.filter(status=Status.IN_REVIEW).exclude(author=user).exclude(pk__in=done)


def ready_to_publish(user: User) -> QuerySet[RouteChange]:
    """Changes of this person that others have approved: their move."""
    return RouteChange.objects.filter(status=Status.APPROVED, author=user)


def drafts_of(user: User) -> QuerySet[RouteChange]:
    """Changes of this person that nobody has been asked to look at."""
    return RouteChange.objects.filter(status=Status.DRAFT, author=user)


def approval_state(change: RouteChange) -> tuple[int, int]:
    """How many approvals stand for the content as it now reads, and how many it needs as far as that is known."""
    known = Impact.objects.filter(change=change, covers=change.content_digest).first()
    return standing_approvals(change).count(), needed(change, known)


def sides_of(change: RouteChange) -> Sequence[Place]:
    """Base, live table and proposal side by side, where the base of a change that is not published has moved."""
    live = live_number()
    if change.published_revision_id is not None or live == change.base_revision:
        return ()
    return three_way(table_of(change.base_revision), table_of(live), change.document)


# --- What the verbs are made of --------------------------------------------------------------------------------------


def person(user: User) -> Person:
    """The facts about a user that the rules ask for."""
    return Person(
        user.pk,
        may_author=user.has_perm("routing.add_routechange"),
        may_approve=user.has_perm("routing.approve_routechange"),
        may_break_glass=user.has_perm("routing.break_glass_routechange"),
        is_reach=user.username == WATCHER and not user.is_active,
    )


def watcher() -> User:
    """The reach itself, as the author and publisher of what it takes back."""
    user, is_new = User.objects.get_or_create(username=WATCHER, defaults={"is_active": False})
    if is_new:
        user.set_unusable_password()
        user.save(update_fields=["password"])
    return user


def approval_rules() -> ApprovalRules:
    return ApprovalRules(
        approvals=settings.REACH_APPROVALS,
        approvals_when_large=settings.REACH_APPROVALS_WHEN_LARGE,
        large_share=settings.REACH_IMPACT_LARGE_SHARE,
        large_calls=settings.REACH_IMPACT_LARGE_CALLS,
    )


def needed(change: RouteChange, seen: Impact | None) -> int:
    """How many approvals a change needs, going by what is known of its impact."""
    return approvals_needed(approval_rules(), large=large_because(seen) is not None)


def large_because(seen: Impact | None) -> str | None:
    """What makes an impact large, in a sentence; None where it is not, or not known."""
    if seen is None or seen.report is None:
        return None
    report = seen.report
    return why_large(
        approval_rules(),
        moved=report["moved"]["total"],
        sampled=report["sampled_calls"],
        unprovided=len(report["unprovided_capabilities"]),
    )


def standing_approvals(change: RouteChange) -> QuerySet[Approval]:
    """Approvals by other people that are of exactly this content."""
    standing = change.approvals.filter(withdrawn_at=None, digest=change.content_digest)
    return standing.exclude(approver_id=change.author_id)


def drop_approvals(change: RouteChange) -> None:
    change.approvals.filter(withdrawn_at=None).update(withdrawn_at=timezone.now())


def check_base(change: RouteChange) -> None:
    """Raise StaleBase unless the change is made for the live table. Call it under the publish lock."""
    if (live := live_number()) != change.base_revision:
        raise StaleBase(change.base_revision, live)


def put_live(change: RouteChange, status: Status, move: Move, *, by: User, **said: Any) -> Published:
    """Make the change the next revision, and begin to watch what becomes of its calls."""
    parse_document(change.document, max_routes=settings.REACH_MAX_ROUTES)
    number = change.base_revision + 1
    change.published_revision = record_revision(number, change.document, by=by, note=change.title)
    settle(change, status)
    audit(by, move, change, **said, revision=number, digest=change.content_digest)
    begin_watch(change)
    return Published(change, changes.bump(parts=[changes.Part.ROUTES]))


def begin_watch(change: RouteChange) -> None:
    """Have the calls watched that the change moves: on routes that it touches, and those that its impact named."""
    edit = difference(table_of(change.base_revision), change.document)
    touched = [route["id"] for part in ("added", "removed", "changed") for route in edit[part]]
    seen = Impact.objects.filter(change=change, covers=change.content_digest).first()
    moved = seen.report["scope"] if seen is not None and seen.report else {"before": [], "after": []}
    now = clock.now()
    Watch.objects.create(
        change=change,
        started_at=now,
        ends_at=now + timedelta(seconds=settings.REACH_WATCH_S),
        due_at=now + timedelta(seconds=settings.REACH_WATCH_INTERVAL_S),
        scope={"routes": touched, **moved},
    )


def draft_of_undoing(change: RouteChange, *, by: User, comment: str) -> RouteChange:
    """A draft that takes a published change back out of the live table."""
    live = live_number()
    assert change.published_revision_id is not None, "it is published"
    result = undone(table_of(change.base_revision), table_of(change.published_revision_id), table_of(live))
    if not result.is_change:
        raise CannotRevert("the change changed nothing, so there is nothing to undo")
    if result.conflicts:
        names = ", ".join(result.conflicts)
        raise CannotRevert(f"changed again since: {names}; propose a change instead", result.conflicts)
    title = f"Revert “{change.title}”"
    return draft(author=by, title=title, description=comment, base_revision=live, document=result.table, reverts=change)


def said(text: str, name: str) -> str:
    """The text, which must say something. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest(f"/{name}: say something", [{"path": f"/{name}", "message": "is required"}])
    return text


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
        check_operations_make_sense(operations, document)
        return document
    check_table(document, table_of(base_revision))
    return document


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
