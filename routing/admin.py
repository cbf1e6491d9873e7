"""The live routes in the order in which they are tried, revisions, and changes with their diff: to read."""

import difflib
import json
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, F, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.decorators import display

from registry.admin import audit_rows
from registry.console import (
    BAD,
    BUSY,
    GOOD,
    IDLE,
    NOTHING,
    WARN,
    Empty,
    LinkFilter,
    ReadOnlyAdmin,
    badge,
    exactly,
    facts,
    moment,
    pretty,
    stacked,
)
from registry.wording import label
from routing.core.edits import Document, difference
from routing.core.matching import Route as Rule
from routing.core.ordering import in_order
from routing.core.review import Status
from routing.models import Advisory, Route, RouteChange, TableRevision
from routing.querysets import live_number, table_of
from routing.review import history
from routing.rules import parse_document
from routing.wording import ADVISORY, CHANGE_STATUS, advisory_words, extra_words, match_words, strategy_words

TONE = {
    Status.DRAFT: IDLE,
    Status.IN_REVIEW: BUSY,
    Status.APPROVED: WARN,
    Status.PUBLISHED: GOOD,
    Status.REJECTED: BAD,
    Status.WITHDRAWN: IDLE,
}
ROUTES_A_PAGE = 100
DIFFS_SHOWN = 200
PROPOSE_COMMAND = """curl $REACH_API/api/v1/route-changes \\
  -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
  -d '{"title": "Reports to the summarizer", "base_revision": 0, "routes": [
       {"id": "reports", "match": {"capability": "file_summary"},
        "strategy": {"type": "exact", "service": "doc-summarizer"}}]}'"""


def rules_in_order(document: Document) -> list[Rule]:
    """A table's routes as they are tried."""
    routes, _fallback_rules = parse_document(document, max_routes=settings.REACH_MAX_ROUTES)
    return list(in_order(routes))


def rule_shown(position: int, rule: Rule, document: dict[str, Any]) -> dict[str, Any]:
    """A route in words."""
    return {
        "position": position,
        "id": rule.id,
        "description": rule.description,
        "enabled": rule.enabled,
        "priority": rule.priority,
        "match": match_words(rule) or [_("every call")],
        "strategy": strategy_words(rule),
        "extra": extra_words(rule, document),
    }


def shown_table(document: Document) -> list[dict[str, Any]]:
    """All routes of a table in words, in the order in which they are tried."""
    written = {route["id"]: route for route in document["routes"]}
    return [rule_shown(n, rule, written[rule.id]) for n, rule in enumerate(rules_in_order(document), start=1)]


# --- Routes ----------------------------------------------------------------------------------------------------------


@admin.register(Route)
class RouteAdmin(ReadOnlyAdmin):
    """Its list is a page of its own: the order in which routes are tried is worked out, not stored."""

    detail_template = "admin/routing/route.html"
    empty = Empty(
        gettext_lazy("No route yet"),
        gettext_lazy(
            "Without routes, every call goes to the least loaded node that offers its capability. "
            "Propose a first table; a second person approves it."
        ),
        PROPOSE_COMMAND,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Route]:
        return super().get_queryset(request).filter(revision=live_number())

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        live = live_number()
        routes = shown_table(table_of(live))
        query = request.GET.get("q", "").strip()
        found = [route for route in routes if query.lower() in str(route).lower()] if query else routes
        ids = dict(self.get_queryset(request).values_list("route_id", "pk"))
        pages = Paginator(found, ROUTES_A_PAGE)
        page = pages.get_page(request.GET.get("p"))
        for route in page:
            route["url"] = reverse("admin:routing_route_change", args=[ids[route["id"]]]) if route["id"] in ids else ""
        title = _("Routes of revision %(revision)s") % {"revision": live} if live else _("Routes")
        return self.page(
            request,
            "admin/routing/routes.html",
            title,
            routes=page,
            query=query,
            live=live,
            total=ngettext("%(n)s route", "%(n)s routes", len(routes)) % {"n": len(routes)},
            any_routes=bool(routes),
            empty=self.empty,
        )

    def details(self, request: HttpRequest, obj: Route) -> dict[str, Any]:
        table = shown_table(table_of(obj.revision_id))
        return {
            "routes": (shown := [route for route in table if route["id"] == obj.route_id]),
            "route": shown[0],
            "revision": obj.revision_id,
            "document": pretty(obj.document),
            "calls_url": reverse("admin:receipts_call_changelist") + f"?route_id={obj.route_id}",
        }


# --- Revisions -------------------------------------------------------------------------------------------------------


@admin.register(TableRevision)
class TableRevisionAdmin(ReadOnlyAdmin):
    list_display = ("number", "live", "note", "route_count", "published", "by")
    ordering = ("-number",)
    list_select_related = ("published_by",)
    detail_template = "admin/routing/revision.html"
    empty = Empty(
        gettext_lazy("Nothing has been published yet"),
        gettext_lazy("Publishing an approved route change makes the next revision."),
        PROPOSE_COMMAND,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[TableRevision]:
        return super().get_queryset(request).annotate(routes_in_it=Count("routes"), newest=Value(live_number()))

    @display(description=gettext_lazy("state"))
    def live(self, revision: Any) -> str:
        return badge(_("Live"), GOOD) if revision.number == revision.newest else badge(_("Past"), IDLE)

    @display(description=gettext_lazy("routes"))
    def route_count(self, revision: Any) -> str:
        return str(revision.routes_in_it)

    @display(description=gettext_lazy("published"), ordering="published_at")
    def published(self, revision: TableRevision) -> str:
        return moment(revision.published_at)

    @display(description=gettext_lazy("published by"))
    def by(self, revision: TableRevision) -> str:
        return str(revision.published_by or NOTHING)

    def details(self, request: HttpRequest, obj: TableRevision) -> dict[str, Any]:
        table = table_of(obj.number)
        change = RouteChange.objects.filter(published_revision=obj).first()
        return {
            "title": _("Revision %(number)s") % {"number": obj.number},
            "state": self.live(obj),
            "routes": shown_table(table)[:ROUTES_A_PAGE],
            "left_out": max(0, len(table["routes"]) - ROUTES_A_PAGE),
            "change": change,
            "diff": diff_shown(table_of(obj.number - 1), table),
            "facts": facts(
                {
                    _("Published"): exactly(obj.published_at),
                    _("Published by"): obj.published_by,
                    _("Note"): obj.note,
                }
            ),
        }


# --- Advisories ------------------------------------------------------------------------------------------------------


class StandingFilter(LinkFilter):
    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("stands", gettext_lazy("Stands")), ("resolved", gettext_lazy("Resolved"))]

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(resolved_at__isnull=value != "resolved")


class AdvisoryKindFilter(LinkFilter):
    title = gettext_lazy("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(kind, _(title)) for kind, (title, _message, _remedy) in ADVISORY.items()]


@admin.register(Advisory)
class AdvisoryAdmin(ReadOnlyAdmin):
    list_display = ("headline", "told", "state", "first_seen", "last_seen")
    list_filter = (StandingFilter, AdvisoryKindFilter)
    search_fields = ("subject",)
    search_help_text = gettext_lazy("Part of a capability's or a service's name")
    sortable_by = ()
    detail_template = "admin/routing/advisory.html"
    empty = Empty(
        gettext_lazy("Nothing to advise"),
        gettext_lazy(
            "Every few minutes the calls of the last day and the tables are looked at: schemas that take the same "
            "payloads, one service that takes nearly everything, limits that are reached, providers that no route "
            "reaches. What is found stands here with its remedy."
        ),
    )

    def get_ordering(self, request: HttpRequest) -> list[Any]:
        return [F("resolved_at").desc(nulls_first=True), "-first_seen_at", "-pk"]  # what stands comes first

    @display(description=gettext_lazy("advisory"))
    def headline(self, advisory: Advisory) -> str:
        title, _message, _remedy = advisory_words(advisory.kind, advisory.facts)
        return stacked(title, format_html('<span class="reach-soft reach-mono">{}</span>', advisory.subject))

    @display(description=gettext_lazy("what, and what to do"))
    def told(self, advisory: Advisory) -> str:
        _title, message, remedy = advisory_words(advisory.kind, advisory.facts)
        return stacked(message, format_html('<span class="reach-soft">{}</span>', remedy))

    @display(description=gettext_lazy("state"))
    def state(self, advisory: Advisory) -> str:
        return advisory_badge(advisory)

    @display(description=gettext_lazy("first seen"))
    def first_seen(self, advisory: Advisory) -> str:
        return moment(advisory.first_seen_at)

    @display(description=gettext_lazy("last seen"))
    def last_seen(self, advisory: Advisory) -> str:
        return moment(advisory.last_seen_at)

    def details(self, request: HttpRequest, obj: Advisory) -> dict[str, Any]:
        title, message, remedy = advisory_words(obj.kind, obj.facts)
        return {
            "title": title,
            "status": advisory_badge(obj),
            "message": message,
            "remedy": remedy,
            "facts": facts(
                {
                    _("Subject"): obj.subject or NOTHING,
                    _("First seen"): exactly(obj.first_seen_at),
                    _("Last seen"): exactly(obj.last_seen_at),
                    _("Resolved"): exactly(obj.resolved_at),
                }
            ),
        }


def advisory_badge(advisory: Advisory) -> str:
    return badge(_("Stands"), WARN) if advisory.resolved_at is None else badge(_("Resolved"), GOOD)


# --- Changes ---------------------------------------------------------------------------------------------------------


class ChangeStatusFilter(LinkFilter):
    title = gettext_lazy("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(CHANGE_STATUS.items())


def change_badge(change: RouteChange) -> str:
    return badge(label(CHANGE_STATUS, change.status), TONE[Status(change.status)])


@admin.register(RouteChange)
class RouteChangeAdmin(ReadOnlyAdmin):
    list_display = ("id_of_change", "headline", "state", "author", "base_revision", "became", "touched")
    list_display_links = ("id_of_change", "headline")
    list_filter = (ChangeStatusFilter,)
    search_fields = ("title", "author__username")
    search_help_text = gettext_lazy("Part of a title or of the author's name")
    ordering = ("-pk",)
    list_select_related = ("author", "published_revision")
    detail_template = "admin/routing/change.html"
    empty = Empty(
        gettext_lazy("No route change yet"),
        gettext_lazy("Routes are changed only through review: one person proposes, another approves."),
        PROPOSE_COMMAND,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[RouteChange]:
        match = request.resolver_match
        changes = super().get_queryset(request)
        return changes if match and "object_id" in match.kwargs else changes.defer("document", "operations")

    @display(description="#", ordering="pk")
    def id_of_change(self, change: RouteChange) -> str:
        return str(change.pk)

    @display(description=gettext_lazy("title"))
    def headline(self, change: RouteChange) -> str:
        return change.title if len(change.title) <= 80 else change.title[:79] + "…"

    @display(description=gettext_lazy("status"))
    def state(self, change: RouteChange) -> str:
        return change_badge(change)

    @display(description=gettext_lazy("published as"))
    def became(self, change: RouteChange) -> str:
        return str(change.published_revision_id or NOTHING)

    @display(description=gettext_lazy("last touched"), ordering="updated_at")
    def touched(self, change: RouteChange) -> str:
        return moment(change.updated_at)

    def details(self, request: HttpRequest, obj: RouteChange) -> dict[str, Any]:
        approvals = obj.approvals.select_related("approver").order_by("pk")
        return {
            "title": obj.title,
            "status": change_badge(obj),
            "is_stale": obj.published_revision_id is None and obj.base_revision != live_number(),
            "live": live_number(),
            "diff": diff_shown(table_of(obj.base_revision), obj.document),
            "approvals": [
                {
                    "by": approval.approver,
                    "at": moment(approval.approved_at),
                    "comment": approval.comment,
                    "stands": badge(_("Withdrawn"), IDLE) if approval.withdrawn_at else badge(_("Stands"), GOOD),
                }
                for approval in approvals
            ],
            "history": audit_rows(history(obj)),
            "facts": facts(
                {
                    _("Author"): obj.author,
                    _("Description"): obj.description,
                    _("Base revision"): str(obj.base_revision),
                    _("Published as"): obj.published_revision,
                    _("Reverts"): obj.reverts,
                    _("Proposed"): exactly(obj.created_at),
                    _("Last touched"): exactly(obj.updated_at),
                }
            ),
        }


def diff_shown(before: Document, after: Document) -> list[dict[str, Any]]:
    """What differs between two tables, a route each, as lines with their sign."""
    found = difference(before, after)
    parts: list[dict[str, Any]] = [
        {"what": _("new"), "tone": GOOD, "id": route["id"], "lines": lines_of(None, route)} for route in found["added"]
    ]
    parts += [
        {"what": _("changed"), "tone": WARN, "id": edit["id"], "lines": lines_of(edit["before"], edit["after"])}
        for edit in found["changed"]
    ]
    parts += [
        {"what": _("removed"), "tone": BAD, "id": route["id"], "lines": lines_of(route, None)}
        for route in found["removed"]
    ]
    if rules := found.get("fallback_rules"):
        lines = lines_of(rules["before"], rules["after"])
        parts.append({"what": _("changed"), "tone": WARN, "id": "fallback_rules", "lines": lines})
    return parts[:DIFFS_SHOWN]


def lines_of(before: Any, after: Any) -> list[tuple[str, str]]:
    """Two documents as lines, each with `+`, `-` or a space."""
    old, new = text_of(before), text_of(after)
    return [(line[0], line[2:]) for line in difflib.ndiff(old, new) if line[0] != "?"]


def text_of(document: Any) -> Sequence[str]:
    return [] if document is None else json.dumps(document, indent=2, ensure_ascii=False).splitlines()
