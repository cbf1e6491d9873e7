"""A trace as its page shows it: the waterfall of its calls, and where a failure began."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from receipts.admin import LIGHT, TRACE_CALLS_SHOWN, loaded, node_name, status_badge
from receipts.core import waterfall
from receipts.core.lifecycle import TERMINAL, Kind
from receipts.core.waterfall import Filled, Hop, Moved, Piece
from receipts.models import Call, Receipt
from receipts.wording import CALL_STATUS
from registry.console import duration
from registry.wording import label, said

MOVING = (Kind.FORWARDED, Kind.ATTEMPT_FAILED, Kind.RETRY_SCHEDULED, Kind.FALLBACK, *TERMINAL)
"""The receipts that move a call's time on. Others may be many, or large."""
RECEIPTS_READ = 4000
TICKS = 4
WENT = {
    "succeeded": gettext_lazy("succeeded"),
    "failed": gettext_lazy("failed"),
    "attempt_failed": gettext_lazy("failed"),
    "timed_out": gettext_lazy("timed out"),
    "cancelled": gettext_lazy("cancelled"),
    "rejected": gettext_lazy("rejected"),
    waterfall.OPEN: gettext_lazy("at work"),
}
TONE = {"succeeded": "good", waterfall.OPEN: "busy", "cancelled": "idle"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A piece of a call's time, placed."""

    tone: str
    left: float
    width: float
    """Percent of the trace's span."""
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    """One call of the waterfall."""

    call: Call
    depth: int
    url: str
    status: str
    node: str
    took: str
    left: float
    width: float
    pieces: Sequence[Shown]
    told: Sequence[str]
    """The pieces in words: attempts and waits, with what was left of the budget when each began."""
    budget: str
    is_chosen: bool
    is_cause: bool


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A trace, or as much of it as is shown."""

    trace_id: str
    rows: Sequence[Row]
    ticks: Sequence[tuple[float, str]]
    took: str
    began_at: datetime
    are_more: bool
    is_open: bool
    root: Call
    chosen: Call
    failed: Call | None
    """The outermost call that failed; None: none did."""
    cause: Call | None
    """The call at which that began: itself, or one below it."""


def read(trace_id: str, chosen_id: UUID | None) -> Waterfall | None:
    """The trace, with the call that is asked for chosen, else the cause of its failure, else its root."""
    calls = list(
        Call.objects.filter(trace_id=trace_id)
        .order_by("pk")
        .only(*LIGHT, "mirror_of", "deadline", "attempts")[: TRACE_CALLS_SHOWN + 1]
    )
    if not calls:
        return None
    are_more, calls = len(calls) > TRACE_CALLS_SHOWN, calls[:TRACE_CALLS_SHOWN]
    now = timezone.now()
    by_id = {call.pk: call for call in calls}
    hops = [hop_of(call) for call in calls]
    failed = waterfall.failed_root(hops)
    cause = waterfall.where_it_began(hops, failed) if failed is not None else None
    tree = list(waterfall.in_tree(hops))
    root = by_id[tree[0][0].id]
    chosen = by_id.get(chosen_id) if chosen_id is not None else None
    if chosen is None:
        chosen = by_id[cause.id] if cause is not None else root
    since_ms = min(hop.since_ms for hop in hops)
    until_ms = max(millis(now) if hop.until_ms is None else hop.until_ms for hop in hops)
    placed = Placed(since_ms, max(until_ms - since_ms, 1.0), until_ms)
    moved = moves(by_id)
    return Waterfall(
        trace_id,
        [
            row(by_id[hop.id], hop, depth, moved.get(hop.id, []), placed, chosen.pk, cause.id if cause else None)
            for hop, depth in tree
        ],
        [(100 * n / TICKS, duration(placed.span_ms * n / TICKS)) for n in range(TICKS + 1)],
        duration(placed.span_ms),
        min(call.accepted_at for call in calls),
        are_more,
        any(hop.until_ms is None for hop in hops),
        root,
        chosen,
        by_id[failed.id] if failed is not None else None,
        by_id[cause.id] if cause is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """What percent of the waterfall mean."""

    since_ms: float
    span_ms: float
    until_ms: float

    def left(self, moment_ms: float) -> float:
        return round(waterfall.percent(moment_ms, since_ms=self.since_ms, span_ms=self.span_ms), 3)

    def width(self, since_ms: float, until_ms: float) -> float:
        return round(max(0.2, self.left(until_ms) - self.left(since_ms)), 3)


def hop_of(call: Call) -> Hop:
    until_ms = None if call.ended_at is None else millis(call.ended_at)
    return Hop(
        call.pk, call.parent_call_id, call.status, millis(call.accepted_at), until_ms, call.mirror_of is not None
    )


def moves(calls: Mapping[UUID, Call]) -> dict[UUID, list[Moved]]:
    """The receipts of all shown calls that move their time on, in one query."""
    receipts = Receipt.objects.filter(call_id__in=calls, kind__in=MOVING).order_by("call_id", "seq")
    found: dict[UUID, list[Moved]] = {}
    for receipt in receipts[:RECEIPTS_READ]:
        detail = loaded(receipt.detail)
        reason = detail.get("reason") or "" if isinstance(detail, dict) else ""
        node = node_name(receipt) if receipt.node_id else None
        moved = Moved(receipt.kind, millis(receipt.at), receipt.attempt, node, reason)
        found.setdefault(receipt.call_id, []).append(moved)
    return found


def call_url(trace_id: str, call_id: UUID) -> str:
    """A call within its trace."""
    return f"{reverse('trace', args=[trace_id])}?call={call_id}"


def row(
    call: Call, hop: Hop, depth: int, moved: Sequence[Moved], placed: Placed, chosen_id: UUID, cause_id: UUID | None
) -> Row:
    until_ms = placed.until_ms if hop.until_ms is None else hop.until_ms
    pieces = waterfall.pieces_of(moved, until_ms=until_ms)
    deadline_ms = millis(call.deadline)
    return Row(
        call,
        depth,
        reverse("trace", args=[call.trace_id]) + f"?call={call.pk}#call",
        status_badge(call),
        node_name(call) if call.node_id else "",
        duration(until_ms - hop.since_ms),
        placed.left(hop.since_ms),
        placed.width(hop.since_ms, until_ms),
        [
            Shown(
                "wait" if piece.filled is Filled.WAIT else TONE.get(piece.went, "bad"),
                placed.left(piece.since_ms),
                placed.width(piece.since_ms, piece.until_ms),
                words_of(piece, deadline_ms),
            )
            for piece in pieces
        ],
        [words_of(piece, deadline_ms) for piece in pieces],
        budget_words(hop, deadline_ms, until_ms),
        call.pk == chosen_id,
        call.pk == cause_id,
    )


def words_of(piece: Piece, deadline_ms: float) -> str:
    """A piece of a call's time in a sentence."""
    told = {
        "n": piece.attempt or 1,
        "node": piece.node or "",
        "took": duration(piece.until_ms - piece.since_ms),
        "left": duration(max(0.0, deadline_ms - piece.since_ms)),
        "went": label(WENT, piece.went),
        "reason": said(piece.reason),
    }
    if piece.filled is Filled.WAIT:
        return (_("waited %(took)s: %(reason)s") if piece.reason else _("waited %(took)s")) % told
    if piece.reason:
        return _("attempt %(n)s at %(node)s, %(left)s left: %(went)s after %(took)s, %(reason)s") % told
    return _("attempt %(n)s at %(node)s, %(left)s left: %(went)s after %(took)s") % told


def budget_words(hop: Hop, deadline_ms: float, until_ms: float) -> str:
    """What a call had to spend, and what was left of it."""
    told = {
        "budget": duration(max(0.0, deadline_ms - hop.since_ms)),
        "left": duration(max(0.0, deadline_ms - until_ms)),
    }
    return _("%(left)s of %(budget)s left") % told


def millis(at: datetime) -> float:
    return at.timestamp() * 1000


def failure(seen: Waterfall) -> dict[str, Any] | None:
    """What failed, and where, for the first screen."""
    if seen.failed is None or seen.cause is None:
        return None
    return {
        "call": seen.failed,
        "cause": seen.cause,
        "is_within": seen.cause.pk != seen.failed.pk,
        "survived": seen.failed.pk != seen.root.pk and seen.root.status == "succeeded",
        "node": node_name(seen.cause) if seen.cause.node_id else "",
        "status": label(CALL_STATUS, seen.cause.status),
        "attempts": seen.cause.attempts,
        "url": reverse("trace", args=[seen.trace_id]) + f"?call={seen.cause.pk}#call",
    }
