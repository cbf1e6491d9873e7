"""What happened in a replay, second by second."""

import threading
import time
from collections import Counter
from typing import Any


class Report:
    """Counts and notes, each with its moment (epoch seconds). Any thread may add to it."""

    def __init__(self, title: str):
        self.title = title
        self.counted: list[tuple[float, str]] = []
        self.noted: list[tuple[float, str]] = []
        self.changed = threading.Condition()

    def count(self, column: str, at: float | None = None) -> None:
        """One more in this column."""
        with self.changed:
            self.counted.append((time.time() if at is None else at, column))
            self.changed.notify_all()

    def note(self, text: str, at: float | None = None) -> float:
        """Something that happened once; its moment."""
        moment = time.time() if at is None else at
        self.noted.append((moment, text))
        return moment

    def wait_for(self, column: str, more: int, timeout_s: float = 20) -> None:
        """Return when so many more are counted there."""
        with self.changed:
            wanted = self.total(column) + more
            if not self.changed.wait_for(lambda: self.total(column) >= wanted, timeout_s):
                raise AssertionError(f"not within {timeout_s:g} s: {more} more of {column}\n{self}")

    def total(self, column: str, since: float = 0.0) -> int:
        return sum(name == column and at >= since for at, name in self.counted)

    def __str__(self) -> str:
        """A line a second: the counts of each column, then the notes."""
        moments = [at for at, _what in (*self.counted, *self.noted)]
        began = min(moments, default=0.0)
        columns = sorted({name for _at, name in self.counted})
        by_second = Counter((int(at - began), name) for at, name in self.counted)
        lines: list[list[Any]] = [["second", *columns, ""]]
        for second in range(int(max(moments, default=0.0) - began) + 1):
            notes = [f"{at - began:.2f} {text}" for at, text in sorted(self.noted) if int(at - began) == second]
            counts = [by_second[second, name] or "·" for name in columns]
            lines.append([second, *counts, notes[0] if notes else ""])
            lines += [["", *("" for _ in columns), note] for note in notes[1:]]
        widths = [max(len(str(line[place])) for line in lines) for place in range(len(columns) + 1)]
        rows = [
            "  ".join([*(str(cell).rjust(w) for cell, w in zip(line, widths, strict=False)), line[-1]])
            for line in lines
        ]
        return "\n".join(["", self.title, *(row.rstrip() for row in rows)])
