"""What the route endpoints take and give. The same types read bodies, write answers and describe both in OpenAPI.

The routes within are read by `rules.py`, which knows their shape and names each mistake.
"""

from datetime import datetime
from typing import Annotated, Any

import msgspec

from routing.core.edits import difference
from routing.models import Advisory, RouteChange, TableRevision
from routing.querysets import table_of
from routing.review import content_digest, history
from routing.wording import ADVISORY

Title = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Prose = Annotated[str, msgspec.Meta(max_length=10_000)]
RevisionNumber = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]


class ProposalBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A change to propose: the whole table, or operations on the base revision."""

    title: Title
    description: Prose = ""
    base_revision: RevisionNumber
    routes: list[Any] | None = None
    fallback_rules: list[Any] | None = None
    operations: list[Any] | None = None


class EditBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to replace of a change; the rest stays."""

    title: Title | None = None
    description: Prose | None = None
    base_revision: RevisionNumber | None = None
    routes: list[Any] | None = None
    fallback_rules: list[Any] | None = None
    operations: list[Any] | None = None


class MoveBody(msgspec.Struct):
    """A word to go with a move."""

    comment: Prose = ""


class TableDocument(msgspec.Struct):
    """The live table, as it was written; revision 0 is the empty one."""

    revision: int
    routes: list[dict[str, Any]]
    fallback_rules: list[dict[str, Any]]


class AdvisoryDocument(msgspec.Struct, kw_only=True):
    """Something about traffic or tables that an operator should look at."""

    kind: str
    subject: str
    message: str
    remedy: str
    facts: dict[str, Any]
    first_seen_at: datetime
    last_seen_at: datetime
    resolved_at: datetime | None


def advisory_document(advisory: Advisory) -> AdvisoryDocument:
    _title, message, remedy = ADVISORY[advisory.kind]  # by REST in English, whatever the reader's language
    return AdvisoryDocument(
        kind=advisory.kind,
        subject=advisory.subject,
        message=message % advisory.facts,
        remedy=remedy,
        facts=advisory.facts,
        first_seen_at=advisory.first_seen_at,
        last_seen_at=advisory.last_seen_at,
        resolved_at=advisory.resolved_at,
    )


class RevisionSummary(msgspec.Struct, kw_only=True):
    """One published revision."""

    revision: int
    published_at: datetime
    published_by: str | None
    note: str
    change_id: int | None


class RevisionDocument(RevisionSummary, kw_only=True):
    """One published revision with its table."""

    routes: list[dict[str, Any]]
    fallback_rules: list[dict[str, Any]]


class ApprovalDocument(msgspec.Struct):
    """One person's yes; it stands until the change is edited."""

    approver: str
    comment: str
    approved_at: datetime
    digest: str
    standing: bool


class HistoryEntry(msgspec.Struct):
    """One thing that was done to a change."""

    at: datetime
    actor: str
    action: str
    comment: str


class ChangeSummary(msgspec.Struct, kw_only=True):
    """A route change as lists show it."""

    id: int
    title: str
    description: str
    status: str
    author: str
    base_revision: int
    published_revision: int | None
    reverts: int | None
    approvals: list[ApprovalDocument]
    created_at: datetime
    updated_at: datetime


class ChangeDocument(ChangeSummary, kw_only=True):
    """A route change with its table, what that changes of the base, and what was done to it."""

    digest: str
    routes: list[dict[str, Any]]
    fallback_rules: list[dict[str, Any]]
    operations: list[dict[str, Any]] | None
    diff: dict[str, Any]
    history: list[HistoryEntry]


def revision_summary(revision: TableRevision) -> RevisionSummary:
    return RevisionSummary(**revision_facts(revision))


def revision_document(revision: TableRevision) -> RevisionDocument:
    return RevisionDocument(**revision_facts(revision), **table_of(revision.number))


def revision_facts(revision: TableRevision) -> dict[str, Any]:
    change = getattr(revision, "routechange", None)
    return {
        "revision": revision.number,
        "published_at": revision.published_at,
        "published_by": revision.published_by and revision.published_by.get_username(),
        "note": revision.note,
        "change_id": change and change.pk,
    }


def change_summary(change: RouteChange) -> ChangeSummary:
    return ChangeSummary(**change_facts(change))


def change_document(change: RouteChange) -> ChangeDocument:
    return ChangeDocument(
        **change_facts(change),
        digest=content_digest(change),
        routes=change.document["routes"],
        fallback_rules=change.document["fallback_rules"],
        operations=change.operations,
        diff=difference(table_of(change.base_revision), change.document),
        history=[
            HistoryEntry(e.at, e.actor, e.action.removeprefix("route_change."), e.detail.get("comment", ""))
            for e in history(change)
        ],
    )


def change_facts(change: RouteChange) -> dict[str, Any]:
    return {
        "id": change.pk,
        "title": change.title,
        "description": change.description,
        "status": change.status,
        "author": change.author.get_username(),
        "base_revision": change.base_revision,
        "published_revision": change.published_revision_id,
        "reverts": change.reverts_id,
        "approvals": [
            ApprovalDocument(a.approver.get_username(), a.comment, a.approved_at, a.digest, a.withdrawn_at is None)
            for a in change.approvals.all()
        ],
        "created_at": change.created_at,
        "updated_at": change.updated_at,
    }
