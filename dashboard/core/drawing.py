"""Small pictures in a line of text: what a status was over time, how a number went. Pure; templates make SVG of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil


@dataclass(frozen=True, slots=True)
class Stretch:
    """How long one status held, within what is shown."""

    status: str
    since: datetime
    until: datetime
    percent: float


UNKNOWN = "unknown"
"""The status before the first change that is known."""


SEVERITY = {"not_ready": 5, "expired": 5, "ejected": 4, "suspect": 3, "disabled": 2, "draining": 2, "starting": 1}
"""What of several statuses is shown where there is room for one."""


def stretches(
    changes: Iterable[tuple[datetime, str]], since: datetime, until: datetime, *, most: int = 200
) -> list[Stretch]:
    """The statuses of a span, oldest first, `most` at most. `changes` are in order of time and may begin before it."""
    status, began = UNKNOWN, since
    found: list[tuple[str, datetime, datetime]] = []
    for at, next_status in changes:
        at = min(max(at, since), until)
        if at > began:
            found.append((status, began, at))
        status, began = next_status, at
    if until > began:
        found.append((status, began, until))
    if len(found) > most:
        found = coarser(found, since, (until - since) / most, most)
    span_s = (until - since).total_seconds()
    return [
        Stretch(status, start, end, round(100 * (end - start).total_seconds() / span_s, 2))
        for status, start, end in joined(found)
    ]


def joined(found: Iterable[tuple[str, datetime, datetime]]) -> list[tuple[str, datetime, datetime]]:
    """Equal neighbours as one."""
    whole: list[tuple[str, datetime, datetime]] = []
    for status, start, end in found:
        if whole and whole[-1][0] == status:
            whole[-1] = (status, whole[-1][1], end)
        else:
            whole.append((status, start, end))
    return whole


def coarser(
    found: Iterable[tuple[str, datetime, datetime]], since: datetime, step: timedelta, count: int
) -> list[tuple[str, datetime, datetime]]:
    """As many equal steps, each with the worst status that it has seen."""
    worst = [""] * count
    for status, start, end in found:
        for number in range(int((start - since) / step), min(ceil((end - since) / step), count)):
            if not worst[number] or SEVERITY.get(status, 0) > SEVERITY.get(worst[number], 0):
                worst[number] = status
    return [(status, since + n * step, since + (n + 1) * step) for n, status in enumerate(worst) if status]


def shares(found: Iterable[Stretch]) -> dict[str, float]:
    """Percent of the span that each status held, the longest first; what held for no time at all is left out."""
    sums: dict[str, float] = {}
    for stretch in found:
        sums[stretch.status] = sums.get(stretch.status, 0.0) + stretch.percent
    return dict(sorted(((status, held) for status, held in sums.items() if held), key=lambda row: -row[1]))


def polylines(values: Sequence[float | None], *, width: float, height: float) -> list[str]:
    """The points of the lines that a sparkline consists of: broken where nothing is known; 0 is at the bottom.

    Each value stands in the middle of its part of the width; one that stands alone is a short line.
    """
    highest = max((value for value in values if value is not None), default=0.0) or 1.0
    step = width / max(len(values), 1)
    lines: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(((number + 0.5) * step, height - height * value / highest))
    drawn = [
        line if len(line) > 1 else [(x - step / 3, y) for x, y in line] + [(x + step / 3, y) for x, y in line]
        for line in lines
        if line
    ]
    return [" ".join(f"{x:.1f},{y:.1f}" for x, y in line) for line in drawn]
