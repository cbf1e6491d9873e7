"""What the registry says and hears on the wire (CONTRACT §1-3, §9). The structs that read bodies also describe them."""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from registry.core.lease import HEARTBEATS_PER_LEASE, lease_terms
from registry.core.node import AdminState
from registry.core.rates import parse_rate
from registry.errors import InvalidRequest
from registry.models import ApiKey, Declaration, Node, Service, StatusChange
from registry.schemas import JSONSchema, check_schema

NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,62}\Z"
PATH_PATTERN = r"^/(?!/)[^@\\\x00-\x20\x7f]*\Z"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Path = Annotated[str, Meta(pattern=PATH_PATTERN, max_length=512)]
Version = Annotated[str, Meta(max_length=64)]
Tag = Annotated[str, Meta(min_length=1, max_length=128)]
Tags = Annotated[list[Tag], Meta(max_length=64)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Weight = Annotated[int, Meta(ge=0, le=1000)]


class EndpointsBody(Struct, frozen=True):
    """Paths below the node's address; null = it has none: then liveness judges, and without it the bare connection."""

    invoke: Path = "/reach/invoke"
    live: Path | None = "/reach/live"
    ready: Path | None = "/reach/ready"
    cancel: Path | None = None


class CapabilityBody(Struct, frozen=True):
    """One capability of a declaration."""

    name: Name
    version: Version = ""
    description: Annotated[str, Meta(max_length=4096)] = ""
    input: dict[str, Any] | bool | None = None
    output: dict[str, Any] | bool | None = None
    input_schema: dict[str, Any] | bool | None = None
    output_schema: dict[str, Any] | bool | None = None
    cost_level: Literal["low", "medium", "high"] = "medium"
    rate_limit: int | float | str | None = None
    timeout_tier: Literal["light", "medium", "heavy"] = "medium"
    idempotent: bool = False
    tags: Tags = []
    allow_callers: Annotated[list[Tag], Meta(max_length=256)] = []
    examples: Annotated[list[Any], Meta(max_length=32)] = []

    @property
    def schema_in(self) -> JSONSchema:
        return first_given(self.input, self.input_schema)

    @property
    def schema_out(self) -> JSONSchema:
        return first_given(self.output, self.output_schema)


class NodeBody(Struct, frozen=True):
    """A node's full declaration."""

    address: str
    capabilities: list[CapabilityBody]
    weight: Weight = 100
    tags: Tags = []
    version: Version = ""
    protocol: Literal["reach-http"] = "reach-http"
    endpoints: EndpointsBody = EndpointsBody()
    heartbeat_interval_s: Annotated[float, Meta(gt=0)] | None = None
    lease_ttl_s: Annotated[float, Meta(ge=3, le=3600)] | None = None
    max_concurrency: Count | None = None
    metadata: dict[str, Any] = {}
    requires: Annotated[list[Name], Meta(max_length=256)] = []

    @property
    def lease_terms(self) -> tuple[float, float]:
        return lease_terms(self.lease_ttl_s, self.heartbeat_interval_s)

    @property
    def digest(self) -> str:
        """`declaration_hash`: a node that restarts with another declaration must register again."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class HeartbeatBody(Struct, frozen=True):
    in_flight: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    declaration_hash: str | None = None


class NodePatchBody(Struct, frozen=True):
    """An operator's choices; `weight: null` gives the weight back to the node."""

    weight: Weight | UnsetType | None = UNSET
    admin_state: AdminState | UnsetType = UNSET


class KeyBody(Struct, frozen=True):
    service_id: Name
    scopes: Annotated[list[str], Meta(min_length=1, max_length=16)]
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


def first_given(*schemas: JSONSchema) -> JSONSchema:
    return next((schema for schema in schemas if schema is not None), {})


def check_declaration(
    body: NodeBody, *, max_capabilities: int, max_schema_bytes: int, max_schema_depth: int, max_metadata_bytes: int
) -> None:
    """Raise InvalidRequest naming every place that the types alone do not rule out."""
    errors = list(
        mistakes(
            body,
            max_capabilities=max_capabilities,
            max_schema_bytes=max_schema_bytes,
            max_schema_depth=max_schema_depth,
            max_metadata_bytes=max_metadata_bytes,
        )
    )
    if errors:
        raise InvalidRequest(f"{errors[0]['path']}: {errors[0]['message']}", errors)


def mistakes(
    body: NodeBody, *, max_capabilities: int, max_schema_bytes: int, max_schema_depth: int, max_metadata_bytes: int
) -> Iterator[dict[str, str]]:
    ttl_s, heartbeat_s = body.lease_terms
    if heartbeat_s * HEARTBEATS_PER_LEASE > ttl_s:
        yield {"path": "/heartbeat_interval_s", "message": f"must be at most a third of lease_ttl_s ({ttl_s:g})"}
    if body.endpoints.live is None and body.endpoints.ready is not None:
        yield {"path": "/endpoints/live", "message": "may only be null where ready is null, too"}
    if ttl_s > 3600:
        yield {"path": "/heartbeat_interval_s", "message": "must be at most 1200"}
    if len(msgspec.json.encode(body.metadata)) > max_metadata_bytes:
        yield {"path": "/metadata", "message": f"is larger than {max_metadata_bytes} bytes"}
    if len(body.capabilities) > max_capabilities:
        yield {"path": "/capabilities", "message": f"has more than {max_capabilities} entries"}
        return
    names: set[str] = set()
    for index, capability in enumerate(body.capabilities):
        place = f"/capabilities/{index}"
        if capability.name in names:
            yield {"path": f"{place}/name", "message": f"{capability.name} is declared twice"}
        names.add(capability.name)
        try:
            parse_rate(capability.rate_limit)
        except ValueError as exc:
            yield {"path": f"{place}/rate_limit", "message": str(exc)}
        for field, other in (("input", "input_schema"), ("output", "output_schema")):
            written = field if getattr(capability, field) is not None else other
            try:
                check_schema(
                    getattr(capability, written),
                    max_bytes=max_schema_bytes,
                    max_depth=max_schema_depth,
                    root=f"{place}/{written}",
                )
            except InvalidRequest as exc:
                yield from exc.errors


# --- What is shown ---------------------------------------------------------------------------------------------------


def node_document(node: Node) -> dict[str, Any]:
    """A node as everyone with `observe` sees it; wants `lease` and `declarations` at hand."""
    status = node.status
    return {
        "service_id": node.service_id,
        "node_id": node.node_id,
        "address": node.address,
        "weight": node.weight,
        "declared_weight": node.declared_weight,
        "operator_weight": node.operator_weight,
        "admin_state": node.admin_state,
        "tags": node.tags,
        "version": node.version,
        "protocol": node.protocol,
        "endpoints": node.endpoints,
        "status": status.name,
        "status_reason": status.reason,
        "status_since": node.status_since,
        "registered_at": node.registered_at,
        "last_probe_at": node.probe.checked_at if hasattr(node, "probe") else None,
        "last_heartbeat_at": node.lease.last_heartbeat_at,
        "lease_expires_at": node.lease.lease_expires_at,
        "heartbeat_interval_s": node.heartbeat_interval_s,
        "in_flight": node.lease.in_flight,
        "max_concurrency": node.max_concurrency,
        "metadata": node.metadata,
        "requires": node.requires,
        "capabilities": sorted(declaration.capability_id for declaration in node.declarations.all()),
    }


def node_in_full(node: Node) -> dict[str, Any]:
    """One node with the evidence of its last probe."""
    return node_document(node) | {"last_probe": node.probe.evidence if hasattr(node, "probe") else None}


def status_change_document(change: StatusChange) -> dict[str, Any]:
    return {"at": change.at, "status": change.status, "reason": change.reason, "evidence": change.evidence}


def service_document(service: Service) -> dict[str, Any]:
    """A service with its nodes; wants them prefetched (`api.services_with_nodes`)."""
    return {
        "service_id": service.service_id,
        "created_at": service.created_at,
        "nodes": [node_document(node) for node in service.nodes.all()],
    }


def capability_document(name: str, declarations: list[Declaration]) -> dict[str, Any]:
    """A capability with those who provide it, schemas as each declares them."""
    return {
        "name": name,
        "description": next((d.description for d in declarations if d.description), ""),
        "tags": sorted({tag for d in declarations for tag in d.tags}),
        "providers": [provider_document(declaration) for declaration in declarations],
    }


def provider_document(declaration: Declaration) -> dict[str, Any]:
    node = declaration.node
    status = node.status
    return {
        "service_id": node.service_id,
        "node_id": node.node_id,
        "status": status.name,
        "status_reason": status.reason,
        "version": declaration.version,
        "description": declaration.description,
        "input": declaration.input_schema,
        "output": declaration.output_schema,
        "cost_level": declaration.cost_level,
        "rate_limit": declaration.rate_limit,
        "timeout_tier": declaration.timeout_tier,
        "idempotent": declaration.idempotent,
        "tags": declaration.tags,
        "allow_callers": declaration.allow_callers,
        "examples": declaration.examples,
    }


def key_document(key: ApiKey) -> dict[str, Any]:
    """A key without its secret."""
    return {
        "key_id": key.key_id,
        "service_id": key.service_id,
        "username": key.username,
        "scopes": key.scopes,
        "created_by": key.created_by,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }
