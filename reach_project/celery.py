"""The Celery app: what runs beside the requests, and how often. Messages are hints; the database knows what is due."""

import os

from celery import Celery, signals
from django.conf import settings

from reach_project import health

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "reach_project.settings")

app = Celery("reach_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.task_postrun.connect
def pulse(**_: object) -> None:
    """Every task that ran shows that beat and worker both work: readiness looks at the age of the last one."""
    health.PULSE.felt()


def every(task: str, seconds: float) -> dict[str, object]:
    """One line of the schedule. A message that nobody took until the next one is due is dropped: none pile up."""
    return {"task": task, "schedule": seconds, "options": {"expires": max(seconds, 1.0)}}


@app.on_after_configure.connect
def schedule(sender: Celery, **_: object) -> None:
    sender.conf.beat_schedule = {
        entry["task"]: entry
        for entry in (
            every("registry.sweep_nodes", 1.0),
            every("registry.probe_due", 1.0),
            every("registry.knock", settings.REACH_KNOCK_INTERVAL_S),
            every("routing.sweep_calls", settings.REACH_SWEEP_INTERVAL_S),
            every("routing.sync_route_file", 10.0),
            every("receipts.maintain_partitions", 600.0),
        )
    }
