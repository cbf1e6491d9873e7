"""Does a table make sense? What can never work is a mistake; what may be meant, and often is not, a warning.

Both are asked of proposals only: a table that is live stays loadable whatever is learnt about it later.
A service or capability that nobody has registered is a warning: routes are often written before the first node starts.
From a file (`manage.py routes`) a service that nobody has registered is a mistake, unless it is said to be yet to come.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from registry.models import Capability, Service
from routing.core.edits import Document, by_id, differ
from routing.core.implication import contradiction
from routing.core.matching import Kind, Route
from routing.rules import Mistakes, did_you_mean, escaped, parse_document

BRACKETS = re.compile(r"\[!?\]?[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Warned:
    """Something in a table that may not be meant, at its JSON pointer."""

    path: str
    route: str
    message: str


def check_table(document: Any, base: Document | None = None) -> None:
    """Raise InvalidRequest with every mistake, of form or of sense; routes that read as in `base` are left alone."""
    routes, _rules = parse_document(document, max_routes=settings.REACH_MAX_ROUTES)
    known = by_id(base) if base is not None else {}
    mistakes = Mistakes()
    for index, (route, written) in enumerate(zip(routes, document["routes"], strict=True)):
        if differ(known.get(route.id), written):
            check_route(route, f"/routes/{index}", mistakes)
    mistakes.raise_if_any("the routes are not valid")


def check_operations_make_sense(operations: list[Any], document: Document) -> None:
    """Raise InvalidRequest with every `put` that can never work, placed among the operations."""
    routes, _rules = parse_document(document, max_routes=settings.REACH_MAX_ROUTES)
    parsed = {route.id: route for route in routes}
    mistakes = Mistakes()
    for index, operation in enumerate(operations):
        if operation["op"] == "put":
            check_route(parsed[operation["id"]], f"/operations/{index}", mistakes)
    mistakes.raise_if_any("the operations are not valid")


def check_route(route: Route, path: str, mistakes: Mistakes) -> None:
    pattern = route.capability
    if pattern is not None and pattern.kind is Kind.GLOB and "[" in BRACKETS.sub("", pattern.text):
        mistakes.add(f"{path}/match/capability", f"{pattern.text!r} is not a glob: its [ is never closed")
    for condition in route.conditions:
        if why := contradiction(condition):
            mistakes.add(f"{path}/match/{escaped(condition.key)}", f"can match nothing: {why}")


def warnings_in(document: Document) -> list[Warned]:
    """Services and capabilities of a valid table that nobody has registered."""
    services = set(Service.objects.values_list("service_id", flat=True))
    capabilities = set(Capability.objects.values_list("name", flat=True))
    return list(unknown_names(document, services, capabilities))


def unknown_services_in(document: Document, base: Document) -> list[Warned]:
    """Services that nobody has registered, in the routes of a valid table that do not read as in `base`."""
    services = set(Service.objects.values_list("service_id", flat=True))
    known = by_id(base)
    changed = {route["id"] for route in document["routes"] if differ(known.get(route["id"]), route)}
    return [one for one in unknown_services(document, services) if one.route in changed]


def unknown_names(document: Document, services: Collection[str], capabilities: Collection[str]) -> Iterator[Warned]:
    """Every place that names a service or a capability which is not among the known ones."""
    routes, _rules = parse_document(document, max_routes=settings.REACH_MAX_ROUTES)
    for index, route in enumerate(routes):
        pattern = route.capability
        if pattern is not None and pattern.kind is Kind.EXACT and pattern.text not in capabilities:
            near = did_you_mean(pattern.text, capabilities)
            said = f"nobody has ever declared the capability {pattern.text!r}{near}"
            yield Warned(f"/routes/{index}/match/capability", route.id, said)
    yield from unknown_services(document, services)


def unknown_services(document: Document, services: Collection[str]) -> Iterator[Warned]:
    for index, route in enumerate(document["routes"]):
        for place, service in named_services(route):
            if service not in services:
                near = did_you_mean(service, services)
                yield Warned(f"/routes/{index}/{place}", route["id"], f"no service {service!r} is registered{near}")


def named_services(route: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The services that a route as it is written names, each with its place."""
    strategy = route["strategy"]
    if "service" in strategy:
        yield "strategy/service", strategy["service"]
    listed = strategy.get("services") or []
    yield from ((f"strategy/services/{position}", service) for position, service in enumerate(listed))
    weights = strategy.get("weights") or {}
    yield from ((f"strategy/weights/{escaped(service)}", service) for service in weights if service not in listed)
    for part in ("canary", "mirror"):
        if route.get(part):
            yield f"{part}/service", route[part]["service"]
    for position, rule in enumerate(route.get("fallback_rules") or []):
        if rule.get("service"):
            yield f"fallback_rules/{position}/service", rule["service"]
