"""Housekeeping: partitions made ahead, and what is past its time let go.

Both go by the database's clock: a worker whose host is a year ahead must not delete a year.
"""

from datetime import datetime

from celery import shared_task
from django.conf import settings
from django.db import connection

from receipts import dead_letters, retention, statistics
from receipts.partitions import ensure_partitions


@shared_task(name="receipts.maintain_partitions")
def maintain_partitions() -> None:
    """Make partitions ahead. Quick: it also runs before a process serves."""
    ensure_partitions(database_now(), hours=settings.REACH_PARTITION_HOURS, ahead=settings.REACH_PARTITIONS_AHEAD)


@shared_task(name="receipts.forget_what_is_old")
def forget_what_is_old() -> None:
    """Delete everything that is past its retention, in batches; a long backlog is carried over to the next run."""
    retention.forget(database_now())


@shared_task(name="receipts.roll_up")
def roll_up() -> None:
    """Count the calls of the minutes that are over."""
    statistics.roll_up(database_now())


@shared_task(name="receipts.redispatch_in_bulk")
def redispatch_in_bulk() -> None:
    """Go on with an order to do failed calls again."""
    dead_letters.carry_on()


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
