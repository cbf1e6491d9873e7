"""Which routes match a call, in order, and why the others do not.

A table knows in advance which routes speak of which capability, so a call looks only at those: a thousand routes
for other capabilities cost it nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from fnmatch import translate
from functools import lru_cache
from typing import Protocol

from receipts.core.envelope import CallEnvelope
from routing.core.conditions import Condition
from routing.core.similarity import likeness
from routing.core.sticking import CallKey, Canary, Mirror


class VersionRange(Protocol):
    """Which versions of a node will do."""

    def accepts(self, version: str) -> bool: ...


class Kind(IntEnum):
    """How a route names its capability; the higher is the finer."""

    FUZZY = 1
    GLOB = 2
    EXACT = 3


@dataclass(frozen=True, slots=True)
class CapabilityPattern:
    """Which capabilities a route speaks of. Fuzzy ones also know how well each capability of the table's answers."""

    kind: Kind
    text: str
    min_score: float = 0.6
    scores: Mapping[str, float] = field(default_factory=dict, compare=False)

    def score(self, capability: str) -> float:
        """1 or 0 for exact and glob; for fuzzy the likeness, by the name alone where no description is known."""
        match self.kind:
            case Kind.EXACT:
                return float(capability == self.text)
            case Kind.GLOB:
                return float(compiled_glob(self.text).fullmatch(capability) is not None)
            case Kind.FUZZY:
                known = self.scores.get(capability)
                return likeness(self.text, capability) if known is None else known

    def accepts(self, capability: str) -> bool:
        return self.score(capability) >= (self.min_score if self.kind is Kind.FUZZY else 1.0)


@lru_cache(maxsize=8192)
def compiled_glob(text: str) -> re.Pattern[str]:
    """A shell pattern compiled (Python's translation cannot backtrack for ever, and names are at most 63 long)."""
    return re.compile(translate(text))


@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """How one of the able nodes is chosen. `services` limits it; None = all that offer the capability."""

    type: str
    services: tuple[str, ...] | None = None
    weights: Mapping[str, int] | None = None
    """By service; None = all equal."""
    key: CallKey | None = None
    """Of `sticky`: calls of one key meet one node."""
    min_score: float = 0.6
    """Of `fuzzy`: the least likeness (0 to 1)."""
    text: str | None = None
    """Of `fuzzy`: what is looked for where the call says nothing itself: the text that the route matches by."""


@dataclass(frozen=True, slots=True)
class FallbackRule:
    """What to do when a condition stops a call on its route."""

    condition: str
    action: str
    wait_before_retry_ms: int | None = None
    service: str | None = None
    """Whom `route_to` hands the call to: a service, or whoever has another capability."""
    capability: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A declarative rule: match → strategy."""

    id: str
    strategy: Strategy
    priority: int = 0
    capability: CapabilityPattern | None = None
    conditions: tuple[Condition, ...] = ()
    fallback_rules: tuple[FallbackRule, ...] = ()
    canary: Canary | None = None
    mirror: Mirror | None = None
    node_tags: frozenset[str] = frozenset()
    node_version: VersionRange | None = None
    timeout_ms: int | None = None
    max_retries: int | None = None
    retry_base_delay_ms: int | None = None
    retry_total_ms: int | None = None
    allow_callers: frozenset[str] = frozenset()
    enabled: bool = True
    description: str = ""


UNKNOWN_CAPABILITIES_KEPT = 1024


class RouteTable:
    """One revision, ready for use: all `routes` in order, and those of each known capability."""

    __slots__ = ("_unknown", "by_capability", "revision", "routes")

    def __init__(self, revision: int, routes: tuple[Route, ...], by_capability: Mapping[str, tuple[Route, ...]]):
        self.revision = revision
        self.routes = routes
        self.by_capability = by_capability
        self._unknown = lru_cache(maxsize=UNKNOWN_CAPABILITIES_KEPT)(lambda name: routes_of(name, routes))

    def for_capability(self, name: str) -> tuple[Route, ...]:
        """The enabled routes that speak of this capability, in order."""
        known = self.by_capability.get(name)
        return self._unknown(name) if known is None else known


EMPTY_TABLE = RouteTable(0, (), {})


def routes_of(capability: str, routes: Iterable[Route]) -> tuple[Route, ...]:
    """The enabled ones of `routes` that speak of this capability, in the order given."""
    return tuple(r for r in routes if r.enabled and (r.capability is None or r.capability.accepts(capability)))


def matched_routes(envelope: CallEnvelope, routes: Iterable[Route]) -> Iterator[Route]:
    """Those of `routes` (as `RouteTable.for_capability` gives them) whose conditions all hold, lazily, in order."""
    for route in routes:
        if all(condition.holds(envelope) for condition in route.conditions):
            yield route


def match_refusal(envelope: CallEnvelope, route: Route) -> str | None:
    """The sentence that says why `route` does not match; None when it does."""
    if not route.enabled:
        return "the route is disabled"
    if route.capability is not None and not route.capability.accepts(envelope.capability):
        return f"the route is for capability {described(route.capability)}, not {envelope.capability}"
    return next((why for c in route.conditions if (why := c.refusal(envelope)) is not None), None)


def described(pattern: CapabilityPattern) -> str:
    if pattern.kind is Kind.FUZZY:
        return f"like {pattern.text!r} (score at least {pattern.min_score:g})"
    return pattern.text
