"""The graph of who calls whom: which part of it is shown, and where each service stands. Pure.

Callers stand left of whom they call, so that calls read from left to right; the same calls make the same picture.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

SWEEPS = 4
"""Passes over the columns, each of which brings neighbours nearer to each other."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Calls from one to another."""

    source: str
    target: str
    calls: int
    failures: int

    @property
    def error_share(self) -> float:
        return self.failures / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class Shown:
    """The part of the graph that is drawn, the busiest first, and how many edges match in all."""

    edges: tuple[Edge, ...]
    matching: int


def shown(
    edges: Iterable[Edge], *, focus: str = "", steps: int = 1, text: str = "", failing: bool = False, most: int = 60
) -> Shown:
    """The busiest edges around one service, or of all; those whose ends have the text in their names."""
    found = sorted(edges, key=lambda edge: (-edge.calls, edge.source, edge.target))
    if focus:
        near = neighbourhood(found, focus, steps)
        found = [edge for edge in found if edge.source in near and edge.target in near]
        if steps == 1:
            found = [edge for edge in found if focus in (edge.source, edge.target)]
    if text:
        wanted = text.lower()
        found = [edge for edge in found if wanted in edge.source.lower() or wanted in edge.target.lower()]
    if failing:
        found = sorted(
            (edge for edge in found if edge.failures), key=lambda edge: (-edge.failures, edge.source, edge.target)
        )
    return Shown(tuple(found[:most]), len(found))


def neighbourhood(edges: Sequence[Edge], focus: str, steps: int) -> set[str]:
    """Who is reached from one service by so many calls at most, in either direction."""
    near = {focus}
    for _step in range(steps):
        near |= {edge.target for edge in edges if edge.source in near} | {
            edge.source for edge in edges if edge.target in near
        }
    return near


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service stands: its column from the left, its row from the top of the column (both from 0)."""

    column: int
    row: float


def places(edges: Sequence[Edge]) -> dict[str, Place]:
    """A place for every service that an edge leads from or to."""
    columns = columns_of(edges)
    order: dict[int, list[str]] = {}
    for name, column in columns.items():
        order.setdefault(column, []).append(name)
    neighbours: dict[str, set[str]] = {name: set() for name in columns}
    for edge in edges:
        if edge.source != edge.target:
            neighbours[edge.source].add(edge.target)
            neighbours[edge.target].add(edge.source)
    rows = {name: float(row) for names in order.values() for row, name in enumerate(sorted(names))}
    for sweep in range(SWEEPS):
        for column in sorted(order, reverse=bool(sweep % 2)):
            middle = {name: middle_of(name, neighbours[name], rows) for name in order[column]}
            order[column].sort(key=lambda name: (middle[name], name))
            rows |= {name: float(row) for row, name in enumerate(order[column])}
    tallest = max(map(len, order.values()), default=0)
    return {name: Place(columns[name], rows[name] + (tallest - len(order[columns[name]])) / 2) for name in columns}


def middle_of(name: str, near: Collection[str], rows: Mapping[str, float]) -> float:
    return sum(rows[one] for one in near) / len(near) if near else rows[name]


def columns_of(edges: Sequence[Edge]) -> dict[str, int]:
    """One column right of all who call it; where calls run in a circle, who sends most of them begins it."""
    called: dict[str, set[str]] = {}
    callers: dict[str, set[str]] = {}
    balance: dict[str, int] = {}
    for edge in edges:
        for name in (edge.source, edge.target):
            called.setdefault(name, set())
            callers.setdefault(name, set())
            balance.setdefault(name, 0)
        if edge.source != edge.target:
            called[edge.source].add(edge.target)
            callers[edge.target].add(edge.source)
            balance[edge.source] += edge.calls
            balance[edge.target] -= edge.calls
    columns: dict[str, int] = {}
    waiting = {name: len(above) for name, above in callers.items()}
    column = dict.fromkeys(waiting, 0)
    while waiting:
        free = [name for name, above in waiting.items() if not above]
        if not free:
            free = [max(waiting, key=lambda name: (balance[name], name))]
        for name in free:
            columns[name] = column[name]
            del waiting[name]
        for name in free:
            for target in called[name]:
                if target in waiting:
                    waiting[target] -= 1
                    column[target] = max(column[target], columns[name] + 1)
    return columns
