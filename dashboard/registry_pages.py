"""Nodes, services and capabilities as the registry's own pages show them, with what traffic says of them."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db import connection
from django.db.models import Case, IntegerField, QuerySet, Value, When
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.decorators import display

from dashboard import traffic
from dashboard.core.drawing import UNKNOWN, polylines, shares, stretches
from dashboard.core.graph import Edge
from dashboard.trace import call_url
from dashboard.traffic import Lately, Moment
from receipts import statistics
from receipts.admin import LIGHT, node_name, took_ms
from receipts.admin import status_badge as call_badge
from receipts.core.counting import HOUR, MINUTE
from receipts.models import Call
from registry.admin import CapabilityAdmin, NodeAdmin, ServiceAdmin, status_badge, weight_words
from registry.console import BAD, NOTHING, WARN, badge, duration, moment, stacked
from registry.models import Capability, Declaration, Node, Service
from registry.wording import NODE_STATUS, label, said
from routing.core.similarity import Vocabulary

STRIP = timedelta(hours=6)
"""What a node's status was is shown for so long in lists, and for a day on its own page."""
DAY = timedelta(hours=24)
WIDTH, HEIGHT = 240, 40
"""Of a sparkline, in its own units: it is stretched to the width that it gets."""
CHANGES_SHOWN = 100
"""Of one node's status, in a strip."""
STRETCHES_SHOWN = 32
"""A strip of a list has room for no more; a node that flaps shows the worst of each."""
RECENT_CALLS = 10
CALLERS_SHOWN = 20
LIKE_ENOUGH = 0.5
"""So much of a search's words a capability must answer to be found."""
BAD_SHARE, WARN_SHARE = 0.1, 0.01
"""Of failed calls: from here on it is red, or amber."""


# --- Words and pictures ----------------------------------------------------------------------------------------------


def percent(share: float | None) -> str:
    """A share as people read it: never 0 % for a few, never 100 % for nearly all."""
    if share is None:
        return NOTHING
    value = share * 100
    if 0 < value < 1:
        return "< 1 %"
    if 99 < value < 100:
        return "> 99 %"
    return f"{value:.0f} %"


def error_badge(share: float, calls: int) -> str:
    """The share of failed calls, where it is worth a look."""
    if not calls or not share:
        return ""
    tone = BAD if share >= BAD_SHARE else WARN if share >= WARN_SHARE else "idle"
    return badge(_("%(share)s failed") % {"share": percent(share)}, tone)


def counted_words(calls: int) -> str:
    return ngettext("%(n)s call", "%(n)s calls", calls) % {"n": f"{calls:,}"}


def lately_shown(found: Lately) -> str:
    """The last hour of a service or node in a cell of a list."""
    if not found.calls:
        return NOTHING
    first = format_html("{} {}", counted_words(found.calls), error_badge(found.error_share, found.calls))
    told = _("share %(share)s · p95 %(p95)s") % {"share": percent(found.share), "p95": duration(found.p95_ms)}
    second = format_html('<span class="reach-soft reach-unbroken">{}</span>', told)
    return stacked(first, second)


def strip_of(changes: Iterable[tuple[datetime, str]], now: datetime, span: timedelta = STRIP) -> SafeString:
    """What a node's status was, as a strip."""
    found = stretches(changes, now - span, now, most=STRETCHES_SHOWN)
    told = ", ".join(f"{status_words(status)} {percent(share / 100)}" for status, share in shares(found).items())
    words = {stretch.status: status_words(stretch.status) for stretch in found}
    parts = format_html_join(
        "",
        '<i class="reach-is-{}" style="width:{}%" title="{}, {} – {}"></i>',
        (
            (one.status, f"{one.percent:g}", words[one.status], clock_words(one.since), clock_words(one.until))
            for one in found
        ),
    )
    label = _("The last %(n)s hours: ") % {"n": span // HOUR} + told
    return format_html('<div class="reach-strip" role="img" aria-label="{}">{}</div>', label, parts)


def status_words(status: str) -> str:
    return _("not known") if status == UNKNOWN else label(NODE_STATUS, status)


def clock_words(at: datetime) -> str:
    return f"{timezone.localtime(at):%H:%M}"


def course_shown(title: str, moments: list[Moment]) -> dict[str, Any]:
    """How latency and errors went, as a picture with the numbers behind it."""
    slowest = max((one.p95_ms for one in moments if one.p95_ms is not None), default=None)
    width = WIDTH / max(len(moments), 1)
    calls = sum(one.calls for one in moments)
    failures = sum(one.failures for one in moments)
    return {
        "title": title,
        "calls": calls,
        "told": counted_words(calls),
        "failed": error_badge(failures / calls if calls else 0.0, calls),
        "slowest": duration(slowest),
        "began": clock_words(moments[0].since) if moments else "",
        "lines": polylines([one.p95_ms for one in moments], width=WIDTH, height=HEIGHT),
        "bars": [
            {
                "x": round(n * width, 1),
                "width": round(max(width - 1, 1), 1),
                "height": round(max(HEIGHT * one.failures / one.calls, 2), 1),
                "y": round(HEIGHT - max(HEIGHT * one.failures / one.calls, 2), 1),
            }
            for n, one in enumerate(moments)
            if one.failures
        ],
        "rows": [
            {
                "at": clock_words(one.since),
                "calls": one.calls,
                "failures": one.failures,
                "p95": duration(one.p95_ms),
            }
            for one in reversed(moments)
            if one.calls
        ],
        "width": WIDTH,
        "height": HEIGHT,
        "label": _("%(title)s: %(calls)s, %(failures)s failed, slowest p95 %(slowest)s")
        % {"title": title, "calls": counted_words(calls), "failures": failures, "slowest": duration(slowest)},
    }


def courses(dimension: str, key: str, now: datetime) -> list[dict[str, Any]]:
    """The last hour and the last day of one service or node."""
    hour = traffic.course(dimension, key, now, span=HOUR, step=2 * MINUTE)
    day = traffic.course(dimension, key, now, span=DAY, step=HOUR)
    return [course_shown(_("Last hour"), hour), course_shown(_("Last 24 hours"), day)]


HISTORY = """
SELECT newest.node_id, newest.at, newest.status
FROM unnest(%(nodes)s::bigint[]) AS chosen(id) CROSS JOIN LATERAL (
    SELECT id, node_id, at, status FROM registry_statuschange
    WHERE node_id = chosen.id ORDER BY id DESC LIMIT %(most)s) AS newest
ORDER BY newest.node_id, newest.id
"""


def histories(nodes: Iterable[Node]) -> dict[int, list[tuple[datetime, str]]]:
    """The newest status changes of each node, oldest first. A node that flaps has more than a strip can show."""
    found: dict[int, list[tuple[datetime, str]]] = {node.pk: [] for node in nodes}
    with connection.cursor() as cursor:
        cursor.execute(HISTORY, {"nodes": list(found), "most": CHANGES_SHOWN})
        for node_pk, at, status in cursor.fetchall():
            found[node_pk].append((at, status))
    return found


def callers_shown(edges: list[Edge]) -> list[dict[str, Any]]:
    return [
        {
            "name": edge.source,
            "calls": f"{edge.calls:,}",
            "failed": error_badge(edge.error_share, edge.calls),
        }
        for edge in edges[:CALLERS_SHOWN]
    ]


def recent_calls(calls: QuerySet[Call]) -> list[dict[str, Any]]:
    """The newest calls, ready to be read."""
    return [
        {
            "url": call_url(call.trace_id, call.pk),
            "at": moment(call.accepted_at),
            "status": call_badge(call),
            "caller": call.caller,
            "node": node_name(call),
            "took": duration(took_ms(call)) if call.ended_at else _("open"),
        }
        for call in calls.order_by("-pk").only(*LIGHT)[:RECENT_CALLS]
    ]


# --- Pages -----------------------------------------------------------------------------------------------------------

admin.site.unregister([Node, Service, Capability])


@admin.register(Node)
class NodePages(NodeAdmin):
    list_display = ("node", "state", "lately", "weight_in_force", "work", "lease_left", "offers")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list; what traffic and history say is asked once for all of its rows."""
        changelist = super().get_changelist_instance(request)
        with_traffic(list(changelist.result_list))
        return changelist

    @display(description=gettext_lazy("status"), ordering="healthy")
    def state(self, node: Any) -> str:
        return format_html("<div>{}{}</div>", super().state(node), strip_of(node.changes, timezone.now()))

    @display(description=gettext_lazy("last hour"))
    def lately(self, node: Any) -> str:
        return lately_shown(node.lately)

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        now = timezone.now()
        found = super().details(request, obj)
        with_traffic([obj])
        return found | {
            "strip": strip_of(obj.changes, now, DAY),
            "courses": courses(statistics.NODE, str(obj), now) if request.user.has_perm("receipts.view_call") else [],
            "lately": obj.lately,
            "share": percent(obj.lately.share),
            "at_work": traffic.open_calls(obj.service_id).get(obj.node_id, 0),
            "calls_url": reverse("admin:receipts_call_changelist")
            + f"?service_id={obj.service_id}&node_id={obj.node_id}",
        }

    def foreseen(self, nodes: list[Node], verb: str) -> dict[str, Any]:
        found = super().foreseen(nodes, verb)
        with_traffic(nodes)
        for row in found["nodes"]:
            if row["node"].lately.calls:
                told = {"calls": counted_words(row["node"].lately.calls), "share": percent(row["node"].lately.share)}
                row["traffic"] = _("%(calls)s in the last hour, %(share)s of its service's") % told
        return found


def with_traffic(nodes: Collection[Any]) -> None:
    """Give each node its `lately` and its `changes`."""
    now = timezone.now()
    found = traffic.of_nodes([(node.service_id, node.node_id) for node in nodes], now)
    changes = histories(nodes)
    for node in nodes:
        node.lately, node.changes = found[(node.service_id, node.node_id)], changes[node.pk]


def with_lately(dimension: str, rows: Iterable[Any]) -> None:
    """Give each service or capability its `lately`."""
    rows = list(rows)
    found = traffic.of(dimension, [row.pk for row in rows], timezone.now())
    for row in rows:
        row.lately = found[row.pk]


@admin.register(Service)
class ServicePages(ServiceAdmin):
    list_display = ("service_id", "nodes_ready", "lately", "offers", "created")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changelist = super().get_changelist_instance(request)
        with_lately("service_id", changelist.result_list)
        return changelist

    @display(description=gettext_lazy("last hour"))
    def lately(self, service: Any) -> str:
        return lately_shown(service.lately)

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        now = timezone.now()
        found = super().details(request, obj)
        nodes = [node for node, _status, _reason in found["nodes"]]
        with_traffic(nodes)
        at_work = traffic.open_calls(obj.pk)
        pages = NodePages(Node, self.admin_site)
        return found | {
            "rows": [
                {
                    "node": node,
                    "status": status_badge(node),
                    "reason": said(node.status.reason),
                    "since": moment(node.status_since),
                    "strip": strip_of(node.changes, now),
                    "weight": weight_words(node),
                    "at_work": at_work.get(node.node_id, 0),
                    "room": node.max_concurrency or "",
                    "lately": lately_shown(node.lately),
                }
                for node in nodes
            ],
            "lately": (lately := traffic.of("service_id", [obj.pk], now)[obj.pk]),
            "share": percent(lately.share),
            "told": counted_words(lately.calls),
            "failed": error_badge(lately.error_share, lately.calls),
            "p95": duration(lately.p95_ms),
            "courses": courses("service_id", obj.pk, now),
            "callers": callers_shown(traffic.callers(statistics.PAIR, obj.pk, now - DAY, now)),
            "verbs": [
                (verb, NODE_VERBS[verb]) for verb in pages.actions if verb in NODE_VERBS and may_use(pages, request)
            ],
            "nodes_url": pages.list_url(),
            "topology_url": reverse("topology") + f"?focus={obj.pk}",
        }


NODE_VERBS: Mapping[str, Any] = {
    "drain": gettext_lazy("Drain…"),
    "enable": gettext_lazy("Enable…"),
    "disable": gettext_lazy("Disable…"),
    "set_weight": gettext_lazy("Set weight…"),
    "probe_now": gettext_lazy("Probe now…"),
}


def may_use(pages: NodeAdmin, request: HttpRequest) -> bool:
    return pages.has_operate_permission(request)


@admin.register(Capability)
class CapabilityPages(CapabilityAdmin):
    list_display = ("name", "about", "providers", "lately", "cost", "may_repeat", "first_declared")
    search_help_text = gettext_lazy("What it should do, in a few words")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changelist = super().get_changelist_instance(request)
        with_lately("capability", changelist.result_list)
        return changelist

    @display(description=gettext_lazy("last hour"))
    def lately(self, capability: Any) -> str:
        return lately_shown(capability.lately)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Capability], search_term: str
    ) -> tuple[QuerySet[Capability], bool]:
        """The most alike first: by name, description and tags, with tolerance for spelling."""
        term = search_term.strip().replace("\x00", "")
        if not term:
            return queryset, False
        scores = found_by(term)
        rank = Case(*(When(pk=name, then=Value(n)) for n, name in enumerate(scores)), output_field=IntegerField())
        found = queryset.filter(pk__in=list(scores))
        return (found.annotate(rank=rank).order_by("rank") if scores else found), False

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        now = timezone.now()
        found = super().details(request, obj)
        recent = recent_calls(Call.objects.filter(capability=obj.pk)) if may_see_calls(request) else None
        return found | {
            "callers": callers_shown(traffic.callers(statistics.USE, obj.pk, now - DAY, now)),
            "recent": recent,
            "try_url": reverse("try-it", args=[obj.pk]) if request.user.has_perm("receipts.add_call") else "",
        }


def may_see_calls(request: HttpRequest) -> bool:
    return request.user.has_perm("receipts.view_call")


def found_by(term: str) -> dict[str, float]:
    """Capabilities by how well they answer a few words, best first."""
    texts: dict[str, list[str]] = {name: [name] for name in Capability.objects.values_list("pk", flat=True)}
    declared = Declaration.objects.filter(node__deleted_at=None).order_by()
    for name, description, tags in declared.values_list("capability_id", "description", "tags").distinct():
        texts[name] += [description, *tags]
    scores = Vocabulary({name: " ".join(said) for name, said in texts.items()}).scores(term)
    lowered = term.lower()
    for name, said_of_it in texts.items():
        if lowered in " ".join(said_of_it).lower():  # the beginning of a word, while somebody types
            scores[name] = 1.0
    by_name = Vocabulary({name: name for name in texts}).scores(term)
    good = {name: score + by_name.get(name, 0.0) for name, score in scores.items() if score >= LIKE_ENOUGH}
    return dict(sorted(good.items(), key=lambda row: (-row[1], row[0])))
