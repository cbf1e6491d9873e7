"""Calls that have failed for good, by cause; and orders to do many of them again.

An order holds the calls that it means. A worker does some of them each second, until it is done or somebody stops it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.utils.translation import gettext_lazy as _

from receipts.core.envelope import ASYNC_RANKS, Urgency
from receipts.core.lifecycle import CallStatus
from receipts.errors import CallNotFound, NotAgain
from receipts.models import BulkRedispatch, Call
from receipts.partitions import lowest_id
from receipts.redispatching import redispatch_call
from receipts.retention import Kind, batch_of, oldest_of
from receipts.statistics import CAUSE, told
from registry.audit import audit
from registry.clock import now

RANK = ASYNC_RANKS[Urgency.BULK]
"""Calls that are done again by the hundred are placed after all others that wait."""


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """What failed calls have in common: the problem's code, what was asked for, and who had it (None: nobody)."""

    code: str
    capability: str
    service_id: str | None

    @classmethod
    def of_list(cls, parts: Sequence[str | None]) -> "Cause":
        """Raises ValueError."""
        code, capability, service_id = parts
        if not isinstance(code, str) or not isinstance(capability, str):
            raise ValueError("a cause has a code and a capability")
        return cls(code, capability, service_id or None)

    @property
    def parts(self) -> list[str]:
        return [self.code, self.capability, self.service_id or ""]


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed calls of one cause."""

    calls: int
    newest: datetime
    """At the latest: hours ago it is known to the hour."""


def causes(since: datetime, now: datetime) -> dict[Cause, Failures]:
    """Why calls of the span have failed, the most frequent first; from what is counted by the minute."""
    found = {
        Cause(code, capability, service_id or None): Failures(group.calls, group.newest)
        for (code, capability, service_id), group in told(CAUSE, since, now, now).items()
        if code != CallStatus.CANCELLED
    }
    return dict(sorted(found.items(), key=lambda row: (-row[1].calls, row[0].parts)))


# --- Which calls -----------------------------------------------------------------------------------------------------

CHOOSE = """
WITH causes AS (
    SELECT * FROM unnest(%(codes)s::text[], %(capabilities)s::text[], %(services)s::text[])
        AS cause(code, capability, service_id)
), dead AS (
    SELECT found.* FROM causes CROSS JOIN LATERAL (
        SELECT c.id, c.trace_id, c.attempts, c.idempotent, c.accepted_at, c.caller, c.callback_url IS NOT NULL AS tells
        FROM calls c
        WHERE c.status IN ('failed', 'timed_out', 'rejected') AND c.id >= %(low)s AND c.mirror_of IS NULL
            AND c.capability = causes.capability AND coalesce(c.service_id, '') = causes.service_id
            AND coalesce(c.error::json ->> 'code', c.status) = causes.code
        ORDER BY c.id DESC LIMIT %(most)s
    ) AS found ORDER BY found.id DESC LIMIT %(most)s
)
SELECT dead.*, EXISTS (SELECT FROM calls a WHERE a.trace_id = dead.trace_id AND a.redispatch_of = dead.id) AS again
FROM dead ORDER BY id
"""
"""The statuses as they stand in the condition of an index (`calls_dead`). Not the cancelled: that was wanted."""


@dataclass(frozen=True, slots=True)
class Dead:
    """One failed call, as far as doing it again goes."""

    id: UUID
    trace_id: str
    attempts: int
    idempotent: bool
    accepted_at: datetime
    caller: str
    tells: bool
    """Its end is told to an address that its caller has named; so is the end of the new call."""
    again: bool
    """It was done again already."""

    @property
    def may_run_twice(self) -> bool:
        """A node had begun on it, and its capability is not said to bear that twice."""
        return self.attempts > 0 and not self.idempotent


def chosen(wanted: Collection[Cause], since: datetime) -> list[Dead]:
    """The newest failed calls of these causes, oldest first, at most `REACH_REDISPATCH_MOST`."""
    with connection.cursor() as cursor:
        cursor.execute(
            CHOOSE,
            {
                "codes": [cause.code for cause in wanted],
                "capabilities": [cause.capability for cause in wanted],
                "services": [cause.service_id or "" for cause in wanted],
                "low": lowest_id(since),
                "most": settings.REACH_REDISPATCH_MOST,
            },
        )
        return [Dead(*row) for row in cursor.fetchall()]


# --- Orders ----------------------------------------------------------------------------------------------------------


def order(wanted: Collection[Cause], calls: Iterable[Dead], *, by: str) -> BulkRedispatch:
    """Have these calls done again, as new calls; audited."""
    ids = [call.id for call in calls]
    causes = [cause.parts for cause in sorted(wanted, key=lambda cause: cause.parts)]
    with transaction.atomic():
        made = BulkRedispatch.objects.create(by=by, made_at=now(), causes=causes, calls=ids)
        audit(by, "redispatch in bulk", f"order:{made.pk}", calls=len(ids), causes=[" ".join(one) for one in causes])
    return made


def stop(order_id: int, *, by: str) -> bool:
    """Let an order be; what is done already stays done. False: it was over."""
    with transaction.atomic():
        stopped = BulkRedispatch.objects.filter(pk=order_id, finished_at=None).update(finished_at=now(), stopped_by=by)
        if stopped:
            audit(by, "stop redispatch", f"order:{order_id}")
    return bool(stopped)


def carry_on() -> int:
    """Do some calls of the oldest open order again; how many were looked at. Several workers may: one at an order."""
    with transaction.atomic():
        open_orders = BulkRedispatch.objects.filter(finished_at=None).order_by("pk")
        one = open_orders.select_for_update(skip_locked=True).first()
        if one is None:
            return 0
        batch = one.calls[one.done : one.done + settings.REACH_REDISPATCH_PER_S]
        known = done_already(batch)
        for call_id in batch:
            try:
                if call_id in known:
                    raise NotAgain("it was done again meanwhile", call_id)
                one.made.append(redispatch_call(call_id, by=one.by, rank=RANK).pk)
            except (CallNotFound, NotAgain):
                one.left_out += 1
        one.done += len(batch)
        if one.done >= len(one.calls):
            one.finished_at = now()
        one.save()
    return len(batch)


def done_already(call_ids: Collection[UUID]) -> set[UUID]:
    """Those of the calls that a later call does again; traces have an index."""
    traces = Call.objects.filter(pk__in=call_ids).values("trace_id")
    again = Call.objects.filter(trace_id__in=list(traces.values_list("trace_id", flat=True)))
    done = again.filter(redispatch_of__in=call_ids).values_list("redispatch_of", flat=True)
    return {call_id for call_id in done if call_id is not None}


def kind_of_data() -> Kind:
    """How long orders are kept."""
    orders = BulkRedispatch.objects.all()
    return Kind(
        "bulk_redispatches",
        _("Orders to do failed calls again"),
        ("receipts_bulkredispatch",),
        timedelta(days=settings.REACH_RETENTION_DAYS),
        "REACH_RETENTION_DAYS",
        batch_of(orders, "made_at"),
        oldest_of(orders, "made_at"),
    )


def standing(orders: Sequence[BulkRedispatch]) -> dict[int, dict[str, int]]:
    """How the new calls of each order stand: how many there are of each status."""
    ids = {call_id: one.pk for one in orders for call_id in one.made}
    found: dict[int, dict[str, int]] = {one.pk: {} for one in orders}
    rows: Any = Call.objects.filter(pk__in=list(ids)).values_list("pk", "status")
    for call_id, status in rows:
        counts = found[ids[call_id]]
        counts[status] = counts.get(status, 0) + 1
    return found
