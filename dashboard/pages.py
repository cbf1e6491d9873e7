"""The overview, the live stream of calls and a trace: what their templates are given."""

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from dashboard import charts
from dashboard import trace as traces
from dashboard.findings import calls_url, findings, node_url, shut_url, trace_url, verdict, why_words
from dashboard.overview import NEWEST, OPEN_COUNTED, SPANS, Mark, Overview, Traffic, look, processes
from receipts.admin import TONE as CALL_TONE
from receipts.admin import CallAdmin, loaded, node_name, shown, status_badge, took_ms
from receipts.core.lifecycle import OPEN, CallStatus
from receipts.models import Call
from receipts.statistics import FAILURES_LOOKED_AT, Cause
from receipts.wording import CALL_STATUS, PROBLEM
from registry.admin import REGISTER_COMMAND
from registry.admin import TONE as NODE_TONE
from registry.console import IDLE, NOTHING, Empty, badge, duration, exactly, moment
from registry.models import Capability, Service
from registry.wording import NODE_STATUS, label, said
from routing.core.review import Status
from routing.shown import TONE as CHANGE_TONE
from routing.wording import CHANGE_STATUS, advisory_words

SPAN_NAMES = {
    "15m": gettext_lazy("15 minutes"),
    "1h": gettext_lazy("1 hour"),
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
}
NOTHING_YET = Empty(
    gettext_lazy("Nothing is registered yet"),
    gettext_lazy("Once an agent has registered and somebody calls it, this page says how that goes."),
    REGISTER_COMMAND,
)
DEFAULT_SPAN = "1h"


def page(request: HttpRequest, template: str, title: Any, **context: Any) -> HttpResponse:
    """A page of ours inside the admin that belongs to no model, as wide as the window."""
    shared = {**admin.site.each_context(request), "title": title, "is_fullwidth": "1"}
    return TemplateResponse(request, template, {**shared, **context})


# --- Overview --------------------------------------------------------------------------------------------------------


def overview(request: HttpRequest) -> HttpResponse:
    """Is it all right, what is not, what do I do. Whoever may see nothing of it gets Django's own index."""
    may = {
        "calls": request.user.has_perm("receipts.view_call"),
        "nodes": request.user.has_perm("registry.view_node"),
        "changes": request.user.has_perm("routing.view_routechange"),
        "advisories": request.user.has_perm("routing.view_advisory"),
    }
    if not any(may.values()):
        return admin.site.index(request)
    span = SPANS.get(request.GET.get("span", ""), SPANS[DEFAULT_SPAN])
    seen = look(span, **may)
    found = findings(seen)
    is_empty = may["nodes"] and may["calls"] and not seen.nodes.total() and not seen.newest
    return page(
        request,
        "admin/overview/page.html",
        _("Overview"),
        may=may,
        verdict=verdict(found, is_empty=is_empty),
        findings=[(finding, *FINDING[finding.level]) for finding in found],
        empty=NOTHING_YET if is_empty else None,
        span_name=SPAN_NAMES[span.name],
        spans=[(name, words, name == span.name) for name, words in SPAN_NAMES.items()],
        tiles=tiles(seen),
        **charted(seen),
        causes=[cause_shown(cause, span.name) for cause in seen.causes],
        newest=[call_shown(call) for call in seen.newest],
        busiest=[
            {
                "name": busy.service_id,
                "url": reverse("admin:registry_service_change", args=[busy.service_id]),
                "calls": busy.calls,
                "percent": round(busy.share * 100, 1),
                "takes_most": busy.takes_most,
                "failed": percent(busy.failed_share),
                "p95": duration(busy.p95_ms),
            }
            for busy in seen.busiest
        ],
        nodes=[
            (badge(label(NODE_STATUS, status), NODE_TONE.get(status, IDLE)), n, f"{nodes_url()}?status={status}")
            for status, n in seen.nodes.items()
            if n
        ],
        breakers=[(shut.name, shut_url(shut), exactly(shut.until), said(shut.why)) for shut in seen.breakers],
        near_limits=[
            (
                near.node,
                node_url(near.node_pk),
                near.capability,
                f"{near.used:.3g}",
                f"{near.limit:g}",
                near.share * 100,
            )
            for near in seen.near_limits
        ],
        refusals=[(code, label(PROBLEM, code), n) for code, n in seen.refusals],
        changes=[
            (change, badge(label(CHANGE_STATUS, change.status), CHANGE_TONE[Status(change.status)]))
            for change in seen.changes
        ],
        advisories=[(one.pk, *advisory_words(one.kind, one.facts)[:2]) for one in seen.advisories],
        marks=[mark_shown(mark) for mark in reversed(seen.marks)],
    )


FINDING = {
    "bad": ("bad", gettext_lazy("Wrong")),
    "warn": ("warn", gettext_lazy("Look")),
    "todo": ("busy", gettext_lazy("To do")),
}


def nodes_url() -> str:
    return reverse("admin:registry_node_changelist")


def tiles(seen: Overview) -> list[dict[str, Any]]:
    """The few numbers that stand largest."""
    traffic = seen.traffic
    if traffic is None:
        return []
    calls = traffic.total.calls
    times = [traffic.percentile_ms(share) for share in (0.5, 0.95, 0.99)]
    under_way = f"{OPEN_COUNTED}+" if seen.open_calls >= OPEN_COUNTED else str(seen.open_calls)
    return [
        {
            "name": _("Calls a second"),
            "value": rate(traffic.rate),
            "note": _("%(n)s ended in %(span)s") % {"n": f"{calls:,}", "span": SPAN_NAMES[seen.span.name]},
        },
        {
            "name": _("Succeeded"),
            "value": percent(1 - traffic.failed_share) if calls else NOTHING,
            "note": _("%(n)s did not") % {"n": f"{traffic.total.failures:,}"},
            "is_bad": traffic.total.failures and traffic.failed_share > 0.2,
        },
        {"name": _("Latency"), "value": durations(times) if calls else NOTHING, "note": "p50 / p95 / p99"},
        {"name": _("Under way now"), "value": under_way, "note": _("calls that have not ended")},
    ]


def durations(times_ms: Sequence[float]) -> str:
    """Several in a row, with one unit where they share it."""
    if max(times_ms) < 1000:
        return " / ".join([*(f"{ms:.0f}" for ms in times_ms[:-1]), duration(times_ms[-1])])
    return " / ".join(map(duration, times_ms))


def charted(seen: Overview) -> dict[str, Any]:
    traffic = seen.traffic
    if traffic is None or not traffic.total.calls:
        return {}
    return {
        "throughput": charts.throughput(traffic, seen.marks),
        "latency": charts.latency(traffic, seen.marks),
        "numbers": numbers(traffic),
    }


def numbers(traffic: Traffic) -> list[dict[str, Any]]:
    """The charts as a table, for whoever cannot see them; steps without calls are left out."""
    return [
        {
            "at": f"{point.since:%m-%d %H:%M}",
            "calls": point.counted.calls,
            "failures": point.counted.failures,
            "times": [duration(point.counted.percentile_ms(share)) for share in (0.5, 0.95, 0.99)],
        }
        for point in traffic.points
        if point.counted.calls
    ]


def cause_shown(cause: Cause, span: str) -> dict[str, Any]:
    return {
        "status": label(CALL_STATUS, cause.status),
        "code": cause.code,
        "words": why_words(cause),
        "where": cause.service_id or cause.capability,
        "capability": cause.capability,
        "calls": f"{FAILURES_LOOKED_AT}+" if cause.are_more else cause.calls,
        "url": calls_url(cause, span),
        "last_url": trace_url(cause),
    }


def call_shown(call: Call) -> dict[str, Any]:
    return {
        "url": traces.call_url(call.trace_id, call.pk),
        "capability": call.capability,
        "caller": call.caller,
        "node": node_name(call),
        "status": status_badge(call),
        "at": moment(call.accepted_at),
        "took": duration(took_ms(call)) if call.ended_at else _("open"),
    }


def mark_shown(mark: Mark) -> dict[str, Any]:
    if mark.revision is not None:
        return {
            "at": moment(mark.at),
            "what": _("Table revision %(n)s is published") % {"n": mark.revision},
            "by": mark.by,
            "note": mark.title,
            "url": reverse("admin:routing_tablerevision_change", args=[mark.revision]),
        }
    service_id, _space, version = mark.title.partition(" ")
    what = _("%(service)s %(version)s is deployed") if version else _("%(service)s is deployed")
    return {
        "at": moment(mark.at),
        "what": what % {"service": service_id, "version": version},
        "by": "",
        "note": _("%(n)s nodes") % {"n": mark.nodes} if mark.nodes > 1 else "",
        "url": reverse("admin:registry_service_change", args=[service_id]),
    }


def rate(per_second: float) -> str:
    """A rate as people read it."""
    return f"{per_second:.0f}" if per_second >= 100 else f"{per_second:.1f}" if per_second >= 1 else f"{per_second:.3g}"


def percent(share: float) -> str:
    """A share in percent; what is not quite everything does not look as if it were."""
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    return f"{min(max(share * 100, 0.01), 99.99):.{1 if 0.001 < share < 0.999 else 2}f} %"


# --- A trace ---------------------------------------------------------------------------------------------------------


def trace(request: HttpRequest, trace_id: str) -> HttpResponse:
    """The waterfall of a trace, and one of its calls in full: the one that is asked for, else where it failed."""
    calls_admin = cast(CallAdmin, admin.site.get_model_admin(Call))
    if not calls_admin.has_view_permission(request):
        raise PermissionDenied
    seen = traces.read(trace_id.lower(), as_uuid(request.GET.get("call", "")))
    if seen is None:
        raise Http404
    chosen = Call.objects.get(pk=seen.chosen.pk)
    told = shown(chosen)
    failure = traces.failure(seen)
    cause = (
        told if failure is None or failure["cause"].pk == chosen.pk else shown(Call.objects.get(pk=failure["cause"].pk))
    )
    is_other = failure is None or failure["cause"].pk != chosen.pk
    return page(
        request,
        "admin/trace/page.html",
        _("Trace: %(capability)s") % {"capability": seen.root.capability},
        **told | {"error": cause["error"], "advice": cause["advice"]},
        own_error=told["error"] if is_other else None,
        own_advice=told["advice"],
        seen=seen,
        beat_s=settings.REACH_LIVE_BEAT_S,
        original=chosen,
        root_status=status_badge(seen.root),
        began=moment(seen.began_at),
        list_url=calls_admin.list_url(),
        trace_list_url=f"{calls_admin.list_url()}?trace_id={seen.trace_id}",
        failure=failure,
        cause_status=cause["status"],
        cause_node_url=cause["node_url"],
        failure_buttons=calls_admin.verbs(request, failure["call"]) if failure else [],
        buttons=calls_admin.verbs(request, chosen),
    )


def as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


# --- Live calls ------------------------------------------------------------------------------------------------------

FILTERS = ("service_id", "capability", "caller", "status")
LIVE_AT_FIRST = 50
NAMES_OFFERED = 500


def live(request: HttpRequest) -> HttpResponse:
    """Calls as they come, from a socket; the last ones are there already."""
    if not admin.site.get_model_admin(Call).has_view_permission(request):
        raise PermissionDenied
    chosen = {name: request.GET.get(name, "").strip() for name in FILTERS}
    asked = {name: value for name, value in chosen.items() if value}
    calls = Call.objects.filter(mirror_of=None, **asked)
    if asked.get("status") in OPEN:
        calls = calls.filter(ended_at=None)
    offered = {
        "service_id": Service.objects.order_by("pk").values_list("pk", flat=True)[:NAMES_OFFERED],
        "capability": Capability.objects.order_by("pk").values_list("pk", flat=True)[:NAMES_OFFERED],
    }
    return page(
        request,
        "admin/live/page.html",
        _("Live calls"),
        calls=[live_row(call) for call in calls.order_by("-pk").only(*NEWEST, "seq")[:LIVE_AT_FIRST]],
        filters=[(name, LIVE_NAMES[name], chosen[name], offered.get(name, ())) for name in FILTERS if name != "status"],
        status=chosen["status"],
        statuses=CALL_STATUS.items(),
        is_filtered=bool(asked),
        words={
            "filter": asked,
            "status": {status: [str(words), CALL_TONE[CallStatus(status)]] for status, words in CALL_STATUS.items()},
            "open": _("open"),
            "ms": pgettext("duration", "%(n)s ms") % {"n": "{n}"},
            "s": pgettext("duration", "%(n)s s") % {"n": "{n}"},
            "min": pgettext("duration", "%(m)s min %(s)s s") % {"m": "{m}", "s": "{s}"},
            "beat_s": settings.REACH_LIVE_BEAT_S,
            "trace": reverse("trace", args=["0" * 32]),
            "texts": {
                "live": _("Live"),
                "paused": _("Paused"),
                "connecting": _("Connecting"),
                "lost": _("Connection lost; trying again"),
                "refused": _("You may not watch any more. Load the page again, or log in."),
                "full": _("Too many pages watch; trying again later"),
                "pause": _("Pause"),
                "resume": _("Go on"),
                "waiting": _("{n} waiting"),
                "one_of": _("showing 1 of {n}"),
                "gap": _("From {from} to {to} nothing was heard: calls of that time are not listed here."),
            },
        },
        dispatchers=processes().dispatchers,
    )


LIVE_NAMES = {
    "service_id": gettext_lazy("Service"),
    "capability": gettext_lazy("Capability"),
    "caller": gettext_lazy("Caller"),
}


def live_row(call: Call) -> dict[str, Any]:
    """A call as the page shows it before the socket tells more; the browser writes the same."""
    return {
        "call_id": str(call.pk),
        "seq": call.seq,
        "url": traces.call_url(call.trace_id, call.pk),
        "time": f"{call.accepted_at:%H:%M:%S}.{call.accepted_at.microsecond // 1000:03d}",
        "words": label(CALL_STATUS, call.status),
        "tone": CALL_TONE[CallStatus(call.status)],
        "capability": call.capability,
        "caller": call.caller,
        "node": node_name(call),
        "attempts": call.attempts,
        "took": duration(took_ms(call)) if call.ended_at else _("open"),
        "error_code": (loaded(call.error) or {}).get("code", ""),
    }
