"""What the database tells of nodes and routes, as the frozen values that calls are decided by."""

from functools import lru_cache
from typing import Any

from registry.addresses import allowed_addresses, spelled_refusal
from registry.core.node import AdminState, Health, Node, Offer, Tier
from registry.schemas import schema_of_text

NODES = """
SELECT n.id, n.service_id, n.node_id, n.address, coalesce(n.operator_weight, n.declared_weight) AS weight, n.health,
    n.admin_state, n.tags, n.version, n.endpoints->>'invoke' AS invoke, n.endpoints->>'cancel' AS cancel,
    n.max_concurrency, l.expired
FROM registry_node n JOIN registry_nodelease l ON l.node_id = n.id WHERE n.deleted_at IS NULL
"""
OFFERS = """
SELECT d.node_id, d.capability_id AS capability, d.version, d.description, d.input_schema::text, d.output_schema::text,
    d.cost_level, d.rate_per_s, d.timeout_tier, d.idempotent, d.tags, d.allow_callers
FROM registry_declaration d JOIN registry_node n ON n.id = d.node_id WHERE n.deleted_at IS NULL
"""
OF_THESE = " AND n.id = ANY(%s)"
"""Ends either of the two where only some nodes are asked for."""
SERVICES = "SELECT service_id, signing_secret FROM registry_service"
CAPABILITIES = "SELECT name FROM registry_capability"
ROUTES = """
SELECT r.number, r.fallback_rules, coalesce((
    SELECT json_agg(t.document ORDER BY t.position) FROM routing_route t WHERE t.revision_id = r.number
), '[]') AS routes
FROM routing_tablerevision r ORDER BY r.number DESC LIMIT 1
"""


def offer_of(row: dict[str, Any]) -> Offer:
    takes = schema_of_text(row["input_schema"])
    return Offer(
        capability=row["capability"],
        input=takes,
        output=schema_of_text(row["output_schema"]),
        version=row["version"],
        cost_level=row["cost_level"],
        rate_per_s=row["rate_per_s"],
        tier=Tier(row["timeout_tier"]),
        idempotent=row["idempotent"],
        tags=frozenset(row["tags"]),
        allow_callers=frozenset(row["allow_callers"]),
        description=row["description"],
        narrowness=takes.narrowness,
    )


def node_of(row: dict[str, Any], offers: dict[str, Offer]) -> Node:
    base = row["address"].rstrip("/")
    return Node(
        service_id=row["service_id"],
        node_id=row["node_id"],
        address=row["address"],
        weight=row["weight"],
        health=Health(row["health"]),
        admin_state=AdminState(row["admin_state"]),
        expired=row["expired"],
        barred=address_bar(row["address"], allowed_addresses()),
        tags=frozenset(row["tags"]),
        version=row["version"],
        invoke_url=base + row["invoke"],
        cancel_url=base + row["cancel"] if row["cancel"] else None,
        max_concurrency=row["max_concurrency"],
        offers=offers,
    )


@lru_cache(maxsize=16_384)
def address_bar(address: str, allowed: tuple[str, ...]) -> str | None:
    """`spelled_refusal`, remembered: the tables are loaded often, addresses seldom change."""
    return spelled_refusal(address, allowed=allowed)
