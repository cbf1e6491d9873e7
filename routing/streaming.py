"""What a node says line by line, kept as receipts: at most so many a second, and never a write for each."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from receipts.core.journey import Ended, Outcome
from receipts.core.lifecycle import Kind
from routing.core.reports import Report, running_detail


class Note(Protocol):
    """Adds a receipt to what the next write takes along."""

    def __call__(self, kind: str, detail: Any = None) -> None: ...


class StreamedReceipts:
    """The lines of one attempt's answer, on their way to the journal.

    One write is out at a time; what comes meanwhile goes with the next, or with the attempt's end. A line that says
    what the last receipt says leaves none, and beyond `per_s` lines only show life.
    """

    def __init__(self, note: Note, write: Callable[[], asyncio.Future[bool]], lost: Callable[[], None], *, per_s: int):
        self.note, self.write, self.lost, self.per_s = note, write, lost, per_s
        self.loop = asyncio.get_running_loop()
        self.acknowledged = self.waiting = self.over = False
        self.last: dict[str, Any] | None = {}
        self.writing: asyncio.Future[bool] | None = None
        self.second, self.noted = 0, 0

    def take(self, told: Report | Outcome) -> None:
        """Note one line. An outcome is not written here: the attempt's end takes along what is noted."""
        if not self.acknowledged and (isinstance(told, Report) or told.ended in (Ended.SUCCEEDED, Ended.FAILED)):
            self.acknowledged = self.waiting = True
            self.note(Kind.ACKNOWLEDGED)
        if isinstance(told, Outcome):
            return
        detail = running_detail(told)
        if detail != self.last and self.is_allowed():
            self.last, self.waiting = detail, True
            self.note(Kind.RUNNING, detail)
        self.flush()

    def is_allowed(self) -> bool:
        """One more receipt in this second; those that are too many are not kept."""
        if (second := int(self.loop.time())) != self.second:
            self.second, self.noted = second, 0
        self.noted += 1
        return self.noted <= self.per_s

    def flush(self) -> None:
        if self.waiting and self.writing is None and not self.over:
            self.waiting = False
            self.writing = self.write()
            self.writing.add_done_callback(self.written)

    def written(self, writing: asyncio.Future[bool]) -> None:
        self.writing = None
        if writing.cancelled() or writing.exception() is not None or not writing.result():
            self.lost()  # the call has ended, or is no longer ours
        else:
            self.flush()
