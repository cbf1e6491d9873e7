"""Which numbers of a series do not belong: far from its median, by the median of all distances."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

FAR = 4.0
"""Distances from the median, in robust standard deviations, from which a number does not belong."""
MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation comparable to a standard deviation of normal data."""
ENOUGH = 8
"""A shorter series says nothing about what is usual."""


class Anomaly(NamedTuple):
    when: str
    where: str
    measure: str
    value: float
    usual: float

    @property
    def sentence(self) -> str:
        return f"{self.measure} of {self.where} in {self.when} is {self.value:,.0f}; usual is {self.usual:,.0f}"


def found(rows: Sequence[Mapping[str, Any]], *, measure: str, by: Sequence[str]) -> list[Anomaly]:
    """The numbers of `rows` that do not belong, where `by` has a span of time (week, month); in order."""
    span = next((name for name in ("week", "month") if name in by), None)
    if span is None:
        return []
    series: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in rows:
        where = " / ".join(str(row[name]) for name in by if name != span) or "all"
        series[where].append((row[span], float(row[measure])))
    return sorted(
        Anomaly(when, where, measure, value, usual)
        for where, points in series.items()
        for when, value, usual in outliers(points)
    )


def outliers(points: Sequence[tuple[str, float]]) -> list[tuple[str, float, float]]:
    if len(points) < ENOUGH:
        return []
    usual = median(value for _when, value in points)
    spread = MAD_TO_SIGMA * median(abs(value - usual) for _when, value in points)
    return [(when, value, usual) for when, value in points if spread and abs(value - usual) / spread > FAR]
