"""Services, nodes, capabilities, keys and the audit log, for people."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.contrib.postgres.expressions import ArraySubquery
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Count, Func, OuterRef, Prefetch, Q, QuerySet, Value, When
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.contrib.filters.admin import RangeDateTimeFilter
from unfold.decorators import action, display
from unfold.paginator import InfinitePaginator

from registry import changes, clock, health, services
from registry.audit import audit
from registry.auth import session_key
from registry.console import (
    BAD,
    BUSY,
    GOOD,
    IDLE,
    NOTHING,
    WARN,
    ChoiceFilter,
    Empty,
    LinkFilter,
    ReadOnlyAdmin,
    actor,
    back_to,
    badge,
    between,
    duration,
    exactly,
    facts,
    moment,
    page_url,
    pretty,
    stacked,
    unbroken,
    yes,
)
from registry.core import takeover
from registry.core.node import AdminState
from registry.errors import ReachError
from registry.export import audit_csv, csv_response
from registry.forms import KeyForm, RemoveForm, WeightForm
from registry.models import (
    ApiKey,
    AuditEvent,
    Capability,
    Declaration,
    Node,
    NodeProbe,
    Service,
    StatusChange,
)
from registry.querysets import NodeQuerySet, able, with_status
from registry.schema_words import schema_note, schema_rows
from registry.wording import ADMIN_STATE, AUDIT_ACTION, LEVEL, NODE_STATUS, TIER, label, said

TONE = {
    "ready": GOOD,
    "starting": BUSY,
    "draining": BUSY,
    "suspect": WARN,
    "ejected": WARN,
    "not_ready": BAD,
    "expired": BAD,
    "disabled": IDLE,
}
AUDIT_ROWS_SHOWN = 20
STATUS_CHANGES_SHOWN = 20
REGISTER_COMMAND = """curl -X PUT $REACH_API/api/v1/services/doc-summarizer/nodes/a \\
  -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
  -d '{"address": "http://127.0.0.1:9001", "capabilities": [{"name": "file_summary",
       "input": {"type": "object", "required": ["file_path"]}}]}'"""


def ready_of_total(ready: int, total: int) -> str:
    """`2/3`, coloured by how much of it works."""
    tone = IDLE if not total else GOOD if ready == total else WARN if ready else BAD
    return badge(f"{ready}/{total}", tone)


def status_badge(node: Node) -> str:
    return badge(label(NODE_STATUS, node.status.name), TONE.get(node.status.name, IDLE))


def names(values: Iterable[str], shown: int = 4) -> str:
    """A few names as tags; how many more there are."""
    values = list(values)
    tags = format_html_join(" ", '<span class="reach-tag">{}</span>', ((value,) for value in values[:shown]))
    if len(values) > shown:
        return format_html('{} <span class="reach-soft">+{}</span>', tags, len(values) - shown)
    return tags or NOTHING


# --- Services --------------------------------------------------------------------------------------------------------


@admin.register(Service)
class ServiceAdmin(ReadOnlyAdmin):
    list_display: tuple[str, ...] = ("service_id", "nodes_ready", "offers", "created")
    search_fields = ("service_id",)
    search_help_text = gettext_lazy("Part of a service's name")
    ordering = ("service_id",)
    detail_template = "admin/registry/service.html"
    empty = Empty(
        gettext_lazy("No service yet"),
        gettext_lazy("A service appears when its first node registers, or when you make a key for it."),
        REGISTER_COMMAND,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Service]:
        declared = Declaration.objects.filter(node__service=OuterRef("pk"), node__deleted_at=None)
        return (
            super()
            .get_queryset(request)
            .defer("signing_secret")
            .annotate(
                node_count=Count("nodes", filter=Q(nodes__deleted_at=None)),
                ready_count=Count("nodes", filter=able("nodes__")),
                capability_names=ArraySubquery(
                    declared.order_by("capability_id").distinct().values_list("capability_id", flat=True)
                ),
            )
        )

    @display(description=gettext_lazy("nodes ready"), ordering="ready_count")
    def nodes_ready(self, service: Any) -> str:
        return ready_of_total(service.ready_count, service.node_count) if service.node_count else _("no nodes")

    @display(description=gettext_lazy("capabilities"))
    def offers(self, service: Any) -> str:
        return names(service.capability_names)

    @display(description=gettext_lazy("created"), ordering="created_at")
    def created(self, service: Service) -> str:
        return moment(service.created_at)

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        nodes = Node.objects.present().filter(service=obj).select_related("lease").order_by("node_id")
        return {
            "nodes": [(node, status_badge(node), said(node.status.reason)) for node in nodes],
            "ready": ready_of_total(obj.ready_count, obj.node_count),
            "keys": ApiKey.objects.filter(service=obj, revoked_at=None).order_by("-created_at")
            if request.user.has_perm("registry.view_apikey")
            else None,
            "calls_url": reverse("admin:receipts_call_changelist") + f"?service_id={obj.pk}",
            "capabilities": [(name, page_url("registry_capability", name)) for name in obj.capability_names],
        }


# --- Nodes -----------------------------------------------------------------------------------------------------------


class StatusFilter(LinkFilter):
    title = gettext_lazy("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(status, title) for status, title in NODE_STATUS.items()]

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(with_status(value))


class ServiceFilter(ChoiceFilter):
    title = gettext_lazy("service")
    parameter_name = "service_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in Service.objects.order_by("pk").values_list("pk", flat=True)]


class TagFilter(ChoiceFilter):
    title = gettext_lazy("tag")
    parameter_name = "tag"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        tags = Node.objects.present().annotate(tag=Func("tags", function="unnest")).order_by("tag")
        return [(tag, tag) for tag in tags.values_list("tag", flat=True).distinct()]

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(tags__contains=[value])


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display: tuple[str, ...] = ("node", "state", "weight_in_force", "lease_left", "work", "offers", "tag_names")
    list_filter = (StatusFilter, ServiceFilter, TagFilter)
    search_fields = ("service__service_id", "node_id", "address", "version")
    search_help_text = gettext_lazy("Part of a service, node, address or version")
    detail_template = "admin/registry/node.html"
    actions = ("drain", "enable", "disable", "set_weight", "give_weight_back", "probe_now", "remove")
    empty = Empty(
        gettext_lazy("No node yet"),
        gettext_lazy("A node appears when an agent registers itself; it is asked at once whether it is ready."),
        REGISTER_COMMAND,
    )

    def get_queryset(self, request: HttpRequest) -> NodeQuerySet:
        healthy = Case(When(able(), then=Value(1)), default=Value(0))
        declared = Declaration.objects.filter(node=OuterRef("pk")).order_by("capability_id")
        return (
            Node.objects.present()
            .select_related("lease")
            .annotate(
                healthy=healthy,
                capability_names=ArraySubquery(declared.values_list("capability_id", flat=True)),
            )
        )

    def get_ordering(self, request: HttpRequest) -> list[str]:
        return ["healthy", "service_id", "node_id"]  # what needs somebody's attention stands first

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("registry.change_node")

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("registry.delete_node")

    @display(description=gettext_lazy("node"), ordering="service_id")
    def node(self, node: Node) -> str:
        return stacked(node, format_html('<span class="reach-soft reach-mono">{}</span>', node.address))

    @display(description=gettext_lazy("status"), ordering="healthy")
    def state(self, node: Node) -> str:
        reason = said(node.status.reason)
        since = moment(node.status_since)
        told = format_html('<span class="reach-reason">{}</span> · {}', reason, since) if reason else since
        return stacked(status_badge(node), format_html('<span class="reach-soft">{}</span>', told))

    @display(description=gettext_lazy("weight"))
    def weight_in_force(self, node: Node) -> str:
        if node.operator_weight is None:
            return str(node.weight)
        return format_html(
            '{} <span class="reach-tag" title="{}">{}</span>',
            node.weight,
            _("The node itself declares %(weight)s") % {"weight": node.declared_weight},
            _("operator's"),
        )

    @display(description=gettext_lazy("lease left"), ordering="lease__lease_expires_at")
    def lease_left(self, node: Node) -> str:
        return lease_words(node)

    @display(description=gettext_lazy("in flight"), ordering="lease__in_flight")
    def work(self, node: Node) -> str:
        in_flight = NOTHING if node.lease.in_flight is None else node.lease.in_flight
        return unbroken(f"{in_flight} / {node.max_concurrency}" if node.max_concurrency else str(in_flight))

    @display(description=gettext_lazy("capabilities"))
    def offers(self, node: Any) -> str:
        return names(node.capability_names, 3)

    @display(description=gettext_lazy("tags"))
    def tag_names(self, node: Node) -> str:
        return names(node.tags, 3)

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        declarations = obj.declarations.order_by("capability_id")
        return {
            "status": status_badge(obj),
            "reason": said(obj.status.reason),
            "facts": node_facts(obj),
            "declarations": [offer_shown(declaration) for declaration in declarations],
            "probes": probes_shown(obj),
            "statuses": history_shown(obj.history.order_by("-pk")[:STATUS_CHANGES_SHOWN]),
            "history": audit_rows(AuditEvent.objects.filter(target=str(obj)).order_by("-pk")[:AUDIT_ROWS_SHOWN]),
            "buttons": self.buttons(request, obj),
            "metadata": pretty(obj.metadata) if obj.metadata else "",
        }

    def buttons(self, request: HttpRequest, node: Node) -> list[tuple[str, Promise]]:
        """The verbs that make sense for a node as it stands, for somebody who may use them."""
        allowed = self.get_actions(request)
        senseless = {
            "enable" if node.admin_state == AdminState.ENABLED else "",
            "drain" if node.admin_state != AdminState.ENABLED else "",
            "disable" if node.admin_state == AdminState.DISABLED else "",
            "give_weight_back" if node.operator_weight is None else "",
        }
        if node.drain_until is not None:  # it is leaving: only its farewell can be cut short
            senseless |= {"enable", "disable", "drain", "set_weight", "give_weight_back"}
        return [(name, BUTTONS[name]) for name in self.actions if name in allowed and name not in senseless]

    # Verbs: each is told which nodes, asks the service, reports, and waits until dispatchers know.

    @action(description=gettext_lazy("Drain: no new calls, running ones finish"), permissions=["operate"])
    def drain(self, request: HttpRequest, nodes: NodeQuerySet) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            return self.asked(request, nodes, Form(), "drain", _("Drain nodes"), _("Drain"))
        done = self.overrule(request, nodes, admin_state=AdminState.DRAINING)
        return self.reported(
            request,
            done,
            ngettext(
                "%(n)s node is draining: it gets no new calls, running ones may finish.",
                "%(n)s nodes are draining: they get no new calls, running ones may finish.",
                done,
            ),
        )

    @action(description=gettext_lazy("Enable: take calls again"), permissions=["operate"])
    def enable(self, request: HttpRequest, nodes: NodeQuerySet) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            return self.asked(request, nodes, Form(), "enable", _("Enable nodes"), _("Enable"))
        done = self.overrule(request, nodes, admin_state=AdminState.ENABLED)
        return self.reported(request, done, ngettext("%(n)s node is enabled.", "%(n)s nodes are enabled.", done))

    @action(description=gettext_lazy("Disable: no calls until enabled again"), permissions=["operate"])
    def disable(self, request: HttpRequest, nodes: NodeQuerySet) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            return self.asked(request, nodes, Form(), "disable", _("Disable nodes"), _("Disable"))
        done = self.overrule(request, nodes, admin_state=AdminState.DISABLED)
        return self.reported(
            request,
            done,
            ngettext(
                "%(n)s node is disabled, across its restarts, until you enable it.",
                "%(n)s nodes are disabled, across their restarts, until you enable them.",
                done,
            ),
        )

    @action(description=gettext_lazy("Set weight…"), permissions=["operate"])
    def set_weight(self, request: HttpRequest, nodes: NodeQuerySet) -> HttpResponse | None:
        form = WeightForm(request.POST if "confirmed" in request.POST else None, initial=only_weight(nodes))
        if not form.is_valid():
            return self.asked(request, nodes, form, "set_weight", _("Set weight"), _("Set weight"))
        weight = form.cleaned_data["weight"]
        done = self.overrule(request, nodes, weight=weight)
        told = ngettext("%(n)s node has weight %(weight)s now.", "%(n)s nodes have weight %(weight)s now.", done)
        return self.reported(request, done, told, weight=weight)

    @action(description=gettext_lazy("Give weight back to the node"), permissions=["operate"])
    def give_weight_back(self, request: HttpRequest, nodes: NodeQuerySet) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            title = _("Give weight back")
            return self.asked(request, nodes, Form(), "give_weight_back", title, title)
        done = self.overrule(request, nodes, weight=None)
        return self.reported(
            request,
            done,
            ngettext(
                "%(n)s node has the weight that it declares itself.",
                "%(n)s nodes have the weight that they declare themselves.",
                done,
            ),
        )

    @action(description=gettext_lazy("Probe now"), permissions=["operate"])
    def probe_now(self, request: HttpRequest, nodes: NodeQuerySet) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            return self.asked(request, nodes, Form(), "probe_now", _("Probe nodes now"), _("Probe now"))
        found = health.probe_now(Node.objects.present().filter(pk__in=pks(nodes)), by=actor(request))
        follow(probed.version for probed in found)
        ready = sum(not probed.evidence.trouble for probed in found)
        if back_to(request) and len(found) == 1:
            node = self.get_queryset(request).get(pk=found[0].evidence.node_pk)
            context = self.details(request, node) | {"asked_now": True}
            return self.page(request, self.detail_template, str(node), original=node, **context)
        told = ngettext(
            "%(n)s node was probed, %(ready)s is ready.", "%(n)s nodes were probed, %(ready)s are ready.", len(found)
        )
        return self.reported(request, len(found), told, ready=ready)

    @action(description=gettext_lazy("Remove…"), permissions=["remove"])
    def remove(self, request: HttpRequest, nodes: NodeQuerySet) -> HttpResponse | None:
        form = RemoveForm(request.POST if "confirmed" in request.POST else None)
        if not form.is_valid():
            return self.asked(request, nodes, form, "remove", _("Remove nodes"), _("Remove"))
        by = session_key(request.user)
        done = self.each(
            request,
            nodes,
            lambda node: (
                services.remove_node(node.service_id, node.node_id, drain_s=form.cleaned_data["drain_s"], by=by).version
            ),
        )
        told = ngettext(
            "%(n)s node leaves. It comes back when it registers again.",
            "%(n)s nodes leave. They come back when they register again.",
            done,
        )
        self.reported(request, done, told)
        return None

    def overrule(self, request: HttpRequest, nodes: NodeQuerySet, **choice: Any) -> int:
        by = actor(request)
        return self.each(
            request, nodes, lambda node: services.set_operator_choice(node.service_id, node.node_id, by=by, **choice)
        )

    def each(self, request: HttpRequest, nodes: NodeQuerySet, verb: Callable[[Node], int]) -> int:
        """Do it for each node, tell which refused, and wait until this process's dispatchers know; how many did it."""
        versions = []
        for node in Node.objects.present().filter(pk__in=pks(nodes)).order_by("service_id", "node_id"):
            try:
                versions.append(verb(node))
            except ReachError as exc:
                self.message_user(request, said(str(exc)), messages.WARNING)
        follow(versions)
        return len(versions)

    def reported(self, request: HttpRequest, done: int, told: str, **values: Any) -> HttpResponse | None:
        if done:
            self.message_user(request, told % {"n": done, **values}, messages.SUCCESS)
        return back_to(request)

    def asked(
        self, request: HttpRequest, nodes: NodeQuerySet, form: Form, verb: str, title: str, button: str
    ) -> HttpResponse:
        """A page that says what the verb will do to which nodes and calls, and asks for what it needs."""
        return self.page(
            request,
            "admin/registry/ask.html",
            title,
            form=form,
            verb=verb,
            button=button,
            next=request.POST.get("next", ""),
            **self.foreseen(list(nodes), verb),
        )

    def foreseen(self, nodes: list[Node], verb: str) -> dict[str, Any]:
        """What the verb will come to, as far as the registry knows."""
        return {
            "nodes": [{"node": node, "status": status_badge(node)} for node in nodes],
            "promise": WILL_DO[verb],
            "in_flight": sum(node.lease.in_flight or 0 for node in nodes) if verb in TAKE_OUT else 0,
            "moves": moves_shown(nodes, verb),
            "weights": weights_shown(nodes) if verb in ("set_weight", "give_weight_back") else [],
        }


TAKE_OUT = ("drain", "disable", "remove")
WILL_DO = {
    "drain": gettext_lazy(
        "No new calls go there from now on; those at work may finish. That holds across restarts until you enable it."
    ),
    "disable": gettext_lazy(
        "No calls go there from now on, whatever the node says of itself, until you enable it. Those at work go on."
    ),
    "enable": gettext_lazy(
        "Calls go there again as soon as the node is ready; the last word is its readiness probe's."
    ),
    "set_weight": gettext_lazy("It takes effect for the next call. Calls at work stay where they are."),
    "give_weight_back": gettext_lazy(
        "The weight that the node itself declares holds again, also when it declares another one."
    ),
    "probe_now": gettext_lazy(
        "It is asked now whether it lives and is ready, as the worker does every few seconds. What it answers counts: "
        "one success brings it back, failures in a row take it out. No call is sent."
    ),
    "remove": gettext_lazy("It leaves the lists, and comes back when it registers again."),
}
"""What a page says before a verb is confirmed."""
CAPABILITIES_ASKED, WEIGHTS_SHOWN = 50, 30


def moves_shown(nodes: list[Node], verb: str) -> list[dict[str, Any]]:
    """Where the calls of each capability go once the verb is done, what is lost first."""
    if verb not in (*TAKE_OUT, "enable"):
        return []
    chosen = {str(node) for node in nodes}
    names_asked = Declaration.objects.filter(node__in=nodes).values("capability_id")
    rows = (
        Declaration.objects.filter(capability__in=names_asked, node__deleted_at=None)
        .annotate(is_ready=Case(When(able("node__"), then=Value(True)), default=Value(False)))
        .values_list("node__service_id", "node__node_id", "capability_id", "is_ready")
    )
    providers = [takeover.Provider(f"{service}/{node}", name, ready) for service, node, name, ready in rows]
    found = (takeover.without if verb in TAKE_OUT else takeover.joined_by)(chosen, providers)
    return [
        {"capability": after.capability, "before": after.before, "left": names(after.left, 5), "is_lost": after.is_lost}
        | {"count": len(after.left), "takes_out": verb in TAKE_OUT}
        for after in found[:CAPABILITIES_ASKED]
    ]


def weights_shown(nodes: list[Node]) -> list[dict[str, Any]]:
    """The weights of all nodes of the same services, each with its part of the whole; the chosen ones marked."""
    chosen = {node.pk for node in nodes}
    services_meant = {node.service_id for node in nodes}
    others = Node.objects.in_the_pool().filter(service__in=services_meant).order_by("service_id", "node_id")
    rows = list(others[:WEIGHTS_SHOWN])
    totals: dict[str, int] = {}
    for node in rows:
        totals[node.service_id] = totals.get(node.service_id, 0) + node.weight
    return [
        {
            "node": node,
            "weight": node.weight,
            "percent": round(100 * node.weight / totals[node.service_id]) if totals[node.service_id] else 0,
            "chosen": node.pk in chosen,
        }
        for node in rows
    ]


BUTTONS = {
    "drain": gettext_lazy("Drain…"),
    "enable": gettext_lazy("Enable…"),
    "disable": gettext_lazy("Disable…"),
    "set_weight": gettext_lazy("Set weight…"),
    "give_weight_back": gettext_lazy("Give weight back…"),
    "probe_now": gettext_lazy("Probe now…"),
    "remove": gettext_lazy("Remove…"),
}


def pks(nodes: NodeQuerySet) -> list[int]:
    return [node.pk for node in nodes]


def only_weight(nodes: NodeQuerySet) -> dict[str, int]:
    """The weight to begin with, where all agree on it."""
    weights = {node.weight for node in nodes}
    return {"weight": weights.pop()} if len(weights) == 1 else {}


def follow(versions: Iterable[int | None]) -> None:
    """Wait until this process's dispatchers know the newest of what has just been committed."""
    if known := [version for version in versions if version is not None]:
        changes.wait_until_followed(max(known))


def lease_words(node: Node) -> str:
    if node.lease.expired:
        return badge(_("ran out"), BAD)
    left_ms = between(timezone.now(), node.lease.lease_expires_at) or 0
    return unbroken(duration(max(left_ms, 0)))


def weight_words(node: Node) -> str:
    if node.operator_weight is None:
        return _("%(weight)s, as the node declares") % {"weight": node.weight}
    told = {"weight": node.weight, "declared": node.declared_weight}
    return _("%(weight)s, set by an operator; the node declares %(declared)s") % told


def node_facts(node: Node) -> list[tuple[str, Any]]:
    endpoints = node.endpoints
    judged = ""
    if endpoints.get("ready") is None:
        judged = _("judged by liveness alone") if endpoints.get("live") else _("judged by its connection alone")
    return facts(
        {
            _("Service"): format_html(
                '<a href="{}">{}</a>', page_url("registry_service", node.service_id), node.service_id
            ),
            _("Address"): node.address,
            _("Status since"): moment(node.status_since),
            _("Weight"): weight_words(node),
            _("Decided by operators"): label(ADMIN_STATE, node.admin_state),
            _("Drains until"): moment(node.drain_until),
            _("Lease left"): lease_words(node),
            _("Last heartbeat"): moment(node.lease.last_heartbeat_at),
            _("In flight, as it says"): node.lease.in_flight,
            _("Max concurrency"): node.max_concurrency or _("unlimited"),
            _("Version"): node.version,
            _("Tags"): names(node.tags, 50),
            _("Calls these capabilities"): names(node.requires, 50),
            _("Protocol"): node.protocol,
            _("Endpoints"): " · ".join(f"{name} {path}" for name, path in endpoints.items() if path),
            _("Readiness"): judged,
            _("Registered"): moment(node.registered_at),
        }
    )


def offer_shown(declaration: Declaration) -> dict[str, Any]:
    """A declared capability, ready to be read."""
    return {
        "name": declaration.capability_id,
        "url": page_url("registry_capability", declaration.capability_id),
        "description": declaration.description,
        "version": declaration.version,
        "facts": facts(
            {
                _("Cost"): label(LEVEL, declaration.cost_level),
                _("Timeout tier"): label(TIER, declaration.timeout_tier),
                _("Idempotent"): yes(declaration.idempotent),
                _("Rate limit"): rate_words(declaration),
                _("Tags"): ", ".join(declaration.tags),
                _("Allowed callers"): ", ".join(declaration.allow_callers),
            }
        ),
        "input": schema_shown(declaration.input_schema),
        "output": schema_shown(declaration.output_schema),
        "examples": pretty(declaration.examples) if declaration.examples else "",
    }


def schema_shown(schema: Any) -> dict[str, Any]:
    """A schema as a table, and as it is written."""
    rows = schema_rows(schema)
    told = {name: any(row[name] for row in rows) for name in ("limits", "description")}
    return {
        "rows": rows,
        "has_limits": told["limits"],
        "has_descriptions": told["description"],
        "note": schema_note(schema),
        "text": pretty(schema),
    }


def rate_words(declaration: Declaration) -> str:
    if declaration.rate_per_s is None:
        return ""
    return _("%(rate)s calls a second") % {"rate": f"{declaration.rate_per_s:g}"}


def evidence_shown(evidence: dict[str, Any]) -> dict[str, Any]:
    """What a probe asked, was answered and concluded, as it is stored."""
    exchanges = []
    for what, exchange in ((_("Liveness"), evidence["live"]), (_("Readiness"), evidence["ready"])):
        if exchange is not None:
            error = exchange["error"] and said(exchange["error"])
            exchanges.append((what, exchange | {"error": error, "took": duration(exchange["duration_ms"])}))
    if evidence["inconclusive"]:
        found = badge(_("Says nothing: the reach was too busy to hear an answer"), WARN)
    else:
        found = badge(_("Passed"), GOOD) if evidence["passed"] else badge(_("Failed"), BAD)
    return {"found": found, "reason": said(evidence["trouble"]), "exchanges": exchanges}


def probes_shown(node: Node) -> dict[str, Any] | None:
    """How probes of a node stand; None before the first one."""
    standing = NodeProbe.objects.filter(pk=node.pk, checked_at__isnull=False).first()
    if standing is None or standing.evidence is None:
        return None
    failures = ""
    if standing.failures:
        counted = ngettext("%(n)s failure in a row", "%(n)s failures in a row", standing.failures)
        failures = counted % {"n": standing.failures}
    return evidence_shown(standing.evidence) | {
        "at": moment(standing.checked_at),
        "next": moment(standing.due_at),
        "failures": failures,
        "bars": bars(standing.recent_ms),
        "slowest": duration(max((ms for ms in standing.recent_ms if ms is not None), default=None)),
    }


def bars(recent_ms: list[float | None]) -> list[dict[str, Any]]:
    """The last probes as bars, the newest last: `height` in percent of the slowest; a failed one is full and red."""
    slowest = max((ms for ms in recent_ms if ms), default=1.0)
    return [
        {"failed": ms is None, "height": 100 if ms is None else max(6, round(100 * ms / slowest)), "took": duration(ms)}
        for ms in reversed(recent_ms)
    ]


def history_shown(changes: Iterable[StatusChange]) -> list[dict[str, Any]]:
    """Status changes, the newest first, each with how long it lasted."""
    shown, until = [], clock.now()
    for change in changes:
        shown.append(
            {
                "at": moment(change.at),
                "status": badge(label(NODE_STATUS, change.status), TONE.get(change.status, IDLE)),
                "reason": said(change.reason),
                "lasted": duration(between(change.at, until)),
                "evidence": evidence_shown(change.evidence) if change.evidence else None,
            }
        )
        until = change.at
    return shown


# --- Capabilities ----------------------------------------------------------------------------------------------------


@admin.register(Capability)
class CapabilityAdmin(ReadOnlyAdmin):
    list_display: tuple[str, ...] = ("name", "about", "providers", "cost", "may_repeat", "first_declared")
    search_fields = ("name", "declarations__description")
    search_help_text = gettext_lazy("Part of a name or description")
    ordering = ("name",)
    detail_template = "admin/registry/capability.html"
    empty = Empty(
        gettext_lazy("No capability yet"),
        gettext_lazy("Capabilities are declared by nodes when they register, with JSON Schemas of input and output."),
        REGISTER_COMMAND,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Capability]:
        light = Declaration.objects.filter(node__deleted_at=None).defer("input_schema", "output_schema", "examples")
        return (
            super()
            .get_queryset(request)
            .prefetch_related(
                Prefetch("declarations", light.select_related("node__lease").order_by("pk"), to_attr="providing")
            )
        )

    @display(description=gettext_lazy("description"))
    def about(self, capability: Any) -> str:
        told = next((d.description for d in capability.providing if d.description), NOTHING)
        return told if len(told) <= 90 else told[:89] + "…"

    @display(description=gettext_lazy("providers ready"))
    def providers(self, capability: Any) -> str:
        if not capability.providing:
            return badge(_("nobody"), BAD)
        ready = sum(d.node.status.name == "ready" for d in capability.providing)
        return ready_of_total(ready, len(capability.providing))

    @display(description=gettext_lazy("cost"))
    def cost(self, capability: Any) -> str:
        return ", ".join(sorted({label(LEVEL, d.cost_level) for d in capability.providing})) or NOTHING

    @display(description=gettext_lazy("idempotent"))
    def may_repeat(self, capability: Any) -> str:
        return " / ".join(sorted({yes(d.idempotent) for d in capability.providing})) or NOTHING

    @display(description=gettext_lazy("first declared"), ordering="first_declared_at")
    def first_declared(self, capability: Capability) -> str:
        return moment(capability.first_declared_at)

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        declarations = (
            Declaration.objects.filter(capability=obj, node__deleted_at=None)
            .select_related("node__lease")
            .order_by("node__service_id", "node__node_id")
        )
        offers: dict[str, tuple[dict[str, Any], list[tuple[Node, str]]]] = {}
        for declaration in declarations:
            shown = offer_shown(declaration)
            alike = offers.setdefault(str(shown), (shown, []))
            alike[1].append((declaration.node, status_badge(declaration.node)))
        return {
            "offers": list(offers.values()),
            "calls_url": reverse("admin:receipts_call_changelist") + f"?capability={obj.pk}",
        }


# --- Keys ------------------------------------------------------------------------------------------------------------


def key_state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return badge(_("Revoked"), BAD)
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return badge(_("Expired"), BAD)
    return badge(_("In force"), GOOD)


class KeyStateFilter(LinkFilter):
    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("valid", gettext_lazy("In force")),
            ("expired", gettext_lazy("Expired")),
            ("revoked", gettext_lazy("Revoked")),
        ]

    def narrowed(self, queryset: Any, value: str) -> Any:
        over = Q(expires_at__lte=timezone.now())
        match value:
            case "revoked":
                return queryset.exclude(revoked_at=None)
            case "expired":
                return queryset.filter(over, revoked_at=None)
            case _:
                return queryset.filter(~over, revoked_at=None)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ("key_id", "state", "whose", "may", "made", "made_by", "expires")
    list_filter = (KeyStateFilter, ServiceFilter)
    search_fields = ("key_id", "service__service_id", "user__username")
    search_help_text = gettext_lazy("Part of a key's id, its service or user")
    ordering = ("-created_at",)
    list_select_related = ("user",)
    detail_template = "admin/registry/apikey.html"
    actions = ("revoke",)
    empty = Empty(
        gettext_lazy("No key yet"),
        gettext_lazy("Every agent and every caller needs a key. Make one here, or on the command line:"),
        "python manage.py reach_key create --service doc-summarizer --scopes register,dispatch",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        return super().get_queryset(request).defer("digest")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("registry.add_apikey")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("registry.delete_apikey")

    @display(description=gettext_lazy("state"))
    def state(self, key: ApiKey) -> str:
        return key_state(key)

    @display(description=gettext_lazy("speaks for"), ordering="service_id")
    def whose(self, key: ApiKey) -> str:
        return key.owner

    @display(description=gettext_lazy("scopes"))
    def may(self, key: ApiKey) -> str:
        return names(key.scopes)

    @display(description=gettext_lazy("made"), ordering="created_at")
    def made(self, key: ApiKey) -> str:
        return moment(key.created_at)

    @display(description=gettext_lazy("made by"))
    def made_by(self, key: ApiKey) -> str:
        return said(key.created_by) or NOTHING

    @display(description=gettext_lazy("expires"), ordering="expires_at")
    def expires(self, key: ApiKey) -> str:
        return _("never") if key.expires_at is None else moment(key.expires_at)

    def details(self, request: HttpRequest, obj: ApiKey) -> dict[str, Any]:
        history = AuditEvent.objects.filter(target=obj.key_id).order_by("-pk")[:AUDIT_ROWS_SHOWN]
        return {
            "state": key_state(obj),
            "facts": facts(
                {
                    _("Speaks for"): obj.owner,
                    _("Scopes"): names(obj.scopes),
                    _("Made"): f"{exactly(obj.created_at)} · {said(obj.created_by)}",
                    _("Expires"): exactly(obj.expires_at) if obj.expires_at else _("never"),
                    _("Revoked"): exactly(obj.revoked_at),
                }
            ),
            "history": audit_rows(history),
            "buttons": [("revoke", _("Revoke"))]
            if self.has_revoke_permission(request) and obj.revoked_at is None
            else [],
        }

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Make a key, and show it: this answer is the only place where it ever stands."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = KeyForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            chosen = form.cleaned_data
            try:
                key = services.create_service_key(
                    chosen["service_id"],
                    chosen["scopes"],
                    by=actor(request),
                    held=session_key(request.user).scopes,
                    expires_at=chosen["lifetime"],
                )
            except ReachError as exc:
                form.add_error(None, said(str(exc)))
            else:
                follow([key.version])
                shown = {"key": key, "service_id": chosen["service_id"]}
                return self.page(request, "admin/registry/new_key.html", _("New key"), **shown)
        known = Service.objects.order_by("pk").values_list("pk", flat=True)[:500]
        return self.page(request, "admin/registry/add_key.html", _("New key"), form=form, known=known)

    @action(description=gettext_lazy("Revoke"), permissions=["revoke"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> HttpResponse | None:
        versions = [services.revoke_key(key.key_id, by=actor(request)) for key in keys.filter(revoked_at=None)]
        follow(versions)
        if versions:
            told = ngettext("%(n)s key is revoked for good.", "%(n)s keys are revoked for good.", len(versions))
            self.message_user(request, told % {"n": len(versions)}, messages.SUCCESS)
        else:
            self.message_user(request, _("Nothing to revoke: it was revoked already."), messages.WARNING)
        return back_to(request)


# --- Audit log -------------------------------------------------------------------------------------------------------


def audit_rows(events: Iterable[AuditEvent]) -> list[dict[str, Any]]:
    """Audit rows, ready to be read."""
    return [
        {
            "at": moment(event.at),
            "actor": said(event.actor),
            "action": label(AUDIT_ACTION, event.action),
            "target": event.target,
            "detail": detail_words(event.detail),
        }
        for event in events
    ]


def detail_words(detail: Any, shown: int = 120) -> str:
    """An audit row's facts in one line."""
    if not isinstance(detail, dict):
        return str(detail)
    told = {name: in_words(value) for name, value in detail.items() if not name.endswith("digest")}
    text = ", ".join(f"{name} = {value}" for name, value in told.items() if value)
    return text if len(text) <= shown else text[: shown - 1] + "…"


def in_words(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else said(str(value))


class ActionFilter(ChoiceFilter):
    title = gettext_lazy("action")
    parameter_name = "did"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(AUDIT_ACTION.items())

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(action=value)


class SinceFilter(LinkFilter):
    """The last hours or days, counted on `since_field`."""

    title = gettext_lazy("time")
    parameter_name = "within"
    HOURS: Mapping[str, float] = {"1": 1, "24": 24, "168": 168}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("1", gettext_lazy("Last hour")),
            ("24", gettext_lazy("Last 24 hours")),
            ("168", gettext_lazy("Last 7 days")),
        ]

    def narrowed(self, queryset: Any, value: str) -> Any:
        return self.since(queryset, timezone.now() - timedelta(hours=self.HOURS.get(value, 24)))

    def since(self, queryset: Any, moment: Any) -> Any:
        return queryset.filter(at__gte=moment)


class SpanFilter(RangeDateTimeFilter):
    """From a moment to a moment, in UTC; a day without a time is meant whole. What is no moment narrows nothing."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        name = self.parameter_name
        for lookup, end, usual in (("gte", "from", "00:00"), ("lte", "to", "23:59:59.999999")):
            day = self.used_parameters.get(f"{name}_{end}_0")
            time = self.used_parameters.get(f"{name}_{end}_1") or usual
            with suppress(ValueError):
                if day and (at := parse_datetime(f"{day} {time}")):
                    queryset = queryset.filter(**{f"{name}__{lookup}": at.replace(tzinfo=UTC)})
        return queryset


class WhoFilter(ChoiceFilter):
    """People; a service is found by the search."""

    title = gettext_lazy("who")
    parameter_name = "who"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = get_user_model().objects.order_by("username").values_list("username", flat=True)
        return [(f"user:{name}", name) for name in names[:PEOPLE_LISTED]]

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(actor=value)


PEOPLE_LISTED = 200


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ("when", "who", "did", "target", "what")
    list_filter = (SinceFilter, ("at", SpanFilter), ActionFilter, WhoFilter)
    list_before_template = "admin/registry/_export.html"
    search_fields = ("target__startswith", "actor__startswith")
    search_help_text = gettext_lazy("The beginning of a target or of a person")
    ordering = ("-pk",)
    sortable_by = ()
    paginator = InfinitePaginator
    show_full_result_count = False
    detail_template = "admin/registry/auditevent.html"
    empty = Empty(
        gettext_lazy("Nothing has been done yet"),
        gettext_lazy("Every action of an operator, here or by REST, leaves a row that nobody can change."),
    )

    def get_urls(self) -> list[Any]:
        export = path("export.csv", self.admin_site.admin_view(self.export), name="registry_auditevent_export")
        return [export, *super().get_urls()]

    def export(self, request: HttpRequest) -> HttpResponseBase:
        """What the list shows with its filters, as CSV; audited."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        chosen = self.get_changelist_instance(request).get_queryset(request)
        most = settings.REACH_EXPORT_ROWS
        audit(actor(request), "export audit log", "audit log", filters=request.GET.urlencode(), at_most=most)
        return csv_response("audit-log", audit_csv(chosen, most))

    @display(description=gettext_lazy("when"))
    def when(self, event: AuditEvent) -> str:
        return moment(event.at)

    @display(description=gettext_lazy("who"))
    def who(self, event: AuditEvent) -> str:
        return said(event.actor)

    @display(description=gettext_lazy("action"))
    def did(self, event: AuditEvent) -> str:
        return unbroken(label(AUDIT_ACTION, event.action))

    @display(description=gettext_lazy("detail"))
    def what(self, event: AuditEvent) -> str:
        return detail_words(event.detail) or NOTHING

    def details(self, request: HttpRequest, obj: AuditEvent) -> dict[str, Any]:
        return {
            "title": label(AUDIT_ACTION, obj.action),
            "facts": facts(
                {
                    _("When"): exactly(obj.at),
                    _("Who"): said(obj.actor),
                    _("Action"): label(AUDIT_ACTION, obj.action),
                    _("Target"): obj.target,
                }
            ),
            "detail": pretty(obj.detail) if obj.detail else "",
        }
