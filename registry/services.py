"""Verbs of the registry: one transaction each, its audit row, and one bump when dispatchers must know."""

import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatch
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import F
from msgspec import UNSET, UnsetType

from registry import changes, clock, schemas
from registry.addresses import allowed_addresses, check_address
from registry.audit import audit
from registry.auth import SCOPES, Key, digest_of
from registry.core.lease import absence
from registry.core.node import AdminState, Health
from registry.core.rates import parse_rate
from registry.errors import Conflict, Forbidden, InvalidRequest, NotFound
from registry.health import probe_at_once, remember, set_admin_state, set_health
from registry.models import (
    ApiKey,
    Capability,
    Declaration,
    LeaseSweep,
    Node,
    NodeLease,
    Service,
    StatusChange,
)
from registry.serializers import NodeBody, check_declaration
from registry.signing import decrypt, encrypt, new_signing_secret

PROBE_PENDING = "registered, not yet proven ready"
REVIVED = "its heartbeat is back, not yet proven ready"


# --- Registration ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """What a registration came to."""

    node: Node
    created: bool
    signing_secret: str
    advisories: list[dict[str, str]]
    version: int | None
    """The snapshot version to wait for, None when nothing changed for dispatchers."""


def register_node(service_id: str, node_id: str, body: NodeBody, *, by: Key) -> Registered:
    """Take a node's full declaration; the same one again only renews its lease. Raises InvalidRequest."""
    check_declaration(
        body,
        max_capabilities=settings.REACH_MAX_CAPABILITIES,
        max_schema_bytes=settings.REACH_MAX_SCHEMA_BYTES,
        max_schema_depth=settings.REACH_MAX_SCHEMA_DEPTH,
        max_metadata_bytes=settings.REACH_MAX_CONTEXT_BYTES,
    )
    address = check_address(body.address, allowed=allowed_addresses())
    now = clock.now()
    with transaction.atomic():
        service = ensure_service(service_id)
        fields = node_fields(body, address)
        node, inserted = Node.objects.select_for_update(no_key=True).get_or_create(
            service=service, node_id=node_id, defaults=fields | {"health_reason": PROBE_PENDING, "health_since": now}
        )
        lease = NodeLease.objects.filter(node=node).first()
        created = inserted or node.deleted_at is not None
        gone = created or lease is None or lease.expired
        moved = gone or (node.address, node.endpoints) != (address, fields["endpoints"])
        renewed = moved or node.version != body.version
        changed = moved or node.drain_until is not None or node.declaration_hash != fields["declaration_hash"]
        if moved:
            set_health(node, Health.STARTING, PROBE_PENDING, now)
        if changed:
            come_back(node, fields, now, anew=created)
            declare(node, body)
        node.lease, _ = NodeLease.objects.update_or_create(node=node, defaults=fresh_lease(node, now))
        if moved:
            probe_at_once(node.pk)
        if renewed:
            remember(node, now, version=body.version)
        if by.service_id != service_id:
            audit(by.caller, "register", str(node), address=address)
        version = changes.bump([node.pk]) if changed else None
    return Registered(node, created, decrypt(service.signing_secret), advise(body), version)


def ensure_service(service_id: str) -> Service:
    """The service, made with a signing secret of its own when it is new."""
    service = Service.objects.filter(pk=service_id).first()
    if service is None:
        secret = encrypt(new_signing_secret())
        service, _ = Service.objects.get_or_create(service_id=service_id, defaults={"signing_secret": secret})
    return service


def node_fields(body: NodeBody, address: str) -> dict[str, Any]:
    ttl_s, heartbeat_s = body.lease_terms
    endpoints = body.endpoints
    return {
        "address": address,
        "declared_weight": body.weight,
        "tags": list(dict.fromkeys(body.tags)),
        "version": body.version,
        "protocol": body.protocol,
        "endpoints": {name: getattr(endpoints, name) for name in endpoints.__struct_fields__},
        "heartbeat_interval_s": heartbeat_s,
        "lease_ttl_s": ttl_s,
        "max_concurrency": body.max_concurrency,
        "metadata": body.metadata,
        "requires": list(dict.fromkeys(body.requires)),
        "declaration_hash": body.digest,
    }


def come_back(node: Node, fields: dict[str, Any], now: datetime, *, anew: bool) -> None:
    """Save a node as newly declared. What the operator chose stays; a farewell that had begun is over."""
    for name, value in fields.items():
        setattr(node, name, value)
    if node.drain_until is not None:
        set_admin_state(node, AdminState.ENABLED, now)
    if anew:
        node.registered_at = now
    node.deleted_at = node.drain_until = None
    node.save()


def declare(node: Node, body: NodeBody) -> None:
    """Replace what the node declares. Capabilities are taken in order of name: opposite orders would deadlock."""
    wanted = sorted(body.capabilities, key=lambda capability: capability.name)
    Capability.objects.bulk_create([Capability(name=c.name) for c in wanted], ignore_conflicts=True)
    Declaration.objects.filter(node=node).delete()
    Declaration.objects.bulk_create(
        Declaration(
            node=node,
            capability_id=capability.name,
            version=capability.version,
            description=capability.description,
            input_schema=capability.schema_in,
            output_schema=capability.schema_out,
            cost_level=capability.cost_level,
            rate_limit=capability.rate_limit,
            rate_per_s=parse_rate(capability.rate_limit),
            timeout_tier=capability.timeout_tier,
            idempotent=capability.idempotent,
            tags=capability.tags,
            allow_callers=capability.allow_callers,
            examples=capability.examples,
        )
        for capability in wanted
    )


def fresh_lease(node: Node, now: datetime) -> dict[str, Any]:
    return {
        "last_heartbeat_at": now,
        "lease_expires_at": now + timedelta(seconds=node.lease_ttl_s),
        "expired": False,
        "expired_since": None,
    }


def advise(body: NodeBody) -> list[dict[str, str]]:
    provided = Declaration.objects.filter(capability__in=body.requires, node__in=Node.objects.present())
    return schemas.advisories(
        ((capability.name, capability.schema_in) for capability in body.capabilities),
        requires=body.requires,
        provided=provided.values_list("capability_id", flat=True),
    )


# --- Heartbeats and leases -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heartbeat:
    lease_expires_at: datetime
    reregister: bool
    version: int | None


def heartbeat(service_id: str, node_id: str, *, in_flight: int | None, declaration_hash: str | None) -> Heartbeat:
    """Renew a lease, and revive an expired node. Raises NotFound when the node must register (again)."""
    node = Node.objects.staying().filter(service=service_id, node_id=node_id).first()
    if node is None:
        raise NotFound(f"{service_id}/{node_id} is not registered: register it (again)")
    now = clock.now()
    renewed = fresh_lease(node, now) | {"in_flight": in_flight}
    alive = NodeLease.objects.filter(node=node, expired=False).update(**renewed)
    version = None if alive else revive(node.pk, renewed, now)
    reregister = declaration_hash is not None and declaration_hash != node.declaration_hash
    return Heartbeat(renewed["lease_expires_at"], reregister, version)


def revive(node_pk: int, renewed: dict[str, Any], now: datetime) -> int:
    """An expired node is heard again: listed, and to be proven ready anew."""
    with transaction.atomic():
        node = Node.objects.select_for_update(no_key=True).get(pk=node_pk)
        NodeLease.objects.filter(node=node).update(**renewed)
        set_health(node, Health.STARTING, REVIVED, now)
        node.save(update_fields=["health", "health_reason", "health_since"])
        probe_at_once(node.pk)
        remember(node, now)
        return changes.bump([node.pk])


ears: list[Callable[[], bool]] = []
"""Whoever knows of the processes signs up: each says whether any is there that heartbeats can reach."""


def expire_leases(now: datetime) -> int:
    """Mark the nodes whose lease ran out; how many. Leases live on by as long as the reach itself was away."""
    with transaction.atomic():
        sweep = LeaseSweep.objects.select_for_update().filter(pk=1).first()
        away = absence(sweep.swept_at if sweep else None, now, heard=all(ear() for ear in ears))
        LeaseSweep.objects.update_or_create(pk=1, defaults={"swept_at": now})
        running = NodeLease.objects.filter(expired=False, node__in=Node.objects.present())
        if away:
            running.update(lease_expires_at=F("lease_expires_at") + away)
        over = running.filter(lease_expires_at__lte=now).select_related("node").order_by("pk")
        expired = list(over.select_for_update(of=("self",)))
        for lease in expired:
            remember(lease.node, now, expired=True)
        if expired:
            ended = NodeLease.objects.filter(pk__in=[lease.pk for lease in expired])
            ended.update(expired=True, expired_since=now)
            changes.bump(lease.pk for lease in expired)
    return len(expired)


# --- Leaving, and what operators decide ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Removed:
    drains: bool
    version: int


def remove_node(service_id: str, node_id: str, *, drain_s: float, by: Key) -> Removed:
    """No new calls at once. With `drain_s` the node stays listed as draining for so long. Raises NotFound.

    A node that an operator had already taken out has nothing to drain: it goes at once, and keeps that choice.
    """
    now = clock.now()
    with transaction.atomic():
        node = locked(service_id, node_id)
        if node.drain_until is None and node.admin_state == AdminState.ENABLED and drain_s > 0:
            set_admin_state(node, AdminState.DRAINING, now)
            node.drain_until = now + timedelta(seconds=drain_s)
        elif drain_s == 0 or node.drain_until is None:
            leave(node, now)
        node.save()
        if node.deleted_at is None:
            remember(node, now, expired=node.lease.expired)
        audit(by.caller, "remove", str(node), drain_s=drain_s)
        return Removed(node.deleted_at is None, changes.bump([node.pk]))


def leave(node: Node, now: datetime) -> None:
    """Change a node in memory: gone from every list, its row kept for the operator's choices and its history."""
    StatusChange.objects.create(node=node, at=now, status="removed")
    if node.drain_until is not None:
        set_admin_state(node, AdminState.ENABLED, now)
    node.deleted_at, node.drain_until = now, None


def finish_drains(now: datetime) -> int:
    """Take nodes off the lists whose farewell is over; how many."""
    with transaction.atomic():
        leaving = list(Node.objects.leaving_is_over(now).select_for_update(skip_locked=True, no_key=True))
        for node in leaving:
            leave(node, now)
            node.save()
        if leaving:
            changes.bump(node.pk for node in leaving)
    return len(leaving)


def set_operator_choice(
    service_id: str,
    node_id: str,
    *,
    weight: int | UnsetType | None = UNSET,
    admin_state: AdminState | UnsetType = UNSET,
    by: str,
) -> int:
    """Overrule a node's weight (None gives it back) or its state, across its restarts. Raises NotFound, Conflict."""
    now = clock.now()
    with transaction.atomic():
        node = locked(service_id, node_id)
        if node.drain_until is not None:
            raise Conflict(f"{node} is leaving; it can be changed when it has registered again")
        chosen: dict[str, Any] = {}
        if weight is not UNSET:
            node.operator_weight = chosen["weight"] = weight
        if admin_state is not UNSET:
            changed = node.admin_state != admin_state
            set_admin_state(node, admin_state, now)
            chosen["admin_state"] = admin_state.value
            if changed:
                remember(node, now, expired=node.lease.expired)
        node.save()
        audit(by, "change", str(node), **chosen)
        return changes.bump([node.pk])


def locked(service_id: str, node_id: str) -> Node:
    """The node, locked for the transaction. Raises NotFound.

    As everywhere here with a lock that lets others write rows that belong to it: who waits at his commit to add to the
    node's history, with the counter of `changes` in his hand, would wait for somebody who waits for the counter.
    """
    node = Node.objects.present().select_for_update(no_key=True).filter(service=service_id, node_id=node_id).first()
    if node is None:
        raise NotFound(f"there is no node {service_id}/{node_id}")
    return node


# --- Keys, users, groups ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at the only moment when its text is known."""

    key_id: str
    text: str
    version: int
    signing_secret: str | None = None


def check_scopes(scopes: Collection[str], *, held: Collection[str] = SCOPES) -> list[str]:
    """The scopes once each, in order. Raises InvalidRequest for unknown ones, Forbidden for more than `held`."""
    errors = [
        {"path": f"/scopes/{index}", "message": f"must be one of {', '.join(SCOPES)}"}
        for index, scope in enumerate(scopes)
        if scope not in SCOPES
    ]
    if errors or not scopes:
        errors = errors or [{"path": "/scopes", "message": "must name at least one scope"}]
        raise InvalidRequest(f"{errors[0]['path']}: {errors[0]['message']}", errors)
    if excess := sorted(set(scopes) - set(held)):
        raise Forbidden(f"a key cannot give away what it does not have: {', '.join(excess)}")
    return [scope for scope in SCOPES if scope in scopes]


def create_service_key(
    service_id: str,
    scopes: Collection[str],
    *,
    by: str,
    held: Collection[str] = SCOPES,
    expires_at: datetime | None = None,
) -> NewKey:
    """A key for a service, which is made when it is new. Raises InvalidRequest, Forbidden."""
    ordered = check_scopes(scopes, held=held)
    if expires_at is not None and expires_at <= clock.now():
        raise InvalidRequest("expires_at is in the past", [{"path": "/expires_at", "message": "is in the past"}])
    with transaction.atomic():
        service = ensure_service(service_id)
        return new_key(ordered, by=by, service=service, expires_at=expires_at, secret=decrypt(service.signing_secret))


def create_user_key(user: Any, scopes: Collection[str], *, by: str) -> NewKey:
    """A key for a person. Raises InvalidRequest."""
    with transaction.atomic():
        return new_key(check_scopes(scopes), by=by, user=user)


def new_key(scopes: list[str], *, by: str, secret: str | None = None, **owner: Any) -> NewKey:
    """Make and store a key inside the caller's transaction."""
    text = "reach_" + secrets.token_urlsafe(32)
    key = ApiKey.objects.create(
        key_id="k_" + secrets.token_hex(8), digest=digest_of(text), scopes=scopes, created_by=by, **owner
    )
    audit(by, "create key", key.key_id, owner=key.owner, scopes=scopes)
    return NewKey(key.key_id, text, changes.bump(parts=[changes.Part.KEYS]), secret)


def revoke_key(key_id: str, *, by: str) -> int:
    """End a key for good. Raises NotFound."""
    with transaction.atomic():
        if not ApiKey.objects.filter(pk=key_id, revoked_at=None).update(revoked_at=clock.now()):
            raise NotFound(f"there is no key {key_id}")
        audit(by, "revoke key", key_id)
        return changes.bump(parts=[changes.Part.KEYS])


GROUPS = {
    "viewer": ("registry.view_*", "receipts.view_*", "routing.view_*"),
    "operator": (
        "registry.view_*",
        "receipts.view_*",
        "routing.view_*",
        "registry.*_node",
        "registry.*_apikey",
        "receipts.add_call",
        "receipts.change_call",
        "routing.add_routechange",
        "routing.change_routechange",
        "routing.change_advisory",
    ),
    "approver": ("registry.view_*", "receipts.view_*", "routing.view_*", "routing.approve_routechange"),
    "admin": ("registry.*", "receipts.*", "routing.*", "auth.*"),
}
"""Who may do what, as patterns of Django's permissions."""


def ensure_groups() -> None:
    """Make the groups, and give each all of its permissions; what an administrator added stays."""
    permissions = list(Permission.objects.select_related("content_type"))
    for name, patterns in GROUPS.items():
        group, _ = Group.objects.get_or_create(name=name)
        group.permissions.add(*(p for p in permissions if any(fnmatch(full_name(p), pattern) for pattern in patterns)))


def full_name(permission: Permission) -> str:
    return f"{permission.content_type.app_label}.{permission.codename}"


def create_user(username: str, groups: Iterable[str], *, by: str, superuser: bool = False) -> tuple[Any, str]:
    """An operator who can log in, and the password made for them. Raises InvalidRequest, Conflict."""
    groups = list(groups)
    if unknown := sorted(set(groups) - GROUPS.keys()):
        raise InvalidRequest(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    people = get_user_model()
    password = secrets.token_urlsafe(12)
    with transaction.atomic():
        ensure_groups()
        if people.objects.filter(username=username).exists():
            raise Conflict(f"there is a user {username} already")
        user = people.objects.create_user(username, password=password, is_staff=True, is_superuser=superuser)
        user.groups.set(Group.objects.filter(name__in=groups))
        audit(by, "create user", f"user:{username}", groups=groups)
    return user, password


def user_key_scopes(groups: Collection[str]) -> tuple[str, ...]:
    """Scopes for a person's key: permissions narrow `operate`, and a viewer only looks."""
    return SCOPES if set(groups) - {"viewer"} else ("observe",)
