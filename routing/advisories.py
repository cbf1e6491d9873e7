"""Advisories from traffic: the evidence gathered at a bounded cost, and what was noticed kept as rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.utils.translation import gettext_lazy as _

from receipts.partitions import lowest_id
from receipts.retention import Kind as KindOfData
from receipts.retention import batch_of, oldest_of
from registry import clock
from registry.audit import audit
from registry.models import Node
from routing.core import advisories as core
from routing.core.tables import Tables
from routing.models import Advisory, TableRevision

LOOKED_AT = timedelta(days=1)
SLICES = 24
"""The day is looked at in slices, the newest calls of each: a busy hour does not hide the others."""
COUNTED = 10
"""Times as many calls are counted as are read with their payload."""
PAYLOAD_BYTES = 16_384
"""Calls with more are left out of the sample: it is held in memory."""
PATIENCE = "5s"
"""A database that takes longer for one question is left alone until the next turn."""
GONE_AFTER_TURNS = 3
"""What was not noticed for so many turns is resolved: a sample may miss a rare call once."""
MOST = 500
"""More would help nobody; the first of them, in order of capability, are kept."""

SAMPLE = """
SELECT c.capability, c.request, c.route_id, c.service_id, c.status = 'succeeded'
FROM unnest(%s::uuid[], %s::uuid[]) AS slice(since, before) CROSS JOIN LATERAL (
    SELECT capability, request, route_id, service_id, status FROM calls
    WHERE id >= slice.since AND id < slice.before AND mirror_of IS NULL ORDER BY id DESC LIMIT %s
) AS c WHERE octet_length(c.request) <= %s
"""
LIMITED = """
SELECT c.capability, count(*)
FROM unnest(%s::uuid[], %s::uuid[]) AS slice(since, before) CROSS JOIN LATERAL (
    SELECT capability, error FROM calls
    WHERE id >= slice.since AND id < slice.before AND mirror_of IS NULL ORDER BY id DESC LIMIT %s
) AS c WHERE c.error::json ->> 'code' = 'rate_limited' GROUP BY c.capability
"""


def look(tables: Tables, now: datetime) -> list[core.Advisory]:
    """Look at the last day, and keep what is noticed. Raises django.db.OperationalError when it takes too long."""
    found = core.advise(gather(tables, now), thresholds())[:MOST]
    keep(found, now, gone_after=GONE_AFTER_TURNS * timedelta(seconds=settings.REACH_ADVISE_INTERVAL_S))
    return found


def thresholds() -> core.Thresholds:
    return core.Thresholds(table_changes=settings.REACH_ADVISE_TABLE_CHANGES)


def gather(tables: Tables, now: datetime) -> core.Evidence:
    """The evidence of the last day. Its cost is bounded by settings, not by the traffic."""
    each = max(1, settings.REACH_ADVISE_SAMPLE // SLICES)
    bounds = slices(now)
    with patient() as cursor:
        cursor.execute(SAMPLE, [*bounds, each, PAYLOAD_BYTES])
        sample = [sampled(*row) for row in cursor.fetchall()]
        cursor.execute(LIMITED, [*bounds, COUNTED * each])
        limited = dict(cursor.fetchall())
    requires: dict[str, set[str]] = {}
    for service_id, names in Node.objects.present().exclude(requires=[]).values_list("service_id", "requires"):
        requires.setdefault(service_id, set()).update(names)
    return core.Evidence(
        tables,
        settings.REACH_DEFAULT_ROUTE,
        sample,
        limited,
        requires,
        TableRevision.objects.filter(published_at__gte=now - LOOKED_AT).count(),
    )


def slices(now: datetime) -> tuple[list[Any], list[Any]]:
    """Lower and upper bounds of the ids of each slice of the day."""
    edges = [lowest_id(now - LOOKED_AT * n / SLICES) for n in range(SLICES, -1, -1)]
    return edges[:-1], edges[1:]


@contextmanager
def patient() -> Iterator[Any]:
    """A cursor whose questions end by themselves."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [PATIENCE])
        yield cursor


def sampled(
    capability: str, request: str, route_id: str | None, service_id: str | None, succeeded: bool
) -> core.SampledCall:
    return core.SampledCall(capability, msgspec.json.decode(request)["payload"], route_id, service_id, succeeded)


def keep(found: Sequence[core.Advisory], now: datetime, *, gone_after: timedelta) -> None:
    """Write what was noticed; what was not for so long is resolved. Several may do so at once."""
    keys = {(one.kind.value, one.subject) for one in found}
    rows = [
        Advisory(kind=one.kind, subject=one.subject, facts=dict(one.facts), first_seen_at=now, last_seen_at=now)
        for one in sorted(found, key=lambda one: (one.kind, one.subject))  # two writers lock rows in one order
    ]
    with transaction.atomic():
        past = Advisory.objects.exclude(resolved_at=None).values_list("pk", "kind", "subject")
        returned = [pk for pk, *key in past if tuple(key) in keys]
        Advisory.objects.filter(pk__in=returned).update(first_seen_at=now, resolved_at=None, **NOT_ACKNOWLEDGED)
        Advisory.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["kind", "subject"], update_fields=["facts", "last_seen_at"]
        )
        Advisory.objects.filter(resolved_at=None, last_seen_at__lt=now - gone_after).update(resolved_at=now)


NOT_ACKNOWLEDGED: dict[str, Any] = {"acknowledged_at": None, "acknowledged_by": "", "acknowledged_reason": ""}


def acknowledge(advisory_id: int, *, by: str, reason: str) -> bool:
    """Somebody knows of it, and says why it may stand. It asks for nobody's attention until it has gone and come again.

    False: it is resolved, or acknowledged already.
    """
    with transaction.atomic():
        standing = Advisory.objects.filter(pk=advisory_id, resolved_at=None, acknowledged_at=None)
        told = {"acknowledged_at": clock.now(), "acknowledged_by": by, "acknowledged_reason": reason}
        if done := standing.update(**told):
            audit(by, "advisory.acknowledge", f"advisory:{advisory_id}", reason=reason)
    return bool(done)


def take_back(advisory_id: int, *, by: str) -> bool:
    """An acknowledged advisory asks for attention again. False: it was not acknowledged."""
    with transaction.atomic():
        acknowledged = Advisory.objects.filter(pk=advisory_id).exclude(acknowledged_at=None)
        if done := acknowledged.update(**NOT_ACKNOWLEDGED):
            audit(by, "advisory.take_back", f"advisory:{advisory_id}")
    return bool(done)


def kind_of_data() -> KindOfData:
    """How long resolved advisories are kept."""
    resolved = Advisory.objects.exclude(resolved_at=None)
    return KindOfData(
        "advisories",
        _("Advisories"),
        ("routing_advisory",),
        timedelta(days=settings.REACH_RETENTION_DAYS),
        "REACH_RETENTION_DAYS",
        batch_of(resolved, "resolved_at"),
        oldest_of(resolved, "resolved_at"),
        note=_("after they were resolved"),
    )
