"""Read models of traffic, from calls that were counted by the minute: a node's, a service's, who calls whom."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count

from dashboard.core.graph import Edge
from receipts import statistics
from receipts.core.counting import start_of
from receipts.models import Call
from receipts.statistics import Counted

LATELY = timedelta(hours=1)
"""What lists and the heads of pages speak of."""
NOT_PLACED = "—"
"""Where calls stand that no service took."""


@dataclass(frozen=True, slots=True)
class Lately:
    """The calls of one service or node within the last hour."""

    calls: int
    failures: int
    p95_ms: float | None
    share: float | None
    """Of its service's calls, or of all; None where there were none."""

    @property
    def error_share(self) -> float:
        return self.failures / self.calls if self.calls else 0.0


NO_CALLS = Lately(0, 0, None, None)


def lately(found: Counted | None, total: int) -> Lately:
    if found is None or not found.calls:
        return Lately(0, 0, None, 0.0 if total else None)
    return Lately(found.calls, found.failures, found.percentile_ms(0.95), found.calls / total if total else None)


def of(dimension: str, names: Collection[str], now: datetime) -> dict[str, Lately]:
    """The last hour of these services (or capabilities), each with its share of all calls."""
    since = now - LATELY
    found = statistics.counted(dimension, since, now, now, keys=names)
    total = sum(each.calls for each in statistics.counted(statistics.ALL, since, now, now).values())
    return {name: lately(found.get(name), total) for name in names}


def of_nodes(nodes: Collection[tuple[str, str]], now: datetime) -> dict[tuple[str, str], Lately]:
    """The last hour of these nodes (service, node), each with its share of its service's calls."""
    since = now - LATELY
    keys = {f"{service}/{node}": (service, node) for service, node in nodes}
    found = statistics.counted(statistics.NODE, since, now, now, keys=list(keys))
    totals = statistics.counted("service_id", since, now, now, keys=sorted({service for service, _node in nodes}))
    sums = {name: each.calls for name, each in totals.items()}
    return {node: lately(found.get(key), sums.get(node[0], 0)) for key, node in keys.items()}


def open_calls(service_id: str) -> dict[str | None, int]:
    """How many calls each node of a service has at work, by the dispatchers' own account."""
    found = Call.objects.filter(ended_at=None, service_id=service_id).values_list("node_id").annotate(n=Count("pk"))
    return dict(found.order_by())


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of a sparkline."""

    since: datetime
    calls: int
    failures: int
    p95_ms: float | None


def course(dimension: str, key: str, now: datetime, *, span: timedelta, step: timedelta) -> list[Moment]:
    """How the calls of one group went, step by step; those without a call are there too."""
    first = start_of(now - span, step)
    found = statistics.over_time(first, now, now, step, dimension=dimension, key=key)
    moments = []
    while first < now:
        each = found.get(first, Counted())
        moments.append(Moment(first, each.calls, each.failures, each.percentile_ms(0.95) if each.calls else None))
        first += step
    return moments


def edges(since: datetime, now: datetime) -> list[Edge]:
    """Who called whom; calls that no service took lead to `NOT_PLACED`."""
    return [
        Edge(caller, service_id or NOT_PLACED, group.calls, group.failures)
        for (service_id, caller), group in statistics.told(statistics.PAIR, since, now, now).items()
    ]


def callers(dimension: str, name: str, since: datetime, now: datetime) -> list[Edge]:
    """Who called a service (`PAIR`) or for a capability (`USE`), the busiest first."""
    found = [
        Edge(caller, name, group.calls, group.failures)
        for (_name, caller), group in statistics.told(dimension, since, now, now, first=name).items()
    ]
    return sorted(found, key=lambda edge: (-edge.calls, edge.source))
