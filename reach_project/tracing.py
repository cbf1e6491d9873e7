"""Traces by OTLP, where a collector is configured: done by `reach_project/otlp.py`, which is not imported otherwise."""

import threading
from typing import TYPE_CHECKING

from django.conf import settings

from routing import observing

if TYPE_CHECKING:
    from reach_project.otlp import Spans

FLUSH_S = 3.0
"""So long (s) a process that stops waits for its last spans to be sent."""

current: "Spans | None" = None


def start(role: str) -> None:
    """Begin to export spans of the calls that this process carries, if anybody wants them."""
    global current
    if current is None and settings.REACH_TRACES_WANTED:
        from reach_project.otlp import Spans

        current = Spans.to_collector(ratio=settings.REACH_TRACE_SAMPLE, role=role)
        observing.observers.append(current)


def stop() -> None:
    """Send what is left, as far as the collector takes it in time. Blocks for FLUSH_S at the most."""
    global current
    if current is not None:
        observing.observers.remove(current)
        ending = threading.Thread(target=current.close, name="last spans", daemon=True)
        ending.start()
        ending.join(FLUSH_S)
        current = None
