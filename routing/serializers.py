"""What the route endpoints take and give. The same types read bodies, write answers and describe both in OpenAPI.

The routes within are read by `rules.py`, which knows their shape and names each mistake.
"""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from routing.core.edits import difference
from routing.impact import is_current
from routing.models import Advisory, Impact, RouteChange, TableRevision, Watch
from routing.querysets import live_number, table_of, undone_by
from routing.review import approval_state, history, large_because, sides_of
from routing.sense import warnings_in
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
    auto_revert: bool = False


class EditBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to replace of a change; the rest stays."""

    title: Title | None = None
    description: Prose | None = None
    base_revision: RevisionNumber | None = None
    routes: list[Any] | None = None
    fallback_rules: list[Any] | None = None
    operations: list[Any] | None = None
    auto_revert: bool | None = None


class MoveBody(msgspec.Struct):
    """A word to go with a move."""

    comment: Prose = ""


class ApprovalBody(MoveBody):
    """A yes: `acknowledge` that routes lose calls to others, and the `digest` of the content that was looked at."""

    acknowledge: bool = False
    digest: str | None = None


class RebaseBody(MoveBody):
    """`take` says, for each route that both sides have edited, whose is meant."""

    take: dict[str, Literal["mine", "theirs"]] = {}


class PublishBody(MoveBody):
    """With `break_glass` whoever holds the permission publishes without the approvals, for a `reason` that stays."""

    break_glass: bool = False
    reason: Prose = ""


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
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    acknowledged_reason: str | None


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
        acknowledged_at=advisory.acknowledged_at,
        acknowledged_by=advisory.acknowledged_by or None,
        acknowledged_reason=advisory.acknowledged_reason or None,
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
    impact_digest: str


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
    auto_revert: bool
    broke_glass: str
    """Why it was published without approval; empty where it was not."""
    approvals: list[ApprovalDocument]
    created_at: datetime
    updated_at: datetime


class WatchDocument(msgspec.Struct, kw_only=True):
    """How the calls fare that a published change moves; `before` and `after` by service, "" for all together."""

    status: str
    told: str
    started_at: datetime
    ends_at: datetime
    alerted_at: datetime | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class ImpactDocument(msgspec.Struct, kw_only=True):
    """What a change would do to the calls of the last day. Numbers of calls are of the sample."""

    status: Literal["pending", "ready"]
    progress: float
    """0 to 1."""
    digest: str
    computed_at: datetime | None
    base_moved: bool
    """Another revision is live than the one that the change was made for: this is what it would have done to that."""
    sampled_calls: int
    moved: dict[str, Any]
    unprovided_capabilities: list[str]
    shadowed_routes: list[dict[str, Any]]
    dominant_services: list[dict[str, Any]]
    rate_limit_risks: list[dict[str, Any]]
    cost_shift: dict[str, Any]
    samples: list[dict[str, Any]]
    lost_calls: list[dict[str, Any]]
    """Calls that found somebody before and would not after, by the code they would end with."""
    unknown: dict[str, Any]
    """Calls whose way depends on masked values."""
    services: list[dict[str, Any]]
    routes: list[dict[str, Any]]
    left_out_calls: int
    stands_for: float
    """Real calls for each sampled one."""
    window: dict[str, str] | None
    took_s: float


class ChangeDocument(ChangeSummary, kw_only=True):
    """A route change with its table, what that changes of the base, and what was done to it."""

    digest: str
    routes: list[dict[str, Any]]
    fallback_rules: list[dict[str, Any]]
    operations: list[dict[str, Any]] | None
    diff: dict[str, Any]
    history: list[HistoryEntry]
    approvals_standing: int
    approvals_needed: int
    large_because: str | None
    """What makes the impact large, where more people have to approve then."""
    three_way: list[dict[str, Any]]
    """Where the base has moved: each route that either side has edited, at the base, live, and as proposed."""
    warnings: list[dict[str, str]]
    reverted_by: int | None
    watch: WatchDocument | None


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
    seen = Impact.objects.filter(change=change, covers=change.content_digest).first()
    standing, needed = approval_state(change)
    watch = Watch.objects.filter(change=change).first()
    return ChangeDocument(
        **change_facts(change),
        digest=change.content_digest,
        routes=change.document["routes"],
        fallback_rules=change.document["fallback_rules"],
        operations=change.operations,
        diff=difference(table_of(change.base_revision), change.document),
        history=[
            HistoryEntry(
                e.at,
                e.actor,
                e.action.removeprefix("route_change."),
                e.detail.get("comment") or e.detail.get("reason") or "",
            )
            for e in history(change)
        ],
        approvals_standing=standing,
        approvals_needed=needed,
        large_because=large_because(seen),
        three_way=[asdict(place) for place in sides_of(change)],
        warnings=[asdict(warned) for warned in warnings_in(change.document)],
        reverted_by=undone_by(change),
        watch=None if watch is None else watch_document(watch),
    )


def watch_document(watch: Watch) -> WatchDocument:
    return WatchDocument(
        status=watch.status,
        told=watch.told,
        started_at=watch.started_at,
        ends_at=watch.ends_at,
        alerted_at=watch.alerted_at,
        before=watch.before,
        after=watch.after,
    )


NO_MOVES = {"total": 0, "by_route": [], "by_service": [], "by_capability": {}, "flows": []}
NO_REPORT: dict[str, Any] = {
    "sampled_calls": 0,
    "moved": NO_MOVES,
    "unprovided_capabilities": [],
    "shadowed_routes": [],
    "dominant_services": [],
    "rate_limit_risks": [],
    "cost_shift": {"before": {}, "after": {}},
    "samples": [],
    "lost_calls": [],
    "unknown": {"calls": 0, "conditions": []},
    "services": [],
    "routes": [],
    "left_out_calls": 0,
    "stands_for": 1.0,
    "window": None,
    "took_s": 0.0,
}


def impact_document(change: RouteChange, impact: Impact | None) -> ImpactDocument:
    """A current report, or how far the work on it is."""
    current = impact if impact is not None and is_current(impact, change) else None
    report = NO_REPORT | (current.report or {} if current is not None else {})
    done, total = (impact.done, impact.total) if impact is not None else (0, 0)
    return ImpactDocument(
        status="pending" if current is None else "ready",
        progress=1.0 if current is not None else round(done / total, 3) if total else 0.0,
        digest="" if current is None else current.digest,
        computed_at=None if current is None else current.computed_at,
        base_moved=change.published_revision_id is None and change.base_revision != live_number(),
        **{name: report[name] for name in NO_REPORT},
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
        "auto_revert": change.auto_revert,
        "broke_glass": change.broke_glass,
        "approvals": [
            ApprovalDocument(
                a.approver.get_username(), a.comment, a.approved_at, a.digest, a.withdrawn_at is None, a.impact_digest
            )
            for a in change.approvals.all()
        ],
        "created_at": change.created_at,
        "updated_at": change.updated_at,
    }
