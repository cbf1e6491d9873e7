"""The live routes in the order in which they are tried, a tester for them, revisions and advisories."""

import json
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, F, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.decorators import action, display

from receipts.admin import why_of
from receipts.core.envelope import parse_envelope
from registry.admin import audit_rows
from registry.clock import now_millis
from registry.console import (
    GOOD,
    IDLE,
    NOTHING,
    WARN,
    Empty,
    LinkFilter,
    ReadOnlyAdmin,
    actor,
    back_to,
    badge,
    duration,
    exactly,
    facts,
    moment,
    pretty,
    stacked,
)
from registry.errors import InvalidRequest, ReachError
from registry.models import AuditEvent
from registry.wording import said
from routing import change_admin, editor, tester
from routing.advisories import acknowledge, take_back
from routing.change_forms import EnvelopeForm
from routing.core.review import OPEN_STATUSES
from routing.forms import AcknowledgeForm
from routing.models import Advisory, Route, RouteChange, TableRevision
from routing.querysets import live_number, table_of
from routing.review_wording import match_refusal_words
from routing.shown import diff_shown, shown_table
from routing.wording import ADVISORY, advisory_words

ROUTES_A_PAGE = 100
CHANGES_TO_TEST = 100


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
        change_admin.PROPOSE_COMMAND,
    )

    def get_urls(self) -> list[URLPattern]:
        test = path("test/", self.admin_site.admin_view(self.test_view), name="routing_route_test")
        return [test, *super().get_urls()]

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
            may_author=request.user.has_perm("routing.add_routechange"),
        )

    def test_view(self, request: HttpRequest) -> HttpResponse:
        """An envelope in: which route and which node, and why. On the live table, or on that of an open change."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        open_ones = RouteChange.objects.filter(status__in=OPEN_STATUSES).order_by("-pk")[:CHANGES_TO_TEST]
        changes = RouteChange.objects.filter(pk__in=open_ones.values("pk")).order_by("-pk")
        begin = {"table": request.GET.get("change"), "capability": request.GET.get("capability")}
        form = EnvelopeForm(request.POST if request.method == "POST" else None, changes=changes, initial=begin)
        found = None
        if request.method == "POST" and form.is_valid():
            try:
                found = verdict_shown(tested(form.cleaned_data, caller=actor(request)))
            except InvalidRequest as exc:
                for error in exc.errors or [{"path": "", "message": str(exc)}]:
                    field = error["path"].strip("/").partition("/")[0]
                    form.add_error(field if field in form.fields else None, said(error["message"]))
            except ReachError as exc:
                form.add_error(None, said(str(exc)))
        return self.page(
            request,
            "admin/routing/tester.html",
            _("Try a call"),
            form=form,
            found=found,
            suggestions=editor.suggestions(),
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


def tested(asked: dict[str, Any], *, caller: str) -> tester.Tried:
    """What would become of a call that was filled in. Raises InvalidRequest naming the field."""
    names = ("capability", "tags", "labels", "session_id", "urgency")
    body = {name: asked[name] for name in names if asked[name]} | {"payload": asked["payload"]}
    envelope = parse_envelope(
        json.dumps(body).encode(),
        caller=asked["caller"] or caller,
        received_at_millis=now_millis(),
        max_depth=settings.REACH_MAX_JSON_DEPTH,
        max_containers=settings.REACH_MAX_JSON_CONTAINERS,
        max_context_bytes=settings.REACH_MAX_CONTEXT_BYTES,
    )
    return tester.tried(envelope, asked["table"])


def verdict_shown(found: tester.Tried) -> dict[str, Any]:
    """What would become of a call, ready to be read."""
    why = why_of(found.why)
    chosen = found.why["chosen"]
    problem = found.problem and found.problem | {"detail": said(found.problem["detail"])}
    return {
        "why": why,
        "route": why["route"],
        "is_auto": why["is_auto"],
        "chosen": f"{chosen['service_id']}/{chosen['node_id']}" if chosen else "",
        "problem": problem,
        "waits": duration(found.wait_ms) if found.wait_ms is not None else "",
        "looked_at": [(one.route, match_refusal_words(one.refusal)) for one in found.looked_at],
        "left_out": found.left_out,
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
        change_admin.PROPOSE_COMMAND,
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
        return [
            ("stands", gettext_lazy("Stands")),
            ("acknowledged", gettext_lazy("Acknowledged")),
            ("resolved", gettext_lazy("Resolved")),
        ]

    def narrowed(self, queryset: Any, value: str) -> Any:
        if value == "resolved":
            return queryset.exclude(resolved_at=None)
        return queryset.filter(resolved_at=None, acknowledged_at__isnull=value != "acknowledged")


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
    actions = ("acknowledge", "take_back")
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
        newest = F("resolved_at").desc(nulls_first=True), F("acknowledged_at").desc(nulls_first=True)
        return [*newest, "-first_seen_at", "-pk"]  # what stands and nobody knows of comes first

    def has_acknowledge_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("routing.change_advisory")

    @action(description=gettext_lazy("Acknowledge…"), permissions=["acknowledge"])
    def acknowledge(self, request: HttpRequest, found: QuerySet[Advisory]) -> HttpResponse | None:
        form = AcknowledgeForm(request.POST if "confirmed" in request.POST else None)
        if not form.is_valid():
            return self.page(
                request,
                "admin/routing/acknowledge.html",
                _("Acknowledge advisories"),
                form=form,
                next=request.POST.get("next", ""),
                advisories=[(one, advisory_words(one.kind, one.facts)[0], advisory_badge(one)) for one in found],
            )
        reason = form.cleaned_data["reason"]
        done = sum(acknowledge(one.pk, by=actor(request), reason=reason) for one in found)
        told = ngettext("%(n)s advisory is acknowledged.", "%(n)s advisories are acknowledged.", done) % {"n": done}
        return self.reported(request, done, told)

    @action(description=gettext_lazy("Take the acknowledgement back"), permissions=["acknowledge"])
    def take_back(self, request: HttpRequest, found: QuerySet[Advisory]) -> HttpResponse | None:
        done = sum(take_back(one.pk, by=actor(request)) for one in found)
        told = ngettext(
            "%(n)s advisory asks for attention again.", "%(n)s advisories ask for attention again.", done
        ) % {"n": done}
        return self.reported(request, done, told)

    def reported(self, request: HttpRequest, done: int, told: str) -> HttpResponse | None:
        if done:
            self.message_user(request, told, messages.SUCCESS)
        else:
            self.message_user(request, _("Nothing to do: that was so already."), messages.WARNING)
        return back_to(request)

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
            "buttons": self.verbs(request, obj),
            "history": audit_rows(AuditEvent.objects.filter(target=f"advisory:{obj.pk}").order_by("-pk")[:20]),
            "facts": facts(
                {
                    _("Subject"): obj.subject or NOTHING,
                    _("First seen"): exactly(obj.first_seen_at),
                    _("Last seen"): exactly(obj.last_seen_at),
                    _("Resolved"): exactly(obj.resolved_at),
                    _("Acknowledged"): exactly(obj.acknowledged_at),
                    _("Acknowledged by"): obj.acknowledged_by,
                    _("Reason"): obj.acknowledged_reason,
                }
            ),
        }

    def verbs(self, request: HttpRequest, advisory: Advisory) -> list[tuple[str, str]]:
        """The buttons of an advisory's page."""
        if advisory.resolved_at is not None or not self.has_acknowledge_permission(request):
            return []
        if advisory.acknowledged_at is not None:
            return [("take_back", _("Take the acknowledgement back"))]
        return [("acknowledge", _("Acknowledge…"))]


def advisory_badge(advisory: Advisory) -> str:
    if advisory.resolved_at is not None:
        return badge(_("Resolved"), GOOD)
    return badge(_("Acknowledged"), IDLE) if advisory.acknowledged_at else badge(_("Stands"), WARN)
