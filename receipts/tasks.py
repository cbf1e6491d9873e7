"""Housekeeping of calls and receipts."""

from datetime import UTC, datetime, timedelta

from celery import shared_task
from django.conf import settings
from django.db import connection

from receipts.partitions import drop_partitions, ensure_partitions
from receipts.recovery import FORGET


@shared_task(name="receipts.maintain_partitions")
def maintain_partitions() -> None:
    """Make partitions ahead, drop those past retention, forget expired keys and the leases of dead processes."""
    now = datetime.now(UTC)
    ensure_partitions(now, hours=settings.REACH_PARTITION_HOURS, ahead=settings.REACH_PARTITIONS_AHEAD)
    drop_partitions(now - timedelta(days=settings.REACH_RETENTION_DAYS))
    with connection.cursor() as cursor:
        cursor.execute(FORGET)
