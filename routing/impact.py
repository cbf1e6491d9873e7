"""Impact analyses as rows: asked for by whoever changes a change, taken by a worker, read by whoever approves.

A row that is due is work; whichever worker finds it takes it for a while, and another one after that while if it died.
The replay itself is in `replay.py`.
"""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from receipts.core.envelope import digest_of
from registry import clock
from routing.core.review import OPEN_STATUSES, Status
from routing.errors import ImpactPending
from routing.models import Impact, RouteChange

TAKEN_FOR = timedelta(seconds=60)
"""A worker that has said nothing of its analysis for so long has died."""
VOLATILE = ("took_s", "window")
"""Of a report: what differs between two looks at the same calls."""


def ask(change: RouteChange) -> None:
    """Have the change's content analysed, inside the caller's transaction; what is known of it already will do."""
    known = Impact.objects.filter(change=change).first()
    if known is not None and (at_work(known, change) or is_current(known, change)):
        return
    anew = {"wanted": change.content_digest, "due_at": clock.now(), "done": 0, "total": 0}
    Impact.objects.update_or_create(change=change, defaults=anew)


def latest(change: RouteChange) -> Impact | None:
    """What is known of a change's impact, current or not; where it is not, and nobody is at work on it, that begins."""
    known = Impact.objects.filter(change=change).first()
    if known is not None and (is_current(known, change) or at_work(known, change)):
        return known
    refresh(change.pk)
    return Impact.objects.filter(change=change).first()


def at_work(impact: Impact, change: RouteChange) -> bool:
    return impact.due_at is not None and impact.wanted == change.content_digest


@transaction.atomic
def refresh(change_id: int) -> None:
    """Ask again where an open change has no report that still holds."""
    change = RouteChange.objects.select_for_update(of=("self",)).filter(pk=change_id).first()
    if change is not None and change.status in OPEN_STATUSES:
        ask(change)


def report_of(change: RouteChange) -> tuple[Impact, dict[str, Any]]:
    """The analysis of the content as it now reads, and its report. Raises ImpactPending where there is none."""
    known = Impact.objects.filter(change=change).first()
    if known is None or known.report is None or not is_current(known, change):
        raise ImpactPending(known.done if known else 0, known.total if known else 0)
    return known, known.report


def is_current(impact: Impact, change: RouteChange) -> bool:
    """Whether the report is about the content as it now reads, and young enough; a closed change's is evidence."""
    if impact.report is None or impact.covers != change.content_digest or impact.computed_at is None:
        return False
    if Status(change.status) not in OPEN_STATUSES:
        return True
    return clock.now() - impact.computed_at < timedelta(seconds=settings.REACH_IMPACT_MAX_AGE_S)


def take_due() -> RouteChange | None:
    """The change whose analysis has waited longest, taken for this worker."""
    with transaction.atomic():
        now = clock.now()
        waiting = Impact.objects.select_for_update(skip_locked=True, of=("self",)).filter(due_at__lte=now)
        impact = waiting.select_related("change").order_by("due_at").first()
        if impact is None:
            return None
        if impact.change.status not in OPEN_STATUSES:  # ended meanwhile: nobody asks any more
            Impact.objects.filter(pk=impact.pk).update(due_at=None)
            return None
        Impact.objects.filter(pk=impact.pk).update(due_at=now + TAKEN_FOR)
        return impact.change


def tell_progress(change_id: int, content: str, done: int, total: int) -> None:
    """How far the analysis of a content is; the worker keeps it meanwhile."""
    asked = Impact.objects.filter(change=change_id, wanted=content)
    asked.update(done=done, total=total, due_at=clock.now() + TAKEN_FOR)


def keep(change_id: int, content: str, report: dict[str, Any]) -> None:
    """Store the report about a content, unless the change reads differently by now."""
    Impact.objects.filter(change=change_id, wanted=content).update(
        report=report,
        digest=digest_of({key: value for key, value in report.items() if key not in VOLATILE}),
        covers=content,
        computed_at=clock.now(),
        due_at=None,
        done=report["sampled_calls"],
        total=report["sampled_calls"],
    )
