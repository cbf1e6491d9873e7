"""Topology: who calls whom, with rate and errors, drawn and as a table."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from dashboard.core.graph import Edge, places, shown
from dashboard.registry_pages import error_badge, may_see_calls
from dashboard.traffic import NOT_PLACED, edges
from registry.models import Node

SPANS = {
    "15": gettext_lazy("Last 15 minutes"),
    "60": gettext_lazy("Last hour"),
    "1440": gettext_lazy("Last 24 hours"),
    "10080": gettext_lazy("Last 7 days"),
}
USUAL_SPAN = "60"
SIZES = {
    "40": gettext_lazy("the busiest 40"),
    "150": gettext_lazy("the busiest 150"),
    "300": gettext_lazy("the busiest 300"),
}
USUAL_SIZE = "40"
STEPS = {"1": gettext_lazy("its neighbours"), "2": gettext_lazy("and their neighbours")}


def span_of(request: HttpRequest) -> str:
    asked = request.GET.get("span", "")
    return asked if asked in SPANS else USUAL_SPAN


def topology(request: HttpRequest) -> HttpResponse:
    """For who may see calls."""
    if not may_see_calls(request):
        raise PermissionDenied
    span, size, steps = span_of(request), request.GET.get("most", ""), request.GET.get("steps", "")
    size, steps = size if size in SIZES else USUAL_SIZE, steps if steps in STEPS else "1"
    focus, text = request.GET.get("focus", "").strip(), request.GET.get("q", "").strip()
    failing = request.GET.get("failing") == "1"
    now = timezone.now()
    found = edges(now - timedelta(minutes=int(span)), now)
    part = shown(found, focus=focus, steps=int(steps), text=text, failing=failing, most=int(size))
    kept = {"span": span, "most": size}
    names = sorted({name for edge in found for name in (edge.source, edge.target)} - {NOT_PLACED})
    return render(
        request,
        "dashboard/topology.html",
        {
            **admin.site.each_context(request),
            "title": _("Topology"),
            "spans": choices(SPANS, span),
            "sizes": choices(SIZES, size),
            "steps": choices(STEPS, steps),
            "focus": focus,
            "query": text,
            "failing": failing,
            "names": names,
            "services": len(names),
            "matching": part.matching,
            "rows": [edge_row(edge, int(span), kept) for edge in part.edges],
            "graph": drawn(part.edges, focus, int(span), kept),
            "any": bool(found),
            "told": ngettext("%(n)s of %(all)s pair is shown.", "%(n)s of %(all)s pairs are shown.", len(part.edges))
            % {"n": len(part.edges), "all": part.matching},
        },
    )


def choices(words: Any, chosen: str) -> list[dict[str, Any]]:
    return [{"value": value, "label": text, "chosen": value == chosen} for value, text in words.items()]


def focus_url(name: str, kept: dict[str, str]) -> str:
    return f"{reverse('topology')}?{urlencode(kept | {'focus': name})}"


def rate_words(calls: int, minutes: int) -> str:
    """Calls a second or a minute or an hour, whichever reads best."""
    per_minute = calls / minutes
    if per_minute >= 60:
        return _("%(n)s/s") % {"n": f"{per_minute / 60:.1f}"}
    if per_minute >= 1:
        return _("%(n)s/min") % {"n": f"{per_minute:.1f}"}
    return _("%(n)s/h") % {"n": f"{per_minute * 60:.1f}"}


def edge_row(edge: Edge, minutes: int, kept: dict[str, str]) -> dict[str, Any]:
    return {
        "source": edge.source,
        "source_url": focus_url(edge.source, kept),
        "target": _("nobody: not placed") if edge.target == NOT_PLACED else edge.target,
        "target_url": "" if edge.target == NOT_PLACED else focus_url(edge.target, kept),
        "rate": rate_words(edge.calls, minutes),
        "calls": f"{edge.calls:,}",
        "failed": error_badge(edge.error_share, edge.calls),
        "calls_url": calls_url(edge),
    }


def calls_url(edge: Edge) -> str:
    where = {"caller": edge.source}
    where |= {"service_id__isnull": "1"} if edge.target == NOT_PLACED else {"service_id": edge.target}
    return f"{reverse('admin:receipts_call_changelist')}?{urlencode(where)}"


def drawn(found: tuple[Edge, ...], focus: str, minutes: int, kept: dict[str, str]) -> dict[str, Any]:
    """What the page's script draws: places in columns and rows, and what is read at each of them."""
    known = set(Node.objects.present().values_list("service_id", flat=True)) if found else set()
    where = places(found)
    calls: dict[str, int] = {}
    for edge in found:
        for name in {edge.source, edge.target}:
            calls[name] = calls.get(name, 0) + edge.calls
    return {
        "nodes": [
            {
                "name": name,
                "label": _("nobody") if name == NOT_PLACED else name,
                "column": place.column,
                "row": place.row,
                "calls": calls[name],
                "kind": "lost" if name == NOT_PLACED else "service" if name in known else "caller",
                "focus": name == focus,
                "url": "" if name == NOT_PLACED else focus_url(name, kept),
            }
            for name, place in where.items()
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "calls": edge.calls,
                "share": edge.error_share,
                "told": _("%(rate)s, %(failures)s of %(calls)s failed")
                % {"rate": rate_words(edge.calls, minutes), "failures": edge.failures, "calls": edge.calls},
            }
            for edge in found
        ],
    }
