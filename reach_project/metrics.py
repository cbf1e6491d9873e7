"""`/metrics`: what this process has done and how it stands, for Prometheus.

Labels are bounded: names come from the reach's own tables and no metric has more than REACH_METRICS_LABEL_VALUES of
them, everything else is `other`; node addresses, callers and labels of calls are never among them. Counting a call
costs a few microseconds on its event loop; whatever needs a walk is done at the scrape, in a thread, from memory alone.
"""

import asyncio
import platform
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import version
from time import monotonic

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from rest_framework.request import Request

from reach_project import VERSION, health
from receipts import journal
from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Journey, Outcome
from registry import refusals
from registry.auth import OBSERVE, Key
from registry.clock import now_ns
from registry.core.node import Node, visible_status
from registry.errors import Unavailable
from registry.http import AsyncAPIView
from routing import engine, live, mirroring, observing
from routing.core.breaker import State as BreakerState
from routing.core.plan import Attempt
from routing.core.tables import Tables
from routing.dispatch import Result
from routing.health import NodeLoad
from routing.waiting import KINDS

OTHER = "other"
NO_CODE = "none"
SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
COMMIT_ROWS = (1, 2, 5, 10, 25, 50, 100, 256)
Counts = Tally[tuple[str, ...]]
"""Counts by the values of some labels."""
STATUSES = ("starting", "ready", "not_ready", "suspect", "ejected", "draining", "disabled", "expired")


class Names:
    """The values that one label may take: the first `at_most` names that the reach knows, `other` for the rest."""

    def __init__(self, known: Callable[[str], bool], at_most: int):
        self._known, self._at_most = known, at_most
        self._admitted: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        admitted = self._admitted.get(name)
        if admitted is not None:
            return admitted
        if len(self._admitted) < self._at_most and self._known(name):
            return self._admitted.setdefault(name, name)
        return OTHER


class Metrics:
    """What this process counts, and the observer that counts it. `tables` are those of the moment, None before any."""

    def __init__(self, tables: Callable[[], Tables | None], *, label_values: int, role: str):
        self.registry = registry = CollectorRegistry()
        self._capability = Names(lambda name: name in known_capabilities(tables()), label_values)
        self._service = Names(lambda name: name in known_services(tables()), label_values)
        self._calls = Counter(
            "reach_calls",
            "Calls ended, by status and problem code",
            ["capability", "status", "code"],
            registry=registry,
        )
        self._attempts = Counter(
            "reach_attempts", "Attempts ended, and how", ["service_id", "ended"], registry=registry
        )
        self._call_seconds = Histogram(
            "reach_call_duration_seconds",
            "From a call's arrival to its end, rejected calls left out",
            ["capability"],
            buckets=SECONDS,
            registry=registry,
        )
        self._attempt_seconds = Histogram(
            "reach_attempt_duration_seconds",
            "From an attempt's start to its end",
            ["service_id"],
            buckets=SECONDS,
            registry=registry,
        )
        self._commit_rows = Histogram(
            "reach_journal_commit_rows", "Rows in one group commit", ["lane"], buckets=COMMIT_ROWS, registry=registry
        )
        self._commit_seconds = Histogram(
            "reach_journal_commit_seconds", "How long one took", ["lane"], buckets=COMMIT_SECONDS, registry=registry
        )
        # children are looked up here once: `labels()` checks and locks anew at every call
        self._call_children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._attempt_children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._lane_children: dict[str, tuple[Histogram, Histogram]] = {}
        provided = Names(lambda name: name in known_capabilities(tables()), label_values)
        registry.register(State(tables, provided, self._service, role))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    # --- The observer ------------------------------------------------------------------------------------------------

    def attempted(self, journey: Journey, attempt: Attempt, number: int, outcome: Outcome, started_ns: int) -> None:
        key = self._service(attempt.chosen.node.service_id), outcome.ended.value
        children = self._attempt_children.get(key)
        if children is None:
            children = self._attempts.labels(*key), self._attempt_seconds.labels(key[0])
            self._attempt_children[key] = children
        children[0].inc()
        children[1].observe(max(0, now_ns() - started_ns) / 1e9)

    def ended(self, envelope: CallEnvelope, result: Result) -> None:
        name, code = self._capability(envelope.capability), result.ending.code
        key = name, f"{result.status} {code}"
        children = self._call_children.get(key)
        if children is None:
            children = self._calls.labels(name, result.status, code or NO_CODE), self._call_seconds.labels(name)
            self._call_children[key] = children
        children[0].inc()
        if result.attempts:
            children[1].observe(max(0, result.duration_ms) / 1000)

    def committed(self, lane: str, rows: int, seconds: float) -> None:
        children = self._lane_children.get(lane)
        if children is None:
            short = short_name(lane)
            children = self._commit_rows.labels(short), self._commit_seconds.labels(short)
            self._lane_children[lane] = children
        children[0].observe(rows)
        children[1].observe(seconds)


def short_name(lane: str) -> str:
    return lane.removeprefix("journal ")


def known_capabilities(tables: Tables | None) -> Collection[str]:
    return () if tables is None else tables.known


def known_services(tables: Tables | None) -> Collection[str]:
    return () if tables is None else tables.secrets.keys()


class State(Collector):
    """What is only looked at when somebody asks."""

    def __init__(self, tables: Callable[[], Tables | None], provided: Names, service: Names, role: str):
        self._tables, self._provided, self._service, self._role = tables, provided, service, role
        self._counted_of: Tables | None = None
        self._counted: tuple[Counts, Counts] = Tally(), Tally()

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield family("reach_build_info", "Which code runs here, in which role", *self._build())
        refused = CounterMetricFamily(
            "reach_refusals", "Requests refused without a call, by problem code", None, ["code"]
        )
        for code, count in sorted(refusals.by_code.copy().items()):
            refused.add_metric([code], count)
        yield refused
        mirrored = CounterMetricFamily(
            "reach_mirrored", "Copies of calls that were due: copied; or left out, full or nobody", None, ["fate"]
        )
        for fate, count in sorted(mirroring.fates.copy().items()):
            mirrored.add_metric([fate], count)
        yield mirrored
        yield family(
            "reach_part_working",
            "1 while a part of this process works (see /readyz)",
            ("part",),
            {(name,): int(why is None) for name, why in health.look_at_parts().items()},
        )
        at_work = [holder for holder in (live.current, engine_parts()) if holder is not None]
        yield from self._journal(at_work)
        under_way = sum(parts.under_way for parts in at_work)
        yield family("reach_calls_in_flight", "Calls that this process carries now", (), {(): under_way})
        waiting: Counts = Tally({(kind,): 0 for kind in KINDS})
        for parts in at_work:
            waiting.update({(kind,): count for kind, count in parts.waiting.of_kind.items()})
        yield family("reach_waiting_clients", "Clients that wait for calls or follow them", ("kind",), waiting)
        flying: Counts = Tally()
        for parts in at_work:
            for (service_id, _node_id), count in parts.load.flying.copy().items():
                flying[(self._service(service_id),)] += count
        not_closed: Counts = Tally()
        openings = 0
        for parts in at_work:
            openings += parts.load.openings
            for service_id, node_id in parts.load.opened.copy():
                not_closed[(self._service(service_id), "node" if node_id else "service")] += 1
        yield family("reach_breakers_not_closed", "Breakers open or half-open here", ("service_id", "of"), not_closed)
        opened = CounterMetricFamily("reach_breaker_openings", "Breakers that have opened by what was seen here")
        opened.add_metric([], openings)
        yield opened
        sharing = [parts.load.shared is not None for parts in at_work if parts.sharing is not None]
        if sharing:
            shared: dict[tuple[str, ...], float] = {(): int(all(sharing))}
            yield family("reach_sharing", "1 while breakers and rates are shared with other processes", (), shared)
        if what_waits is not None:
            calls: dict[tuple[str, ...], float] = {(): what_waits["calls"]}
            yield family("reach_waiting_calls", "Asynchronous calls of all processes not placed yet", (), calls)
            told: dict[tuple[str, ...], float] = {(status,): what_waits[status] for status in CALLBACKS}
            yield family("reach_callbacks", "Callbacks pending, and given up within a day", ("status",), told)
        if engine.running is not None:
            held: dict[tuple[str, ...], float] = {(): engine.running.engine.room.count}
            yield family("reach_engine_held_calls", "Of them, those that this process's engine holds", (), held)
        yield family("reach_attempts_in_flight", "Attempts that this process has out now", ("service_id",), flying)
        yield from self._snapshot()

    def _build(self) -> tuple[tuple[str, ...], dict[tuple[str, ...], float]]:
        named = ("version", "role", "python", "django")
        return named, {(VERSION, self._role, platform.python_version(), version("django")): 1}

    def _journal(self, at_work: list[live.LiveParts]) -> Iterator[Metric]:
        waiting: Counts = Tally()
        going_s: dict[tuple[str, ...], float] = {}
        for parts in at_work:
            for lane in (parts.journal.new_calls, parts.journal.moves):
                name = (short_name(lane.name),)
                waiting[name] += len(lane.waiting)
                since = lane.flushing_since
                going_s[name] = max(going_s.get(name, 0), 0 if since is None else monotonic() - since)
        yield family("reach_journal_waiting_rows", "Rows that wait for their commit", ("lane",), waiting)
        yield family("reach_journal_commit_age_seconds", "Since the commit at work began", ("lane",), going_s)

    def _snapshot(self) -> Iterator[Metric]:
        tables = self._tables()
        if tables is None:
            return
        yield family("reach_snapshot_version", "Version of the tables in memory", (), {(): tables.version})
        if live.current is not None:
            age_s = live.current.snapshot.age_s()
            yield family("reach_snapshot_age_seconds", "Since they were last known to be current", (), {(): age_s})
        yield family("reach_route_revision", "Revision of the route table in memory", (), {(): tables.revision})
        if self._counted_of is not tables:
            self._counted_of, self._counted = tables, self._count(tables)
        statuses, ready = self._counted
        if live.current is not None:
            statuses = with_ejected(statuses, tables, live.current.load)
        yield family("reach_nodes", "Nodes as this process knows them, by status", ("status",), statuses)
        yield family("reach_capability_ready_nodes", "Ready nodes that offer a capability", ("capability",), ready)

    def _count(self, tables: Tables) -> tuple[Counts, Counts]:
        """The nodes by status, and the ready ones by capability: a walk of all, once for each version of the tables."""
        statuses: Counts = Tally({(status,): 0 for status in STATUSES})
        for node in tables.nodes.values():
            statuses[(status_of(node),)] += 1
        ready: Counts = Tally()
        for name in sorted(tables.known):
            ready[(self._provided(name),)] += sum(is_ready(node) for node, _offer in tables.providers.get(name, ()))
        return statuses, ready


def engine_parts() -> live.LiveParts | None:
    """Those of the worker's engine, where it is a thread of this process."""
    return engine.running.engine.parts if engine.running is not None else None


def status_of(node: Node) -> str:
    return visible_status(node.health, "", node.admin_state, expired=node.expired).name


def with_ejected(statuses: Counts, tables: Tables, load: NodeLoad) -> Counts:
    """The counts with those apart that could take calls, but for their open breaker."""
    counted, now = statuses.copy(), load.clock()
    for key, breaker in load.opened.copy().items():
        node = tables.nodes.get(key)
        if node is None or breaker.state(load.rules_of(key), now) is not BreakerState.OPEN:
            continue
        ejected = visible_status(node.health, "", node.admin_state, expired=node.expired, ejected="").name
        counted[(status_of(node),)] -= 1
        counted[(ejected,)] += 1
    return counted


def is_ready(node: Node) -> bool:
    return status_of(node) == "ready"


def family(name: str, text: str, labels: tuple[str, ...], values: dict[tuple[str, ...], float] | Counts) -> Metric:
    made = GaugeMetricFamily(name, text, None, labels)
    for labelled, value in sorted(values.items()):
        made.add_metric(labelled, value)
    return made


CALLBACKS = ("pending", "given_up")
what_waits: dict[str, int] | None = None
"""What waits in the database, counted now and then by a process that is not a dispatcher; None: not known."""

# --- The process's one ------------------------------------------------------------------------------------------------

current: Metrics | None = None


def start(role: str) -> None:
    """Begin to count. Called once, before the first call."""
    global current
    current = Metrics(tables_now, label_values=settings.REACH_METRICS_LABEL_VALUES, role=role)
    observing.observers.append(current)
    journal.committed.append(current.committed)


def stop() -> None:
    global current
    if current is not None:
        observing.observers.remove(current)
        journal.committed.remove(current.committed)
        current = None


def tables_now() -> Tables | None:
    return live.current.snapshot.tables if live.current is not None else None


class MetricsView(AsyncAPIView):
    """The text that Prometheus reads, with a key that may observe, or without one where the operator allows it."""

    scopes = {"GET": OBSERVE}

    async def identify(self, request: Request) -> Key:
        return EVERYBODY if settings.REACH_METRICS_PUBLIC else await super().identify(request)

    @extend_schema(operation_id="metrics", responses={(200, "text/plain"): str})
    async def get(self, request: Request) -> HttpResponse:
        if current is None:
            raise Unavailable("the reach is starting or stopping")
        encode, content_type = choose_encoder(request.META.get("HTTP_ACCEPT", ""))
        text = await asyncio.to_thread(encode, current.registry)  # thousands of lines: calls go on meanwhile
        return HttpResponse(text, content_type=content_type, headers={"Cache-Control": "no-store"})


EVERYBODY = Key("everybody", None, None, "everybody", frozenset({"observe"}))
