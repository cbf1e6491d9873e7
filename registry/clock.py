"""The reach's clock: the database's, so that the processes of one installation agree whatever their hosts' clocks say.

It runs on the monotonic clock, so a step of the host's wall clock moves no deadline. The snapshot's look at the
database each second sets it right (`set_right`).
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg

log = logging.getLogger(__name__)

TOLERATED_S = 0.1
"""Hosts that keep time are nearer than this; the answer's way takes as long."""
WORTH_A_WORD_S = 1.0

_monotonic: Callable[[], float] = time.monotonic
_epoch_of_monotonic_s = time.time() - time.monotonic()


def monotonic() -> float:
    """Seconds by this host's monotonic clock; only their differences mean anything."""
    return _monotonic()


def now_s() -> float:
    """Epoch seconds."""
    return _monotonic() + _epoch_of_monotonic_s


def now_millis() -> int:
    """Epoch milliseconds."""
    return int(now_s() * 1000)


def now_ns() -> int:
    """Epoch nanoseconds, as far as a float tells them apart (a quarter of a microsecond)."""
    return int(now_s() * 1e9)


def now() -> datetime:
    """This moment, UTC."""
    return datetime.fromtimestamp(now_s(), UTC)


def ask(session: psycopg.Connection[Any]) -> None:
    """Take over the database's time, before anything goes by ours. Raises psycopg.OperationalError."""
    asked_s = now_s()
    row = session.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
    assert row is not None
    set_right(float(row[0]), asked_s=asked_s, answered_s=now_s())


def set_right(database_s: float, *, asked_s: float, answered_s: float) -> None:
    """Take over the database's epoch seconds, read between two moments of our own clock, when they are far off."""
    global _epoch_of_monotonic_s
    off_s = database_s - (asked_s + answered_s) / 2
    if abs(off_s) - (answered_s - asked_s) / 2 <= TOLERATED_S:
        return
    if abs(off_s) > WORTH_A_WORD_S:
        log.warning("this host's clock was %+.1f s off the database's; the reach goes by the database's", -off_s)
    _epoch_of_monotonic_s += off_s


@contextmanager
def going_by(monotonic: Callable[[], float], *, epoch_of_monotonic_s: float) -> Iterator[None]:
    """Meanwhile this whole process goes by another monotonic clock: that of a simulated world."""
    global _monotonic, _epoch_of_monotonic_s
    before = _monotonic, _epoch_of_monotonic_s
    _monotonic, _epoch_of_monotonic_s = monotonic, epoch_of_monotonic_s
    try:
        yield
    finally:
        _monotonic, _epoch_of_monotonic_s = before
