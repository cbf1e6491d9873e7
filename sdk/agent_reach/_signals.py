"""SIGTERM and SIGINT ask every agent of the process to drain; a second one ends it as if nobody had listened."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

_stopping: set[asyncio.Event] = set()
"""Of the agents that run in the main thread's loop."""
_former: dict[signal.Signals, Any] = {}


@contextlib.contextmanager
def until_signalled(stopping: asyncio.Event) -> Iterator[None]:
    """Set `stopping` at a signal. Only in the main thread, and only where the program handles it nowhere else."""
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    loop = asyncio.get_running_loop()
    if not _stopping:
        _take(loop)
    _stopping.add(stopping)
    try:
        yield
    finally:
        _stopping.discard(stopping)
        if not _stopping:
            _give_back(loop)


def _take(loop: asyncio.AbstractEventLoop) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        former = signal.getsignal(number)
        is_asyncios = getattr(former, "func", None) is not None  # asyncio.run listens to SIGINT, by a partial
        if former in (signal.SIG_DFL, signal.default_int_handler) or is_asyncios:
            loop.add_signal_handler(number, _begin, loop)
            _former[number] = former


def _begin(loop: asyncio.AbstractEventLoop) -> None:
    _give_back(loop)
    for stopping in _stopping:
        stopping.set()


def _give_back(loop: asyncio.AbstractEventLoop) -> None:
    while _former:
        number, former = _former.popitem()
        loop.remove_signal_handler(number)
        signal.signal(number, former)
