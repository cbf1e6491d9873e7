"""The three tables as one frozen value: who exists, what they offer, who gets a call. Replaced whole, never changed."""

from collections.abc import Mapping, Sequence

from registry.core.node import Health, Node, Offer
from routing.core.matching import EMPTY_TABLE, Route, RouteTable
from routing.core.pool import Candidate, Pool, Preferences, standing_refusal

POOLS_KEPT = 4096


class Tables:
    """One version of registry, capabilities and routes, indexed for the hot path; pools are made when asked for."""

    __slots__ = (
        "known",
        "nodes",
        "pools",
        "providers",
        "routes",
        "routes_by_id",
        "secrets",
        "shown_at_most",
        "version",
    )

    def __init__(
        self,
        version: int,
        nodes: Sequence[Node],
        known: frozenset[str],
        routes: RouteTable = EMPTY_TABLE,
        secrets: Mapping[str, bytes] | None = None,
        *,
        shown_at_most: int = 32,
    ):
        self.version, self.known, self.routes, self.secrets = version, known, routes, secrets or {}
        self.shown_at_most = shown_at_most
        self.nodes = {node.key: node for node in nodes}
        self.routes_by_id: Mapping[str, Route] = {route.id: route for route in routes.routes}
        providers: dict[str, list[tuple[Node, Offer]]] = {}
        for node in nodes:
            for name, offer in node.offers.items():
                providers.setdefault(name, []).append((node, offer))
        self.providers: Mapping[str, Sequence[tuple[Node, Offer]]] = providers
        self.pools: dict[tuple[str, str | None, frozenset[str]], Pool] = {}

    @property
    def revision(self) -> int:
        return self.routes.revision

    def routes_for(self, capability: str) -> tuple[Route, ...]:
        return self.routes.for_capability(capability)

    def pool(self, capability: str, route: Route | None, call_tags: frozenset[str]) -> Pool:
        """The pool of a route for a capability; without a route that of all providers with the call's tags."""
        key = (capability, route.id, frozenset()) if route is not None else (capability, None, call_tags)
        if (known := self.pools.get(key)) is None:
            known = self.make_pool(capability, route, call_tags)
            if len(self.pools) < POOLS_KEPT:  # strangers choose tags: beyond this they are not remembered
                self.pools[key] = known
        return known

    def make_pool(self, capability: str, route: Route | None, call_tags: frozenset[str]) -> Pool:
        services = route.strategy.services if route is not None else None
        weights = route.strategy.weights if route is not None else None
        if weights is None and route is not None and route.strategy.type == "weighted_random":
            weights = {node.service_id: 1 for node, _offer in self.providers.get(capability, ())}
        candidates = [
            Candidate(node, offer, standing_refusal(node, route, call_tags), node.health is Health.SUSPECT)
            for node, offer in self.providers.get(capability, ())
            if services is None or node.service_id in services
        ]
        preferences = Preferences(
            weights,
            narrow_first=route is None,
            cheap_first=route is not None and route.strategy.type == "cost_aware",
            shown_at_most=self.shown_at_most,
        )
        return Pool(candidates, preferences)
