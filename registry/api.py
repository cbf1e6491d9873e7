"""The registry by REST (CONTRACT §1-3 and keys of §9): who asks, hand the body on, show the result."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from asgiref.sync import sync_to_async
from django.db.models import Case, Exists, IntegerField, OuterRef, Prefetch, Q, QuerySet, Value, When
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import UNSET
from rest_framework.request import Request
from rest_framework.views import APIView

from registry import health, heartbeats, services
from registry.auth import OBSERVE, Key, check_may, check_service
from registry.changes import wait_until_followed
from registry.database import give_back
from registry.errors import InvalidRequest, NotFound
from registry.http import AsyncAPIView, described, invalid_parameter, json_response, page, page_response, read_body
from registry.models import ApiKey, Capability, Declaration, Node, Service
from registry.serializers import (
    HeartbeatBody,
    KeyBody,
    Name,
    NodeBody,
    NodePatchBody,
    capability_document,
    key_document,
    node_document,
    node_in_full,
    service_document,
    status_change_document,
)

T = TypeVar("T")
REGISTERING = ("register", "operate")
MAX_DRAIN_S = 3600

node_decoder = msgspec.json.Decoder(NodeBody)
heartbeat_decoder = msgspec.json.Decoder(HeartbeatBody)
patch_decoder = msgspec.json.Decoder(NodePatchBody)
key_decoder = msgspec.json.Decoder(KeyBody)

PAGED = [OpenApiParameter("limit", int), OpenApiParameter("cursor", str)]


def followed(version: int | None) -> None:
    """Answer only when this process's dispatchers know what has just been committed."""
    if version is not None:
        wait_until_followed(version)


def check_names(**names: str) -> None:
    """Raise InvalidRequest for names in the path that no service or node can have."""
    for field, value in names.items():
        try:
            msgspec.convert(value, Name)
        except msgspec.ValidationError:
            message = "must match ^[a-z0-9][a-z0-9_.-]{0,62}$"
            raise InvalidRequest(f"{field} {message}", [{"path": f"/{field}", "message": message}]) from None


class NodeView(APIView):
    """One node: declare it, look at it, overrule it, take it out."""

    scopes = {"PUT": REGISTERING, "DELETE": REGISTERING, "GET": OBSERVE, "PATCH": "operate"}

    @extend_schema(request={"application/json": described(NodeBody)}, responses={200: dict, 201: dict})
    def put(self, request: Request, service_id: str, node_id: str) -> HttpResponse:
        check_service(request.auth, service_id, "registry.add_node")
        check_names(service_id=service_id, node_id=node_id)
        body = read_body(request, node_decoder)
        registered = services.register_node(service_id, node_id, body, by=request.auth)
        followed(registered.version)
        node = registered.node
        answer = {
            "service_id": service_id,
            "node_id": node_id,
            "lease_expires_at": node.lease.lease_expires_at,
            "heartbeat_interval_s": node.heartbeat_interval_s,
            "status": node.status.name,
            "declaration_hash": node.declaration_hash,
            "signing_secret": registered.signing_secret,
            "advisories": registered.advisories,
        }
        return json_response(answer, 201 if registered.created else 200)

    @extend_schema(responses=dict)
    def get(self, request: Request, service_id: str, node_id: str) -> HttpResponse:
        return json_response(node_in_full(shown_node(service_id, node_id)))

    @extend_schema(request={"application/json": described(NodePatchBody)}, responses=dict)
    def patch(self, request: Request, service_id: str, node_id: str) -> HttpResponse:
        check_may(request.auth, "registry.change_node")
        body = read_body(request, patch_decoder)
        if body.weight is UNSET and body.admin_state is UNSET:
            raise InvalidRequest("name weight or admin_state", [{"path": "", "message": "name weight or admin_state"}])
        followed(
            services.set_operator_choice(
                service_id, node_id, weight=body.weight, admin_state=body.admin_state, by=request.auth.caller
            )
        )
        return json_response(node_in_full(shown_node(service_id, node_id)))

    @extend_schema(parameters=[OpenApiParameter("drain_s", float)], responses={202: dict, 204: None})
    def delete(self, request: Request, service_id: str, node_id: str) -> HttpResponse:
        check_service(request.auth, service_id, "registry.delete_node")
        drain_s = drain_seconds(request.GET.get("drain_s", "0"))
        removed = services.remove_node(service_id, node_id, drain_s=drain_s, by=request.auth)
        followed(removed.version)
        if not removed.drains:
            return HttpResponse(status=204)
        return json_response(node_document(shown_node(service_id, node_id)), 202)


class HeartbeatView(AsyncAPIView):
    """Renews a lease. On the event loop, but for nodes that come back and for people's keys."""

    scopes = {"POST": REGISTERING}

    @extend_schema(request={"application/json": described(HeartbeatBody)}, responses=dict)
    async def post(self, request: Request, service_id: str, node_id: str) -> HttpResponse:
        key: Key = request.auth
        if key.user_id is None:
            check_service(key, service_id, MAY_ADD)
        else:
            await sync_to_async(given_back(check_service))(key, service_id, MAY_ADD)
        body = read_body(request, heartbeat_decoder)
        told = {"in_flight": body.in_flight, "declaration_hash": body.declaration_hash}
        beat = await heartbeats.renew(heartbeats.read, service_id, node_id, **told) if heartbeats.read else None
        if beat is None:
            beat = await sync_to_async(given_back(heard_again))(service_id, node_id, **told)
        return json_response({"lease_expires_at": beat.lease_expires_at, "reregister": beat.reregister})


MAY_ADD = "registry.add_node"


def heard_again(service_id: str, node_id: str, **told: Any) -> services.Heartbeat:
    """A heartbeat of a node that may have to be revived. Raises NotFound."""
    beat = services.heartbeat(service_id, node_id, **told)
    followed(beat.version)
    return beat


def given_back(work: Callable[..., T]) -> Callable[..., T]:
    """`work` in a thread that no request of Django's will tidy: its database session goes back to the pool."""

    def doing(*arguments: Any, **named: Any) -> T:
        try:
            return work(*arguments, **named)
        finally:
            give_back()

    return doing


class ProbeView(APIView):
    """Probes a node now and shows what was asked, answered and concluded."""

    scopes = {"POST": "operate"}

    @extend_schema(request=None, responses=dict)
    def post(self, request: Request, service_id: str, node_id: str) -> HttpResponse:
        check_may(request.auth, "registry.change_node")
        node = Node.objects.present().filter(service=service_id, node_id=node_id)
        found = health.probe_now(node, by=request.auth.caller)
        if not found:
            raise NotFound(f"there is no node {service_id}/{node_id}")
        followed(found[0].version)
        return json_response(found[0].document())


class HistoryView(APIView):
    """How a node's status has changed, the newest first, with the evidence where a probe decided."""

    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="node_history", parameters=PAGED, responses=dict)
    def get(self, request: Request, service_id: str, node_id: str) -> HttpResponse:
        node = Node.objects.filter(service=service_id, node_id=node_id).first()
        if node is None:
            raise NotFound(f"there is no node {service_id}/{node_id}")
        rows, cursor = page(node.history.all(), request, ["-pk"])
        return page_response(rows, cursor, status_change_document)


class NodesView(APIView):
    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="nodes_list", parameters=PAGED, responses=dict)
    def get(self, request: Request) -> HttpResponse:
        rows, cursor = page(Node.objects.for_display(), request, ["service_id", "node_id"])
        return page_response(rows, cursor, node_document)


class ServicesView(APIView):
    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="services_list", parameters=PAGED, responses=dict)
    def get(self, request: Request) -> HttpResponse:
        rows, cursor = page(services_with_nodes(), request, ["service_id"])
        return page_response(rows, cursor, service_document)


class ServiceView(APIView):
    scopes = {"GET": OBSERVE}

    @extend_schema(responses=dict)
    def get(self, request: Request, service_id: str) -> HttpResponse:
        service = services_with_nodes().filter(pk=service_id).first()
        if service is None:
            raise NotFound(f"there is no service {service_id}")
        return json_response(service_document(service))


class CapabilitiesView(APIView):
    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="capabilities_list", parameters=[OpenApiParameter("q", str), *PAGED], responses=dict)
    def get(self, request: Request) -> HttpResponse:
        known = ranked(Capability.objects.all(), request.GET.get("q", "").split())
        rows, cursor = page(known.prefetch_related(PROVIDERS), request, ["-rank", "name"])
        return page_response(rows, cursor, lambda row: capability_document(row.name, row.providers))


class CapabilityView(APIView):
    scopes = {"GET": OBSERVE}

    @extend_schema(responses=dict)
    def get(self, request: Request, name: str) -> HttpResponse:
        capability = Capability.objects.filter(pk=name).prefetch_related(PROVIDERS).first()
        if capability is None:
            raise NotFound(f"nobody has ever declared the capability {name}")
        return json_response(capability_document(name, capability.providers))


class KeysView(APIView):
    scopes = {"GET": "operate", "POST": "operate"}

    @extend_schema(operation_id="keys_list", parameters=PAGED, responses=dict)
    def get(self, request: Request) -> HttpResponse:
        check_may(request.auth, "registry.view_apikey")
        rows, cursor = page(ApiKey.objects.select_related("user"), request, ["-created_at", "key_id"])
        return page_response(rows, cursor, key_document)

    @extend_schema(request={"application/json": described(KeyBody)}, responses={201: dict})
    def post(self, request: Request) -> HttpResponse:
        check_may(request.auth, "registry.add_apikey")
        body = read_body(request, key_decoder)
        key = services.create_service_key(
            body.service_id,
            body.scopes,
            expires_at=body.expires_at,
            by=request.auth.caller,
            held=request.auth.scopes,
        )
        followed(key.version)
        return json_response({"key_id": key.key_id, "key": key.text, "signing_secret": key.signing_secret}, 201)


class KeyView(APIView):
    scopes = {"DELETE": "operate"}

    @extend_schema(responses={204: None})
    def delete(self, request: Request, key_id: str) -> HttpResponse:
        check_may(request.auth, "registry.delete_apikey")
        followed(services.revoke_key(key_id, by=request.auth.caller))
        return HttpResponse(status=204)


# --- Questions -------------------------------------------------------------------------------------------------------

PROVIDERS = Prefetch(
    "declarations",
    Declaration.objects.filter(node__deleted_at=None)
    .select_related("node__lease")
    .order_by("node__service_id", "node__node_id"),
    to_attr="providers",
)


def shown_node(service_id: str, node_id: str) -> Node:
    node = Node.objects.for_display().filter(service=service_id, node_id=node_id).first()
    if node is None:
        raise NotFound(f"there is no node {service_id}/{node_id}")
    return node


def services_with_nodes() -> QuerySet[Service]:
    nodes = Prefetch("nodes", Node.objects.for_display().order_by("node_id"))
    return Service.objects.prefetch_related(nodes)


def ranked(capabilities: QuerySet[Capability], words: list[str]) -> QuerySet[Capability]:
    """Those that have every word in name, description or tags; matching names first."""
    whole = Case(
        When(name__iexact="_".join(words), then=Value(3)),
        When(name__icontains="_".join(words), then=Value(2)),
        default=Value(1),
        output_field=IntegerField(),
    )
    for word in words:
        told = Q(description__icontains=word) | Q(tags__contains=[word])
        declared = Declaration.objects.filter(told, capability=OuterRef("pk"), node__deleted_at=None)
        capabilities = capabilities.filter(Q(name__icontains=word) | Exists(declared))
    return capabilities.annotate(rank=whole if words else Value(0))


def drain_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_DRAIN_S:
        raise invalid_parameter("drain_s", f"must be a number from 0 to {MAX_DRAIN_S}")
    return seconds
