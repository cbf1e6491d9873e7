"""The three tables as one frozen value: who exists, what they offer, who gets a call. Replaced whole, never changed."""

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy

from registry.core.node import Health, Node, Offer
from routing.core.matching import EMPTY_TABLE, Route, RouteTable
from routing.core.pool import Candidate, Pool, Preferences, standing_refusal
from routing.core.similarity import Vocabulary

POOLS_KEPT = 4096
CANARY_ONLY = "takes only the canary's share"
MIRROR_ONLY = "takes only copies"


Providers = Sequence[tuple[Node, Offer]]
NOBODY_GONE: frozenset[tuple[str, str]] = frozenset()


def said_of(providers: Providers) -> str:
    """What a capability says of itself beside its name, by all who declare it: the same in every process."""
    return " ".join(sorted({offer.about for _node, offer in providers}))


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
        "services",
        "shown_at_most",
        "version",
        "words",
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
        self.services = frozenset(node.service_id for node in nodes)
        self.routes_by_id: Mapping[str, Route] = {route.id: route for route in routes.routes}
        providers: dict[str, list[tuple[Node, Offer]]] = {}
        for node in nodes:
            for name, offer in node.offers.items():
                providers.setdefault(name, []).append((node, offer))
        self.providers: Mapping[str, Providers] = providers
        self.pools: dict[tuple[str, str | None, frozenset[str], str | None], Pool] = {}

        self.words: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """What each known capability says of itself, by all who declare it; made when first asked for."""
        if self.words is None:
            said = {name: {name} for name in self.known}
            for name, offers in self.providers.items():
                said.setdefault(name, set()).update(offer.words for _node, offer in offers)
            self.words = Vocabulary({name: " ".join(sorted(texts)) for name, texts in said.items()})
        return self.words

    def moved(
        self,
        version: int,
        *,
        changed: Sequence[Node] = (),
        gone: Set[tuple[str, str]] = NOBODY_GONE,
        secrets: Mapping[str, bytes] | None = None,
        routes: RouteTable | None = None,
    ) -> "Tables":
        """The next version: `changed` nodes as they are now, those `gone` gone. What they do not touch is shared."""
        after = copy(self)
        after.version = version
        touched: Set[str] = frozenset()
        if changed or gone:
            touched = after.take(changed, gone)
        if secrets:
            after.secrets = {**self.secrets, **secrets}
        if routes is not None and routes is not self.routes:
            after.routes, after.pools = routes, {}
            after.routes_by_id = {route.id: route for route in routes.routes}
        else:
            after.pools = {key: pool for key, pool in self.pools.items() if key[0] not in touched}
        return after

    def take(self, changed: Sequence[Node], gone: Set[tuple[str, str]]) -> Set[str]:
        """Part of `moved`, on a copy that nobody else has yet: its nodes; which capabilities they touch."""
        before = self.nodes
        now = {node.key: node for node in changed}
        replaced = gone | now.keys()
        touched = self.capabilities_of(replaced)
        self.nodes = before | now
        for key in gone:
            self.nodes.pop(key, None)
        touched |= self.capabilities_of(now)
        providers = dict(self.providers)
        for name in touched:
            kept = [pair for pair in providers.pop(name, ()) if pair[0].key not in replaced]
            kept += [(node, node.offers[name]) for node in changed if name in node.offers]
            if kept:
                providers[name] = kept
        if self.nodes.keys() != before.keys():
            self.services = frozenset(node.service_id for node in self.nodes.values())
        if self.words is not None and words_of(map(before.get, replaced)) != words_of(changed):
            self.words = None
        self.providers, self.known = providers, self.known | touched
        return touched

    def capabilities_of(self, keys: Iterable[tuple[str, str]]) -> frozenset[str]:
        """What the nodes of these keys offer, as far as they are there."""
        found = (self.nodes.get(key) for key in keys)
        return frozenset(name for node in found if node is not None for name in node.offers)

    @property
    def revision(self) -> int:
        return self.routes.revision

    def routes_for(self, capability: str) -> tuple[Route, ...]:
        return self.routes.for_capability(capability)

    def pool(self, capability: str, route: Route | None, call_tags: frozenset[str], *, only: str | None = None) -> Pool:
        """The pool of a route for a capability; without a route that of all providers with the call's tags.

        With `only` it is one service's, whichever services the strategy names.
        """
        key = (capability, route.id if route else None, call_tags if route is None else frozenset(), only)
        if (known := self.pools.get(key)) is None:
            known = self.make_pool(capability, route, call_tags, only)
            if len(self.pools) < POOLS_KEPT:  # strangers choose tags: beyond this they are not remembered
                self.pools[key] = known
        return known

    def make_pool(self, capability: str, route: Route | None, call_tags: frozenset[str], only: str | None) -> Pool:
        strategy = route.strategy if route is not None else None
        services = (only,) if only is not None else strategy.services if strategy is not None else None
        weights = strategy.weights if strategy is not None and only is None else None
        if weights is None and strategy is not None and strategy.type == "weighted_random":
            weights = {node.service_id: 1 for node, _offer in self.providers.get(capability, ())}
        kept_apart: dict[str, str] = {}
        if services is None and route is not None:
            if route.mirror is not None:
                kept_apart[route.mirror.service] = MIRROR_ONLY
            if route.canary is not None:
                kept_apart[route.canary.service] = CANARY_ONLY
        candidates = [
            Candidate(
                node,
                offer,
                kept_apart.get(node.service_id) or standing_refusal(node, route, call_tags, only=only),
                node.health is Health.SUSPECT,
            )
            for node, offer in self.providers.get(capability, ())
            if services is None or node.service_id in services
        ]
        preferences = Preferences(
            weights,
            narrow_first=strategy is None or strategy.type == "fuzzy",
            cheap_first=strategy is not None and strategy.type == "cost_aware",
            shown_at_most=self.shown_at_most,
        )
        return Pool(candidates, preferences, by_words=strategy is not None and strategy.type == "fuzzy")


def words_of(nodes: Iterable[Node | None]) -> set[str]:
    return {offer.words for node in nodes if node is not None for offer in node.offers.values()}
