"""After a publication: the calls that it moved are held against those before it, and taken back where that was asked.

A row per published change says when it is due. Each look reads a bounded number of the newest calls of its revision.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from receipts.core.lifecycle import TERMINAL
from receipts.partitions import lowest_id
from registry import audit as trail
from registry import clock
from registry.errors import Conflict
from routing import review
from routing.core.plan import AUTO
from routing.core.watch import NONE, Fared, Thresholds, Verdict, WatchStatus, judge
from routing.errors import NotAllowed
from routing.models import RouteChange, Watch
from routing.querysets import live_number

log = logging.getLogger(__name__)

ACTOR = f"user:{review.WATCHER}"
PATIENCE = "5s"
TAKEN_FOR = timedelta(seconds=20)
"""A worker that takes longer for one look has died."""

FARED = """
SELECT c.service_id, count(*), count(*) FILTER (WHERE c.status <> 'succeeded' OR c.attempts > 1),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM c.ended_at - c.accepted_at) * 1000)
        FILTER (WHERE c.status = 'succeeded')
FROM (
    SELECT capability, coalesce(route_id, %s) AS route_id, service_id, status, attempts, accepted_at, ended_at
    FROM calls WHERE id >= %s AND id < %s AND table_revision BETWEEN %s AND %s AND mirror_of IS NULL
        AND status = ANY(%s) AND status <> 'cancelled'
    ORDER BY id DESC LIMIT %s
) AS c
WHERE c.route_id = ANY(%s) OR (c.capability, c.route_id) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
GROUP BY GROUPING SETS ((c.service_id), ())
"""


def look_at_due() -> int:
    """Look at every watch that is due; how many there were."""
    count = 0
    while (taken := take_due()) is not None:
        look(taken)
        count += 1
    return count


def take_due() -> Watch | None:
    with transaction.atomic():
        now = clock.now()
        waiting = Watch.objects.select_for_update(skip_locked=True, of=("self",)).filter(due_at__lte=now)
        watch = waiting.select_related("change").order_by("due_at").first()
        if watch is not None:
            Watch.objects.filter(pk=watch.pk).update(due_at=now + TAKEN_FOR)
        return watch


def look(watch: Watch) -> None:
    """See how the change's calls fare, write it down, and act on it."""
    change, now = watch.change, clock.now()
    before = groups_of(watch.before) if watch.before is not None else fared_before(watch)
    after = fared_after(watch, now)
    verdict = compared(before, after)
    live = live_number()
    seen = {"before": plain(before), "after": plain(after)}
    if verdict.why:
        alert(watch, verdict, **seen)
        if change.auto_revert and live == change.published_revision_id:
            take_back(change, verdict)
        return
    over = now >= watch.ends_at or live != change.published_revision_id
    status = WatchStatus.WATCHING
    if over:
        status = WatchStatus.FINE if verdict.enough else WatchStatus.UNTRIED
        status = WatchStatus.SUPERSEDED if live != change.published_revision_id else status
    due_at = None if over else now + timedelta(seconds=settings.REACH_WATCH_INTERVAL_S)
    Watch.objects.filter(pk=watch.pk).update(status=status, due_at=due_at, **seen)


@transaction.atomic
def alert(watch: Watch, verdict: Verdict, **seen: Any) -> None:
    """Say on the change, once, that its calls fare worse."""
    still = Watch.objects.filter(pk=watch.pk, status=WatchStatus.WATCHING)
    if still.update(status=WatchStatus.WORSE, told=verdict.why, alerted_at=clock.now(), due_at=None, **seen):
        target = review.audit_target(watch.change)
        trail.audit(ACTOR, "route_change.alert", target, comment=verdict.why)
        log.warning("route change %s, revision %s: %s", watch.pk, watch.change.published_revision_id, verdict.why)


def take_back(change: RouteChange, verdict: Verdict) -> None:
    """Undo a change that asked for it; where that cannot be done, its alert says why."""
    try:
        with transaction.atomic():
            undone = review.restore(change.pk, why=f"taken back by itself: {verdict.why}").change
            Watch.objects.filter(pk=change.pk).update(status=WatchStatus.REVERTED)
        log.warning("route change %s was taken back by route change %s", change.pk, undone.pk)
    except (Conflict, NotAllowed) as exc:
        Watch.objects.filter(pk=change.pk).update(told=f"{verdict.why}; it could not be taken back: {exc}")
        log.error("route change %s could not be taken back: %s", change.pk, exc)


# --- How calls fare --------------------------------------------------------------------------------------------------

Groups = Mapping[str, Fared]
"""By service; "" is all calls together."""


def compared(before: Groups, after: Groups) -> Verdict:
    return judge(
        before.get("", NONE),
        after.get("", NONE),
        thresholds(),
        services_before={service: fared for service, fared in before.items() if service},
        services_after={service: fared for service, fared in after.items() if service},
    )


def thresholds() -> Thresholds:
    return Thresholds(
        min_calls=settings.REACH_WATCH_MIN_CALLS,
        worse_by=settings.REACH_WATCH_WORSE_BY,
        slower_by=settings.REACH_WATCH_SLOWER_BY,
        slower_ms=settings.REACH_WATCH_SLOWER_MS,
    )


def fared_before(watch: Watch) -> Groups:
    """The calls of the same kind in the time before the publication."""
    since = watch.started_at - timedelta(seconds=settings.REACH_WATCH_BASELINE_S)
    number = watch.change.published_revision_id or 0
    return fared(since, watch.started_at, (0, number - 1), watch.scope["routes"], watch.scope["before"])


def fared_after(watch: Watch, now: datetime) -> Groups:
    """The calls that the published revision has sent their way."""
    number = watch.change.published_revision_id or 0
    return fared(watch.started_at, now, (number, number), watch.scope["routes"], watch.scope["after"])


def fared(
    since: datetime, until: datetime, revisions: tuple[int, int], routes: Sequence[str], pairs: Sequence[Sequence[str]]
) -> Groups:
    """How ended calls of these routes, and of these pairs of capability and route, fared: the newest of them."""
    bounds: list[Any] = [
        AUTO,
        lowest_id(since),
        lowest_id(until + timedelta(milliseconds=1)),
        *revisions,
        sorted(TERMINAL),
    ]
    named = [list(routes), [capability for capability, _ in pairs], [route for _, route in pairs]]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [PATIENCE])
        cursor.execute(FARED, [*bounds, settings.REACH_WATCH_SAMPLE, *named])
        rows = cursor.fetchall()
    found: dict[str, Fared] = {}
    for service, calls, troubled, median_ms in sorted(rows, key=lambda row: row[1]):  # the sum of all comes last
        found[service or ""] = Fared(calls, troubled, None if median_ms is None else float(median_ms))
    return found


def plain(groups: Groups) -> dict[str, Any]:
    return {service: asdict(fared) for service, fared in groups.items()}


def groups_of(kept: Mapping[str, Any]) -> Groups:
    return {service: Fared(**fared) for service, fared in kept.items()}
