"""The nodes a route may use, parted once per table: those that can take calls, and those that cannot with the reason.

A call then only asks which *groups* (nodes that declare the same input schema and callers) take its payload. So a
pool of ten thousand nodes costs a call no more than one of ten.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from registry.core.node import AdminState, Health, Node, Offer, Schema
from routing.core.breaker import NODE_SHUT, OF_SERVICE, SERVICE_SHUT
from routing.core.matching import Route

NOTHING_SHUT: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A node with what it offers; `refusal` says why it cannot take calls now (None: it can).

    The marks after it never take a node out: marked ones take calls only where nobody unmarked can.
    """

    node: Node
    offer: Offer
    refusal: str | None = None
    suspect: bool = False
    tried: int = 0
    """By this call: 2 the node itself, 1 another node of its service, 0 neither."""
    near_limit: bool = False
    likeness: float | None = None
    """How much of what a fuzzy route looks for its declaration says, 0 to 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Candidates that take the same payloads from the same callers."""

    schema: Schema
    allow_callers: frozenset[str]
    candidates: tuple[Candidate, ...]
    words: str = ""
    """What their declarations say of themselves, in pools that are parted by it."""

    def admits(self, caller: str) -> bool:
        return not self.allow_callers or caller in self.allow_callers


@dataclass(frozen=True, slots=True)
class Preferences:
    """By what a field is parted and ordered."""

    weights: Mapping[str, int] | None = None
    """Of services; None: each node counts by its own weight alone."""
    narrow_first: bool = False
    """A service whose schema demands more comes before one that takes anything."""
    cheap_first: bool = False
    """A lower `cost_level` comes before a higher one."""
    shown_at_most: int = 32


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """The candidates left for one call, with everything a pick needs worked out beforehand."""

    candidates: tuple[Candidate, ...]
    able: tuple[Candidate, ...]
    """Those to pick from: of all that are not refused the ones that rank first."""
    cumulative: tuple[float, ...]
    """Running sum of the able candidates' shares; the last is 1.0."""
    shown: tuple[dict[str, Any], ...]
    """The first candidates as CONTRACT §4 shows them, able ones first."""
    left_out: Mapping[str, int]
    """How many were refused, by reason."""
    preferences: Preferences
    stuck: dict[str, Candidate] = field(default_factory=dict)
    """Whom keys of the sticky strategy belong to, as far as they have been asked for."""

    def at(self, chance: float) -> Candidate:
        """The candidate at `chance` (uniform in [0, 1)) when each is as likely as its share."""
        return self.able[min(bisect_right(self.cumulative, chance), len(self.able) - 1)]

    def changed(self, change: Callable[[Candidate], Candidate]) -> "Field":
        """The field after `change` of every candidate that is not refused. Costs as much as it has candidates."""
        return make_field([change(c) if c.refusal is None else c for c in self.candidates], self.preferences)


FIELDS_KEPT = 256
CANDIDATES_KEPT = 100_000
"""In all fields of one pool together, so that a large pool under a fuzzy route does not fill the memory."""


class Pool:
    """All providers a route may use, grouped; `field` is remembered per set of groups that take the call."""

    __slots__ = ("breakers", "fields", "fields_kept", "groups", "preferences")

    def __init__(self, candidates: Iterable[Candidate], preferences: Preferences, *, by_words: bool = False):
        grouped: dict[tuple[str, frozenset[str], str], list[Candidate]] = {}
        for candidate in candidates:
            offer = candidate.offer
            key = (offer.input.digest, offer.allow_callers, offer.words if by_words else "")
            grouped.setdefault(key, []).append(candidate)
        self.groups = tuple(
            Group(members[0].offer.input, callers, tuple(members), words)
            for (_, callers, words), members in grouped.items()
        )
        members = [candidate.node.key for group in self.groups for candidate in group.candidates]
        self.breakers = frozenset(members) | {(service_id, OF_SERVICE) for service_id, _node_id in members}
        """The keys of all breakers that calls to this pool go through."""
        self.preferences = preferences
        self.fields: dict[tuple[Any, ...], Field] = {}
        count = sum(len(group.candidates) for group in self.groups)
        self.fields_kept = min(FIELDS_KEPT, max(8, CANDIDATES_KEPT // max(1, count)))

    def field(
        self,
        refusals: tuple[str | None, ...],
        likenesses: tuple[float, ...] | None = None,
        *,
        cheap_first: bool = False,
        shut: Set[tuple[str, str]] = NOTHING_SHUT,
    ) -> Field:
        """The field of a call; `refusals` has, per group, why the whole group is out (None: it is in).

        `shut` are those of the pool's breakers through which nothing may go.
        """
        key = (refusals, likenesses, cheap_first, shut)
        if (known := self.fields.get(key)) is None:
            candidates = [
                candidate
                if refusal is None and likeness is None and not shut
                else replace(
                    candidate,
                    refusal=refusal or candidate.refusal or (shut_refusal(candidate.node, shut) if shut else None),
                    likeness=likeness,
                )
                for group, refusal, likeness in zip(
                    self.groups, refusals, likenesses or (None,) * len(self.groups), strict=True
                )
                for candidate in group.candidates
            ]
            preferences = replace(self.preferences, cheap_first=True) if cheap_first else self.preferences
            known = make_field(candidates, preferences)
            if len(self.fields) >= self.fields_kept:
                self.fields.clear()
            self.fields[key] = known
        return known


def shut_refusal(node: Node, shut: Set[tuple[str, str]]) -> str | None:
    if (node.service_id, OF_SERVICE) in shut:
        return SERVICE_SHUT
    return NODE_SHUT if node.key in shut else None


def make_field(candidates: Sequence[Candidate], preferences: Preferences) -> Field:
    """Part the candidates into able, spared and refused, and work out shares and what is shown.

    Able are those of the best rank. A node's share is its service's weight among the services that still have able
    nodes, times its own weight among its service's able nodes; without service weights all able nodes share by their
    own weight.
    """
    fit = [c for c in candidates if c.refusal is None]
    refused = [c for c in candidates if c.refusal is not None]
    ranks = ranks_of(fit, preferences)
    best = min(ranks, default=())
    able = tuple(c for c, rank in zip(fit, ranks, strict=True) if rank == best)
    spared = [(c, rank) for c, rank in zip(fit, ranks, strict=True) if rank != best]
    shares = shares_of(able, preferences.weights)
    left_out: dict[str, int] = {}
    for candidate in refused:
        left_out[str(candidate.refusal)] = left_out.get(str(candidate.refusal), 0) + 1
    at_most = preferences.shown_at_most
    shown = [shown_form(c, share) for c, share in zip(able[:at_most], shares[:at_most], strict=True)]
    shown += [shown_form(c, 0.0, why_spared(rank, best)) for c, rank in spared[: at_most - len(shown)]]
    shown += [shown_form(c, 0.0, str(c.refusal)) for c in refused[: at_most - len(shown)]]
    return Field(tuple(candidates), able, tuple(accumulate(shares)), tuple(shown), left_out, preferences)


Rank = tuple[float, ...]
"""Where a candidate stands among those that are not refused: lower is first. `WHY_SPARED` names the places."""

WHY_SPARED = (
    "suspect: only where nobody else can",
    "tried already: only where nobody else can",
    "a narrower service takes it",
    "another is more alike",
    "near its limit: only where nobody else can",
    "a cheaper one takes it",
)
COST = {"low": 0, "medium": 1, "high": 2}


def ranks_of(fit: Sequence[Candidate], preferences: Preferences) -> list[Rank]:
    """The rank of each candidate.

    Narrowness is compared between services, never within one: while a new version with one more required field is
    rolled out, its first node must not draw the whole traffic.
    """
    narrowness: dict[str, int] = {}
    if preferences.narrow_first:
        for c in fit:
            service = c.node.service_id
            narrowness[service] = max(c.offer.narrowness, narrowness.get(service, 0))
    cheap_first = preferences.cheap_first
    return [
        (
            c.suspect,
            c.tried,
            -narrowness.get(c.node.service_id, 0),
            -(c.likeness or 0.0),
            c.near_limit,
            COST.get(c.offer.cost_level, 1) if cheap_first else 0,
        )
        for c in fit
    ]


def why_spared(rank: Rank, best: Rank) -> str:
    return next(why for why, mine, theirs in zip(WHY_SPARED, rank, best, strict=True) if mine != theirs)


def shown_form(candidate: Candidate, share: float, reason: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "service_id": candidate.node.service_id,
        "node_id": candidate.node.node_id,
        "eligible": candidate.refusal is None,
        "reasons": [] if reason is None else [reason],
        "share": round(share, 4),
    }
    if candidate.likeness is not None:
        shown["likeness"] = round(candidate.likeness, 4)
    return shown


def shares_of(able: Sequence[Candidate], weights: Mapping[str, int] | None) -> list[float]:
    """Each able candidate's share of the calls, in order; they sum to 1."""
    by_service: dict[str, int] = {}
    for candidate in able:
        service = candidate.node.service_id
        by_service[service] = by_service.get(service, 0) + candidate.node.weight
    total = float(sum((weights.get(s, 0) for s in by_service) if weights is not None else by_service.values()))
    if weights is None:
        return [c.node.weight / total for c in able]
    return [weights.get(s := c.node.service_id, 0) / total * c.node.weight / by_service[s] for c in able]


def standing_refusal(
    node: Node, route: Route | None, call_tags: frozenset[str], *, only: str | None = None
) -> str | None:
    """Why a node can take no call of this route now, whatever its payload; None when it can.

    Without a route (`auto`) the call's own tags narrow the nodes. `only` names the service that is asked for whatever
    the strategy's weights say.
    """
    if node.admin_state is AdminState.DISABLED:
        return "disabled by an operator"
    if node.admin_state is AdminState.DRAINING:
        return "draining"
    if node.barred:
        return node.barred
    if node.expired:
        return "lease expired"
    if node.health is Health.STARTING:
        return "not yet proven ready"
    if node.health is Health.NOT_READY:
        return "not ready"
    if node.weight == 0:
        return "weight 0"
    wanted = call_tags if route is None else route.node_tags
    if missing := wanted - node.tags:
        return f"lacks tag {min(missing)}"
    if route is not None:
        if route.node_version is not None and not route.node_version.accepts(node.version):
            return f"version {node.version or '(none)'} is outside the route's range"
        weights = route.strategy.weights
        if only is None and weights is not None and weights.get(node.service_id, 0) == 0:
            return "weight 0 in the route"
    return None
