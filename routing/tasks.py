"""What the worker does for routing: keep its engine at work, follow the route file, look after reviews."""

import logging
import threading
from typing import Any

from celery import shared_task, signals
from django.conf import settings
from django.db import OperationalError

from registry import clock
from routing import advisories, replay, watch
from routing.engine import running_engine, stop_engine
from routing.route_file import sync_route_file as sync

log = logging.getLogger(__name__)

ANALYSING = threading.Lock()
WATCHING = threading.Lock()
"""One of each in a process: an analysis takes a while, and the other threads of a worker have other things to do."""


@shared_task(name="routing.sweep_calls")
def sweep_calls() -> None:
    """Find calls whose process is gone; the engine carries them on."""
    thread = running_engine()
    if taken := thread.call(thread.engine.sweep(), timeout_s=30):
        log.info("%d orphaned calls taken over", taken)


@shared_task(name="routing.sync_route_file")
def sync_route_file() -> None:
    """Turn an edit of ROUTE_FILE into a change in review."""
    if settings.ROUTE_FILE:
        sync(settings.ROUTE_FILE)


@shared_task(name="routing.advise")
def advise() -> None:
    """Look at the last day's calls and at the tables for what an operator should know."""
    tables = running_engine().engine.parts.snapshot.tables
    if tables is None:
        return
    try:
        advisories.look(tables, clock.now())
    except OperationalError as exc:  # too slow, or away: the next turn is soon enough
        log.warning("no advisories this time: %s", str(exc).splitlines()[0])


@shared_task(name="routing.analyse_changes")
def analyse_changes() -> None:
    """Work out what route changes would do, where that is asked and not known."""
    if ANALYSING.acquire(blocking=False):
        try:
            replay.analyse_due(lambda: running_engine().engine.parts.snapshot.tables)
        finally:
            ANALYSING.release()


@shared_task(name="routing.watch_changes")
def watch_changes() -> None:
    """See how the calls fare that published changes have moved."""
    if WATCHING.acquire(blocking=False):
        try:
            watch.look_at_due()
        finally:
            WATCHING.release()


@signals.worker_init.connect
def start_with_worker(**_kwargs: Any) -> None:
    """At once, whether the broker is there or not: what is due lies in the database."""
    running_engine()


@signals.worker_shutdown.connect
def stop_with_worker(**_kwargs: Any) -> None:
    stop_engine()
