"""The Celery app: what runs beside the requests, and how often. Messages are hints; the database knows what is due.

Worker and beat run as threads of the all-in-one, or as plain Celery commands:

    celery -A reach_project worker --pool threads -c 4 -Q reach,probes --without-gossip --without-mingle
    celery -A reach_project beat
"""

import logging
import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "reach_project.settings")

import django
from celery import Celery, signals
from celery.app.amqp import AMQP
from celery.beat import ScheduleEntry, Scheduler, Service
from celery.contrib.django.task import DjangoTask
from celery.schedules import schedule as interval
from django.conf import settings
from django.db import InterfaceError, OperationalError
from kombu.connection import Connection
from psycopg_pool import PoolTimeout

from reach_project import health
from registry import clock
from registry.errors import Unavailable

log = logging.getLogger(__name__)

QUEUES = ("reach", "probes")
"""What a worker takes from, the first one first: sweeps before probes."""


class ReachTask(DjangoTask):
    """A task that finds the database away says so in one line: beat asks again, the database knows what is due."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except (OperationalError, InterfaceError, PoolTimeout, Unavailable) as exc:
            log.warning("%s found the database away: %s", self.name, first_line(exc))


WAITING_AT_MOST = 20
"""So many messages in a queue mean that no worker takes them: another would say nothing new."""


class ScheduleInMemory(Scheduler):
    """Beat's schedule, kept nowhere: every entry is an interval of seconds. A broker that is away costs two lines.

    None pile up while no worker takes them. They do not expire: the worker would judge that by another host's clock.
    """

    away = False

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        try:
            if self.waiting(entry) < WAITING_AT_MOST:
                self.apply_async(entry, producer=producer, advance=False)
        except Exception as exc:  # whatever one message meets, the next ones are sent
            if not self.away:
                log.warning("beat cannot send, and tries on: %s", first_line(exc))
            self.away = True
        else:
            if self.away:
                log.warning("beat sends again")
            self.away = False

    def waiting(self, entry: ScheduleEntry) -> int:
        """How many messages wait in the queue that this entry goes to."""
        queue = self.app.amqp.router.route({}, entry.task)["queue"]
        return self.connection.default_channel.queue_declare(queue.name).message_count


class Broker(Connection):
    """A broker that was away is found again in two seconds: Celery's pauses grow to half a minute."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        return super().ensure_connection(*args, **{**kwargs, **EVERY_TWO_SECONDS})


EVERY_TWO_SECONDS = {"interval_start": 2, "interval_step": 0, "interval_max": 2}


class Messaging(AMQP):
    Connection = Broker


def first_line(exc: Exception) -> str:
    return (str(exc).strip() or type(exc).__name__).splitlines()[0]


app = Celery("reach_project", task_cls=ReachTask, amqp=Messaging)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.setup_logging.connect
def keep_our_logging(**_: object) -> None:
    """A receiver here keeps Celery from setting logging up: Django has done it, by LOGGING, for every process alike."""


@signals.celeryd_init.connect
def begin_worker(**_: object) -> None:
    """The worker as a process of its own (the all-in-one's does not come by here) waits for a prepared database."""
    begin("The worker", wait=True)


@signals.beat_init.connect
def begin_beat(sender: Service, **_: object) -> None:
    """Beat as a process of its own (the all-in-one's runs in a thread); it needs no database."""
    if threading.current_thread() is threading.main_thread():
        begin("Beat", wait=False)
        be_stopped_by_signals(sender)


def be_stopped_by_signals(beat: Service) -> None:
    """Celery's own handler only raises SystemExit, and Redis's client, interrupted while it reads, makes an ordinary
    error of that: beat went on, one time in three at fifty messages a second. So the wish is also kept."""

    def stop(*_: object) -> None:
        beat.stop()
        raise SystemExit

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def begin(who: str, *, wait: bool) -> None:
    django.setup()
    from reach_project import prepare  # has models

    try:
        prepare.check_shared(who)
        if wait:
            prepare.wait_until_prepared(log.info)
    except prepare.CannotStart as exc:
        raise SystemExit(f"{exc}") from exc


@signals.task_postrun.connect
def pulse(**_: object) -> None:
    """Every task that ran shows that beat and worker both work: readiness looks at the age of the last one."""
    health.PULSE.felt()


LONG_AGO = datetime.fromtimestamp(0, UTC)
"""Not a turn before now: our clock may yet be set right by more than that."""


def every(task: str, seconds: float) -> dict[str, object]:
    """One line of the schedule, by a clock that no step of the host's stops."""
    return {"task": task, "schedule": interval(timedelta(seconds=seconds), nowfun=clock.now)}


def at_once_and_every(task: str, seconds: float) -> dict[str, object]:
    """The same, due when beat starts and not one turn later: readiness waits for it, and so does whoever starts us."""
    return every(task, seconds) | {"last_run_at": LONG_AGO}


def shortest_turn_s() -> float:
    return min(settings.REACH_PROBE_INTERVAL_S, settings.REACH_PROBE_OUT_INTERVAL_S)


@app.on_after_configure.connect
def schedule(sender: Celery, **_: object) -> None:
    sender.conf.beat_schedule = {
        entry["task"]: entry
        for entry in (
            at_once_and_every("registry.sweep_nodes", 1.0),
            at_once_and_every("registry.probe_due", min(1.0, shortest_turn_s() / 2)),
            at_once_and_every("registry.knock", settings.REACH_KNOCK_INTERVAL_S),
            at_once_and_every("routing.sweep_calls", settings.REACH_SWEEP_INTERVAL_S),
            at_once_and_every("routing.sync_route_file", 10.0),
            every("routing.analyse_changes", settings.REACH_REVIEW_INTERVAL_S),
            every("routing.watch_changes", settings.REACH_REVIEW_INTERVAL_S),
            every("routing.advise", settings.REACH_ADVISE_INTERVAL_S),
            every("receipts.redispatch_in_bulk", 1.0),
            every("receipts.roll_up", settings.REACH_STATISTICS_INTERVAL_S),
            every("receipts.maintain_partitions", 600.0),
            every("receipts.forget_what_is_old", 600.0),
        )
    }


@signals.celeryd_init.connect
def trace_calls_of_worker(**_: object) -> None:
    """A worker of its own exports the spans of the calls it recovers; the all-in-one does that with its server."""
    from reach_project import tracing

    tracing.start("worker")
    signals.worker_shutdown.connect(lambda **_: tracing.stop(), weak=False)
