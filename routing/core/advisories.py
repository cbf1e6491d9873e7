"""What recent traffic and the tables say an operator should look at. Counts, samples and tables in, advisories out.

The words for each kind, with its remedy, are in `routing.wording`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

from registry.core.node import Node, Offer
from routing.core.matching import Route
from routing.core.pool import standing_refusal
from routing.core.tables import Tables

SERVICES_COMPARED = 32
"""Of one capability: the work grows with their square."""
PAIRS_NAMED = 5
"""Of one capability, those that share the most calls."""


class Kind(StrEnum):
    """What is noticed."""

    TAKES_MOST = "takes_most"
    BOTH_ACCEPT = "both_accept"
    UNREACHED = "unreached"
    UNPROVIDED = "unprovided"
    RATE_LIMITED = "rate_limited"
    SCHEMA_REFUSES = "schema_refuses"
    MANY_CHANGES = "many_changes"


@dataclass(frozen=True, slots=True)
class Advisory:
    """One thing noticed. `subject` tells it from others of its kind, from one look to the next."""

    kind: Kind
    subject: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A recent call: what was asked, by which route it went, and to whom."""

    capability: str
    payload: Any
    route_id: str | None
    service_id: str | None
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is looked at, all of the last day."""

    tables: Tables
    default_route: str
    """What becomes of a call that no route matches: `auto` or `deny`."""
    sample: Sequence[SampledCall]
    limited: Mapping[str, int]
    """Capability → calls that ended because every node was at its limit, among those counted."""
    requires: Mapping[str, Iterable[str]]
    """Service → capabilities that it says it calls."""
    table_changes: int


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on something is worth a word."""

    share: float = 0.8
    calls: int = 30
    """Without so many calls a share says nothing."""
    overlaps: int = 5
    limited: int = 10
    table_changes: int = 10


def advise(evidence: Evidence, thresholds: Thresholds) -> list[Advisory]:
    """Everything to be noticed, each once."""
    tables = evidence.tables
    by_capability: dict[str, list[SampledCall]] = defaultdict(list)
    for call in evidence.sample:
        by_capability[call.capability].append(call)
    found: list[Advisory] = []
    for capability, calls in sorted(by_capability.items()):
        found += takes_most(tables, capability, calls, thresholds)
        found += both_accept(tables, capability, calls, thresholds)
        found += schema_refuses(tables, capability, calls)
    found += unreached(tables, evidence.default_route)
    found += unprovided(tables, evidence.requires)
    found += [
        Advisory(Kind.RATE_LIMITED, capability, {"capability": capability, "calls": calls})
        for capability, calls in sorted(evidence.limited.items())
        if calls >= thresholds.limited
    ]
    if evidence.table_changes > thresholds.table_changes:
        facts = {"changes": evidence.table_changes, "most": thresholds.table_changes}
        found.append(Advisory(Kind.MANY_CHANGES, "", facts))
    return found


# --- Of calls --------------------------------------------------------------------------------------------------------


def takes_most(
    tables: Tables, capability: str, calls: Iterable[SampledCall], thresholds: Thresholds
) -> Iterator[Advisory]:
    """One service has nearly all calls that three or more could have taken, and nobody reviewed it to be so."""
    hits: dict[str | None, Counter[str]] = defaultdict(Counter)
    able: dict[str | None, Mapping[str, Sequence[Offer]]] = {}
    for call in calls:
        if call.service_id is None:
            continue
        if call.route_id not in able:
            able[call.route_id] = choosable(tables, capability, tables.routes_by_id.get(call.route_id or ""))
        fit = [service for service, offers in able[call.route_id].items() if accepted(offers, call.payload)]
        if len(fit) >= 3 and call.service_id in fit:
            hits[call.route_id][call.service_id] += 1
    for route_id, by_service in hits.items():
        (service, most), total = by_service.most_common(1)[0], by_service.total()
        if total >= thresholds.calls and most > thresholds.share * total:
            facts = {
                "capability": capability,
                "service": service,
                "percent": round(100 * most / total),
                "services": len(able[route_id]),
                "calls": total,
            }
            yield Advisory(Kind.TAKES_MOST, f"{capability} {service}", facts)


def choosable(tables: Tables, capability: str, route: Route | None) -> Mapping[str, Sequence[Offer]]:
    """The able services that a route chooses among by itself; none where reviewed weights tell them apart."""
    if route is not None and len(set((route.strategy.weights or {}).values())) > 1:
        return {}
    found: dict[str, list[Offer]] = defaultdict(list)
    for node, offer in tables.providers.get(capability, ()):
        if is_reached(node, route):
            found[node.service_id].append(offer)
    return found


def both_accept(
    tables: Tables, capability: str, calls: Sequence[SampledCall], thresholds: Thresholds
) -> Iterator[Advisory]:
    """Two services declare different schemas, and real payloads fit both: chance, not meaning, tells them apart."""
    offers = offers_by_service(tables, capability)
    digests = {service: {offer.input.digest for offer in of} for service, of in offers.items()}
    taken = {
        service: {n for n, call in enumerate(calls) if accepted(offers[service], call.payload)}
        for service in sorted(offers)[:SERVICES_COMPARED]
    }
    shared = [
        (len(taken[first] & taken[second]), first, second)
        for first, second in combinations(taken, 2)
        if digests[first] != digests[second]
    ]
    for both, first, second in sorted(shared, key=lambda one: (-one[0], one[1:]))[:PAIRS_NAMED]:
        if both >= thresholds.overlaps:
            facts = {"capability": capability, "first": first, "second": second, "calls": both, "of": len(calls)}
            yield Advisory(Kind.BOTH_ACCEPT, f"{capability} {first} {second}", facts)


def schema_refuses(tables: Tables, capability: str, calls: Iterable[SampledCall]) -> Iterator[Advisory]:
    """A service succeeded with payloads that its schema of today refuses: their callers will be refused next time."""
    offers = offers_by_service(tables, capability)
    refused: Counter[str] = Counter()
    served: Counter[str] = Counter()
    errors: dict[str, dict[str, str]] = {}
    for call in calls:
        service = call.service_id
        if not call.succeeded or service is None or service not in offers:
            continue
        served[service] += 1
        if not accepted(offers[service], call.payload):
            refused[service] += 1
            wrong = offers[service][0].input.errors(call.payload, root="/payload")
            errors.setdefault(service, wrong[0] if wrong else {"path": "/payload", "message": "does not fit"})
    for service, count in sorted(refused.items()):
        why = errors[service]
        facts = {"capability": capability, "service": service, "calls": count, "of": served[service]}
        facts |= {"path": why["path"], "error": why["message"]}
        yield Advisory(Kind.SCHEMA_REFUSES, f"{capability} {service}", facts)


def offers_by_service(tables: Tables, capability: str) -> Mapping[str, Sequence[Offer]]:
    found: dict[str, list[Offer]] = defaultdict(list)
    for node, offer in tables.providers.get(capability, ()):
        if all(known.input.digest != offer.input.digest for known in found[node.service_id]):
            found[node.service_id].append(offer)
    return found


def accepted(offers: Iterable[Offer], payload: Any) -> bool:
    return any(offer.input.accepts(payload) for offer in offers)


# --- Of the tables ---------------------------------------------------------------------------------------------------


def unreached(tables: Tables, default_route: str) -> Iterator[Advisory]:
    """A service stands ready for a capability, and whatever the call, no route leads to it."""
    for capability, offers in sorted(tables.providers.items()):
        routes, falls_through = reachable_routes(tables.routes_for(capability))
        if falls_through and default_route == "auto":
            continue
        able = {node.service_id for node, _offer in offers if standing_refusal(node, None, frozenset()) is None}
        reached = {rule.service for route in routes for rule in route.fallback_rules}
        reached |= {route.canary.service for route in routes if route.canary is not None}
        for node, _offer in offers:
            service = node.service_id
            if service in able and service not in reached and any(is_reached(node, route) for route in routes):
                reached.add(service)
        for service in sorted(able - reached):
            yield Advisory(Kind.UNREACHED, f"{capability} {service}", {"capability": capability, "service": service})


def reachable_routes(routes: Iterable[Route]) -> tuple[list[Route], bool]:
    """The routes of a capability that some call can come to, and whether some call can pass them all."""
    found = []
    for route in routes:
        found.append(route)
        if not route.conditions and all(rule.action != "next_route" for rule in route.fallback_rules):
            return found, False
    return found, True


def is_reached(node: Node, route: Route | None) -> bool:
    """Whether a route (None: the automatic choice) takes a node into its pool, as both stand."""
    if route is not None and route.strategy.services is not None and node.service_id not in route.strategy.services:
        return False
    return standing_refusal(node, route, frozenset()) is None


def unprovided(tables: Tables, requires: Mapping[str, Iterable[str]]) -> Iterator[Advisory]:
    """A service says that it calls a capability that no registered node has."""
    for service, names in sorted(requires.items()):
        for name in sorted(set(names) - tables.providers.keys()):
            yield Advisory(Kind.UNPROVIDED, f"{name} {service}", {"capability": name, "service": service})
