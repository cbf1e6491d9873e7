"""What the overview reads: a function a panel, each returns plain data, and none asks more when there are more rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.db.models import Count, Exists, F, OuterRef, Q, Sum
from django.utils import timezone

from receipts import statistics
from receipts.core.counting import HOUR, MINUTE, percentile_ms, start_of
from receipts.models import Call
from receipts.partitions import lowest_id
from receipts.statistics import Counted
from registry import clock
from registry.models import Capability, Declaration, Node, NodeLease, RefusalCount, StatusChange
from registry.querysets import able, with_status
from registry.services import PROBE_PENDING
from registry.wording import NODE_STATUS
from routing import live
from routing.core.review import Status
from routing.models import Advisory, RouteChange, TableRevision

SERVERS = ("all", "dispatcher")
"""Roles whose processes take calls."""
SHOWN = 8
MARKS_SHOWN = 24
LIMIT_LOOK = timedelta(seconds=15)
"""How calls a second are told for the limits that are near; rates of less than one call in it are left out."""
OPEN_COUNTED = 1000
NEWEST = (
    "id", "trace_id", "mirror_of", "caller", "capability", "status", "service_id", "node_id", "attempts", "accepted_at",
    "ended_at", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """How far back is looked, and how wide the charts' steps are."""

    name: str
    long: timedelta
    step: timedelta

    def since(self, now: datetime) -> datetime:
        """Where the first whole step begins."""
        return start_of(now - self.long, self.step)


SPANS = {
    span.name: span
    for span in (
        Span("15m", timedelta(minutes=15), MINUTE),
        Span("1h", HOUR, MINUTE),
        Span("24h", 24 * HOUR, HOUR),
        Span("7d", 7 * 24 * HOUR, 2 * HOUR),
    )
}
RECENT = SPANS["15m"]


# --- Who carries calls -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Processes:
    """Which processes live, by the database's clock."""

    dispatchers: int = 0
    engines: int = 0
    last_dispatcher: str = ""
    """Of those that do not live any more the one seen last, if its lease is still kept."""
    gone_at: datetime | None = None
    swept_s: float | None = None
    """Since worker and beat last swept; None: never."""


PROCESSES = """
SELECT count(*) FILTER (WHERE lives AND serves), count(*) FILTER (WHERE lives AND role = 'engine'),
    (array_agg(host || ':' || pid ORDER BY lease_expires_at DESC) FILTER (WHERE serves))[1],
    max(lease_expires_at) FILTER (WHERE serves),
    (SELECT extract(epoch FROM now() - max(swept_at))::float8 FROM registry_leasesweep)
FROM (SELECT *, lease_expires_at > now() AS lives, role = ANY(%s) AS serves FROM process_leases) AS known
"""


def processes() -> Processes:
    with connection.cursor() as cursor:
        cursor.execute(PROCESSES, [list(SERVERS)])
        dispatchers, engines, last, gone_at, swept_s = cursor.fetchone()
    return Processes(dispatchers, engines, last or "", gone_at, swept_s)


# --- Traffic ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """Ended calls of one step."""

    since: datetime
    seconds: float
    """How much of the step is over."""
    counted: Counted

    @property
    def rate(self) -> float:
        return self.counted.calls / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Ended calls of a span, in all and step by step."""

    since: datetime
    until: datetime
    points: Sequence[Point]
    total: Counted

    @property
    def rate(self) -> float:
        return self.total.calls / max((self.until - self.since).total_seconds(), 1.0)

    @property
    def failed_share(self) -> float:
        return self.total.failures / self.total.calls if self.total.calls else 0.0

    def percentile_ms(self, share: float) -> float:
        return self.total.percentile_ms(share)


def traffic(span: Span, now: datetime) -> Traffic:
    since = span.since(now)
    found = statistics.over_time(since, now, now, span.step)
    points, total, at = [], Counted(), since
    while at < now:
        counted = found.get(at, Counted())
        points.append(Point(at, min(span.step, now - at).total_seconds(), counted))
        total.calls += counted.calls
        total.failures += counted.failures
        total.buckets.update(counted.buckets)
        at += span.step
    if len(points) > 1 and not points[-1].counted.calls:
        points.pop()  # a step that has just begun is not an hour of silence
    return Traffic(since, now, points, total)


@dataclass(frozen=True, slots=True)
class Busy:
    """One service's part of the calls that were sent to a node."""

    service_id: str
    calls: int
    share: float
    failed_share: float
    p95_ms: float

    @property
    def takes_most(self) -> bool:
        return self.share > settings.REACH_OVERVIEW_SHARE


def busiest(traffic: Traffic, now: datetime) -> list[Busy]:
    found = statistics.counted("service_id", traffic.since, traffic.until, now)
    taken = sum(counted.calls for service_id, counted in found.items() if service_id)
    return [
        Busy(
            service_id,
            counted.calls,
            counted.calls / taken,
            counted.failures / counted.calls,
            percentile_ms(counted.buckets, 0.95),
        )
        for service_id, counted in list(found.items())[: SHOWN + 1]
        if service_id
    ][:SHOWN]


def newest_calls() -> list[Call]:
    """The last calls, mirrored copies left out."""
    return list(Call.objects.filter(mirror_of=None).order_by("-pk").only(*NEWEST)[:SHOWN])


def open_calls() -> int:
    """Calls under way; at most `OPEN_COUNTED` are counted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT FROM calls WHERE ended_at IS NULL LIMIT %s) AS open", [OPEN_COUNTED]
        )
        return int(cursor.fetchone()[0])


def refusals(since: datetime) -> list[tuple[str, int]]:
    """Requests that were refused and left no call, by code."""
    counts = RefusalCount.objects.filter(minute__gte=since).values_list("code").annotate(n=Sum("count"))
    return sorted(counts, key=lambda row: -row[1])


# --- Nodes -----------------------------------------------------------------------------------------------------------


def nodes_by_status() -> Counter[str]:
    """Present nodes by the status that is shown."""
    counts = {status: Count("pk", filter=with_status(status)) for status in NODE_STATUS if status != "removed"}
    return Counter(Node.objects.present().aggregate(**counts))


@dataclass(frozen=True, slots=True)
class Shut:
    """A breaker that lets nothing through."""

    name: str
    service_id: str
    node_pk: int | None
    """None: the breaker of a whole service."""
    until: datetime
    why: str = ""


def open_breakers() -> list[Shut]:
    """Of nodes as all processes tell the database, of services as this process knows them."""
    now = clock.now()
    ejected = Node.objects.present().filter(ejected_until__gt=now).order_by("ejected_until")[:SHOWN]
    found = [
        Shut(str(node), node.service_id, node.pk, node.ejected_until, node.ejected_reason or "") for node in ejected
    ]
    of_services: dict[str, Shut] = {}
    for load in live.loads:
        at_s = load.clock()
        for (service_id, node_id), breaker in load.opened.copy().items():
            turns_at_s = breaker.turns_at_s(load.rules_of((service_id, node_id)), at_s)
            if not node_id and turns_at_s > at_s:
                until = now + timedelta(seconds=turns_at_s - at_s)
                of_services[service_id] = Shut(service_id, service_id, None, until)
    return [*of_services.values(), *found][:SHOWN]


@dataclass(frozen=True, slots=True)
class Near:
    """A node near one of its limits."""

    node: str
    node_pk: int
    capability: str
    """Empty where the limit is the node's max_concurrency."""
    used: float
    limit: float

    @property
    def share(self) -> float:
        return self.used / self.limit


NEAR_RATE = """
SELECT n.service_id || '/' || n.node_id, n.id, sent.capability, (sent.n / %(seconds)s)::float8, d.rate_per_s
FROM (
    SELECT service_id, node_id, capability, count(*) AS n FROM calls
    WHERE id >= %(low)s AND node_id IS NOT NULL GROUP BY 1, 2, 3
) AS sent
    JOIN registry_node n ON n.service_id = sent.service_id AND n.node_id = sent.node_id AND n.deleted_at IS NULL
    JOIN registry_declaration d ON d.node_id = n.id AND d.capability_id = sent.capability
WHERE d.rate_per_s * %(seconds)s >= 1 AND sent.n / %(seconds)s >= d.rate_per_s * %(near)s
ORDER BY sent.n / %(seconds)s / d.rate_per_s DESC LIMIT %(shown)s
"""


def near_limits(now: datetime) -> list[Near]:
    """Nodes whose calls of the last seconds, or whose work at hand, come near to what they take."""
    near = settings.REACH_NEAR_LIMIT
    asked = {"seconds": LIMIT_LOOK.total_seconds(), "low": lowest_id(now - LIMIT_LOOK), "near": near, "shown": SHOWN}
    with connection.cursor() as cursor:
        cursor.execute(NEAR_RATE, asked)
        found = [Near(*row) for row in cursor.fetchall()]
    full = (
        NodeLease.objects.filter(
            node__deleted_at=None, expired=False, node__max_concurrency__gt=0,
            in_flight__gte=F("node__max_concurrency") * near,
        )
        .select_related("node")
        .order_by("-in_flight")[:SHOWN]
    )  # fmt: skip
    found += [
        Near(str(lease.node), lease.node_id, "", lease.in_flight or 0, lease.node.max_concurrency or 1)
        for lease in full
    ]
    return sorted(found, key=lambda one: -one.share)[:SHOWN]


def unprovided(shown: int = SHOWN) -> list[str]:
    """Capabilities that present nodes declare, none of them ready."""
    declared = Declaration.objects.filter(capability=OuterRef("pk"), node__deleted_at=None)
    found = Capability.objects.filter(Exists(declared), ~Exists(declared.filter(able("node__"))))
    return list(found.order_by("pk").values_list("pk", flat=True)[:shown])


# --- Changes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was changed at a moment: a published table, or a version of a service that came."""

    at: datetime
    revision: int | None
    """None: a deployment."""
    title: str
    by: str = ""
    nodes: int = 1


def marks(traffic: Traffic, span: Span) -> list[Mark]:
    """The last publications and deployments of a span, oldest first. What is deployed within one step is one mark."""
    revisions = (
        TableRevision.objects.filter(published_at__gte=traffic.since)
        .select_related("published_by")
        .order_by("-number")[:MARKS_SHOWN]
    )
    found = [
        Mark(one.published_at, one.number, one.note, one.published_by.get_username() if one.published_by else "")
        for one in revisions
    ]
    declared = (
        StatusChange.objects.filter(Q(reason=PROBE_PENDING) | ~Q(version=""), at__gte=traffic.since)
        .order_by("-at")
        .values_list("node__service_id", "version", "at")[: 10 * MARKS_SHOWN]
    )
    return sorted([*found, *deployments(declared, span.step)], key=lambda mark: mark.at)[-MARKS_SHOWN:]


def deployments(declared: Iterable[tuple[str, str, datetime]], step: timedelta) -> list[Mark]:
    """Declarations (service, version, moment) as marks, one for each service, version and step."""
    together: dict[tuple[str, str, datetime], list[datetime]] = {}
    for service_id, version, at in declared:
        together.setdefault((service_id, version, start_of(at, step)), []).append(at)
    return [
        Mark(min(moments), None, f"{service_id} {version}".strip(), nodes=len(moments))
        for (service_id, version, _step), moments in together.items()
    ]


def waiting_changes() -> list[RouteChange]:
    """Route changes that wait for a person: to be reviewed, or to be published."""
    waiting = RouteChange.objects.filter(status__in=(Status.IN_REVIEW, Status.APPROVED))
    return list(waiting.select_related("author").defer("document", "operations").order_by("-updated_at")[:SHOWN])


def standing_advisories() -> list[Advisory]:
    return list(Advisory.objects.filter(resolved_at=None, acknowledged_at=None).order_by("-last_seen_at")[:SHOWN])


# --- All of it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page shows; a panel that its reader may not see is empty."""

    now: datetime
    span: Span
    processes: Processes
    traffic: Traffic | None = None
    recent: Traffic | None = None
    """The last quarter of an hour, whatever the span: whether it is all right is asked of now."""
    busiest: Sequence[Busy] = ()
    causes: Sequence[statistics.Cause] = ()
    newest: Sequence[Call] = ()
    open_calls: int = 0
    refusals: Sequence[tuple[str, int]] = ()
    nodes: Counter[str] = field(default_factory=Counter)
    breakers: Sequence[Shut] = ()
    near_limits: Sequence[Near] = ()
    unprovided: Sequence[str] = ()
    changes: Sequence[RouteChange] = ()
    advisories: Sequence[Advisory] = ()
    marks: Sequence[Mark] = ()


def look(span: Span, *, calls: bool, nodes: bool, changes: bool, advisories: bool) -> Overview:
    """Read what somebody may see. About two dozen queries, however many calls, nodes and changes there are."""
    now = timezone.now()
    of_calls: dict = {}
    if calls:
        found = traffic(span, now)
        of_calls = {
            "traffic": found,
            "recent": found if span is RECENT else traffic(RECENT, now),
            "busiest": busiest(found, now),
            "causes": statistics.causes(found.since, shown=SHOWN),
            "newest": newest_calls(),
            "open_calls": open_calls(),
            "refusals": refusals(found.since),
            "marks": marks(found, span),
        }
    of_nodes: dict = {}
    if nodes:
        of_nodes = {
            "nodes": nodes_by_status(),
            "breakers": open_breakers(),
            "near_limits": near_limits(now),
            "unprovided": unprovided(),
        }
    return Overview(
        now,
        span,
        processes(),
        **of_calls,
        **of_nodes,
        changes=waiting_changes() if changes else (),
        advisories=standing_advisories() if advisories else (),
    )
