"""Who watches calls go by: metrics and traces sign up here, and dispatch tells them.

An observer is told on the event loop that carries the call, so it must be quick and must not wait. Watching must never
fail a call: what an observer raises is logged and goes no further.
"""

import logging
from typing import TYPE_CHECKING, Protocol

from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Journey, Outcome
from routing.core.plan import Attempt

if TYPE_CHECKING:
    from routing.dispatch import Result

log = logging.getLogger(__name__)


class Observer(Protocol):
    """What is told of each call that this process carries."""

    def attempted(self, journey: Journey, attempt: Attempt, number: int, outcome: Outcome, started_ns: int) -> None:
        """An attempt has just ended; it had started at `started_ns` (epoch nanoseconds by the reach's clock)."""

    def ended(self, envelope: CallEnvelope, result: "Result") -> None:
        """A call has just ended, rejected ones included."""


observers: list[Observer] = []
"""Filled by the composition root before the first call."""


def attempted(journey: Journey, attempt: Attempt, number: int, outcome: Outcome, started_ns: int) -> None:
    for observer in observers:
        try:
            observer.attempted(journey, attempt, number, outcome, started_ns)
        except Exception:
            log.exception("an observer failed; the call goes on")


def ended(envelope: CallEnvelope, result: "Result") -> None:
    for observer in observers:
        try:
            observer.ended(envelope, result)
        except Exception:
            log.exception("an observer failed; the call goes on")
