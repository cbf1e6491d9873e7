"""What a route change would do: two tables and a sample of calls in, what moves out.

Each call is given to `next_step` under either table, as a dispatcher with nothing else to do would: nothing of how a
route or a service is chosen is said again here. What a route asks of a call is looked up once for each value that calls
have there, so that thousands of routes for one capability cost little more than ten.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from receipts.core.envelope import CallEnvelope, digest_of
from receipts.core.journey import Journey
from registry.core.node import Health, Node, Offer, Schema
from routing.core.advisories import is_reached, reachable_routes
from routing.core.balancing import RateKey
from routing.core.breaker import Shuts
from routing.core.conditions import Check, Condition, Operator, Source, is_number, value_at
from routing.core.implication import finite_values, narrows
from routing.core.matching import Kind, Route, RouteTable
from routing.core.plan import AUTO, Attempt, Policy, Step, Stop, next_step
from routing.core.pool import standing_refusal
from routing.core.tables import Tables

Place = tuple[Source, tuple[str, ...]]
Paths = frozenset[tuple[str, ...]]
"""Places of a payload."""
NO_PATHS: Paths = frozenset()

FLOWS_TOLD = 200
SHADOWS_TOLD = 200
SAMPLES_PER_FLOW = 3
SAMPLES_TOLD = 60
SCOPE_TOLD = 1000
"""Of the lists in a report: the largest first."""
DOMINANT_SHARE = 0.8
DOMINANT_CALLS = 5
"""Without so many calls a share says nothing."""
LONG_TEXT = 256
FEW = 64
Tally = defaultdict[Any, float]
"""Calls, and parts of calls, by what they are counted by."""


# --- What is replayed ------------------------------------------------------------------------------------------------


class Unchecked:
    """A schema that cannot judge stored payloads, since some of their values are masked: it takes them all."""

    def __init__(self, declared: Schema):
        self.digest = declared.digest

    def accepts(self, value: Any) -> bool:
        return True

    def errors(self, value: Any, *, root: str) -> list[dict[str, str]]:
        return []


class ReplayTables(Tables):
    """Tables of which one call sees only the routes that are known to match it; the matcher asks those again."""

    __slots__ = ("seen",)

    def __init__(self, tables: Tables, routes: RouteTable, masked: Mapping[str, Paths]):
        nodes = [as_replayed(node, masked) for node in tables.nodes.values()]
        super().__init__(tables.version, nodes, tables.known, routes, shown_at_most=max(1, len(nodes)))
        self.seen: tuple[str, tuple[Route, ...]] | None = None

    def routes_for(self, capability: str) -> tuple[Route, ...]:
        if self.seen is not None and self.seen[0] == capability:
            return self.seen[1]
        return super().routes_for(capability)


def as_replayed(node: Node, masked: Mapping[str, Paths]) -> Node:
    """The node as a review should see it: what probes say of it at this minute is none of the change's doing."""
    offers: Mapping[str, Offer] = node.offers
    if masked.keys() & offers.keys():
        offers = {n: replace(o, input=Unchecked(o.input)) if n in masked else o for n, o in offers.items()}
    return replace(node, health=Health.READY, offers=offers)


class Idle:
    """The load of a process that has nothing to do and has seen nothing fail."""

    def in_flight(self, key: tuple[str, str]) -> int:
        return 0

    def latency_s(self, key: tuple[str, str]) -> float:
        return 0.0

    def tokens(self, key: RateKey, rate_per_s: float) -> float:
        return math.inf

    def next_token_s(self, key: RateKey, rate_per_s: float) -> float:
        return 0.0

    def suspects(self) -> Container[tuple[str, str]]:
        return ()

    def shut(self) -> Shuts:
        return {}

    def retry_refusal(self, service_id: str) -> str | None:
        return None


IDLE = Idle()


@dataclass(frozen=True, slots=True)
class Taker:
    """A service that may get a call, with its part of such calls (0 to 1)."""

    service: str
    cost_level: str
    share: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a call under one table. Nobody takes it where there are no `takers`; `code` says why."""

    route: str
    takers: tuple[Taker, ...]
    code: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """The routes of either table that match a call, in order; and what would have to be seen to know."""

    before: tuple[Route, ...]
    after: tuple[Route, ...]
    unknown: tuple[tuple[str, str], ...] = ()
    """Route and place of conditions on masked values that decide the call's way."""
    robbed: tuple[tuple[str, str], ...] = ()
    """Route and the one before it that newly takes this call from it."""


# --- Which routes match ----------------------------------------------------------------------------------------------


class Shapes:
    """The different sets of conditions among the routes of one capability, a bit each."""

    def __init__(self, before: Sequence[Route], after: Sequence[Route], masked: Paths):
        self.masked = masked
        self.bits: dict[Any, int] = {}
        self.asked: dict[Place, list[tuple[int, Condition]]] = defaultdict(list)
        self.of_bit: dict[int, tuple[list[tuple[int, Route]], list[tuple[int, Route]]]] = {}
        """Bit → routes of either table with their place in it."""
        for side, routes in enumerate((before, after)):
            for rank, route in enumerate(routes):
                self.of_bit.setdefault(self.enter(route), ([], []))[side].append((rank, route))
        self.all = (1 << len(self.bits)) - 1
        self.asked_at = {place: sum(1 << bit for bit, _ in asked) for place, asked in self.asked.items()}
        self.known: dict[tuple[Place, Any], int] = {}

    def enter(self, route: Route) -> int:
        shape = tuple((c.source, c.path, tuple(map(check_key, c.checks))) for c in route.conditions)
        if (bit := self.bits.get(shape)) is None:
            bit = self.bits[shape] = len(self.bits)
            for condition in route.conditions:
                self.asked[condition.source, condition.path].append((bit, condition))
        return bit

    def of(self, envelope: CallEnvelope) -> tuple[int, int]:
        """The shapes that may hold for a call, and those among them that ask for a masked value."""
        possible, veiled = self.all, 0
        numbers = []
        for place in self.asked:
            if self.masked and is_masked(place, self.masked):
                veiled |= self.asked_at[place]
                continue
            value = value_at(envelope, *place)
            if isinstance(value, int | float):
                numbers.append((place, value))
            else:
                possible &= self.mask(place, value, envelope)
        for place, value in numbers:  # last, since they seldom come again: few shapes are left to be asked
            left = possible & self.asked_at[place]
            if left.bit_count() > FEW:
                possible &= self.mask(place, value, envelope)
            elif left:
                for bit, condition in self.asked[place]:
                    if left >> bit & 1 and not condition.holds(envelope):
                        possible &= ~(1 << bit)
        return possible, veiled & possible

    def mask(self, place: Place, value: Any, envelope: CallEnvelope) -> int:
        """The shapes that do not mind what a call has at one place."""
        key = (place, value_key(value))
        if (known := self.known.get(key)) is None:
            held = sum(1 << bit for bit, condition in self.asked[place] if condition.holds(envelope))
            known = self.known[key] = (self.all & ~self.asked_at[place]) | held
        return known

    def within(self, side: int, mask: int) -> list[tuple[Route, int]]:
        """The routes of one table (0: before, 1: after) whose shapes are in `mask`, in order, each with its bit."""
        found = []
        while mask:
            bit = (mask & -mask).bit_length() - 1
            mask &= mask - 1
            found += [(rank, bit, route) for rank, route in self.of_bit[bit][side]]
        return [(route, bit) for _rank, bit, route in sorted(found, key=itemgetter(0))]


def check_key(check: Check) -> tuple[Any, ...]:
    """What tells checks apart. Compiled patterns are kept once a text, so one stands for itself."""
    return check.operator, id(check.operand) if check.operator is Operator.PATTERN else repr(check.operand)


def value_key(value: Any) -> Any:
    """A hashable stand-in that differs where values differ for any check: `true` and 1 do."""
    if isinstance(value, str) and len(value) <= LONG_TEXT:
        return value
    if isinstance(value, str | dict | list):
        return (dict if isinstance(value, dict) else list if isinstance(value, list) else str, digest_of(value))
    return type(value), value


def is_masked(place: Place, masked: Paths) -> bool:
    """Whether a place of the payload is masked itself, lies within something masked, or holds something masked."""
    source, path = place
    return source is Source.INPUT and any(path[: len(m)] == m[: len(path)] for m in masked)


# --- The replay ------------------------------------------------------------------------------------------------------


class Replay:
    """Sends calls through two tables, one by one, and keeps count. `report` tells of all that were added."""

    def __init__(
        self,
        tables: Tables,
        before: RouteTable,
        after: RouteTable,
        policy: Policy,
        *,
        masked: Mapping[str, Paths] | None = None,
        stands_for: float = 1.0,
        span_s: float = 60.0,
    ):
        """`stands_for`: real calls for each added one. `span_s`: over which the busiest moment's rate is averaged."""
        self.policy, self.stands_for, self.span_s, self.masked = policy, stands_for, span_s, masked or {}
        self.before = ReplayTables(tables, before, self.masked)
        self.after = ReplayTables(tables, after, self.masked)
        self.shapes: dict[str, Shapes] = {}
        self.matched: dict[tuple[str, int, int], Matched] = {}
        self.takers_of: dict[int, tuple[Any, tuple[Taker, ...]]] = {}
        self.pairs: dict[tuple[str, str], bool] = {}
        self.shadowed = newly_never_matching(before, after)
        self.count = Counts()

    def add(self, journey: Journey) -> None:
        """Replay one call."""
        count, envelope = self.count, journey.envelope
        count.calls += 1
        found = self.matching(envelope)
        count.robbed.update(found.robbed)
        if self.shadowed:
            count.shadowed.update(route.id for route in found.after if route.id in self.shadowed)
        if found.unknown:
            count.unknown += 1
            count.unknown_at.update((*place, envelope.capability) for place in found.unknown)
            return
        before = self.verdict(journey, self.before, found.before)
        after = self.verdict(journey, self.after, found.after)
        moment = int(envelope.received_at_millis / 1000 / self.span_s)
        count.compare(envelope.capability, moment, journey, before, after)

    def matching(self, envelope: CallEnvelope) -> Matched:
        """Which routes match under either table."""
        capability = envelope.capability
        if (shapes := self.shapes.get(capability)) is None:
            shapes = self.shapes[capability] = Shapes(
                self.before.routes.for_capability(capability),
                self.after.routes.for_capability(capability),
                self.masked.get(capability, NO_PATHS),
            )
        possible, veiled = shapes.of(envelope)
        key = (capability, possible, veiled)
        if (known := self.matched.get(key)) is None:
            known = self.matched[key] = self.match(shapes, possible, veiled)
        return known

    def match(self, shapes: Shapes, possible: int, veiled: int) -> Matched:
        unknown = []
        sure = [shapes.within(side, possible & ~veiled) for side in (0, 1)]
        for side in (0, 1) if veiled else ():
            for route, bit in shapes.within(side, possible):
                if not veiled >> bit & 1:
                    break
                unknown += [(route.id, c.key) for c in route.conditions if is_masked((c.source, c.path), shapes.masked)]
        if unknown:
            return Matched((), (), tuple(dict.fromkeys(unknown)))
        before, after = (tuple(route for route, _bit in routes) for routes in sure)
        return Matched(before, after, robbed=tuple(self.robbed(before, after)))

    def robbed(self, before: Sequence[Route], after: Sequence[Route]) -> Iterator[tuple[str, str]]:
        """Routes that match a call which another takes from them, though it is no finer than they are: news only."""
        if len(after) < 2:
            return
        had = before[0].id if before else None
        winner = after[0]
        for position, route in enumerate(after[1:]):
            if route.id != had and position > 0:
                continue  # it would not have come to this one
            if route.id != had and passes_on(winner):
                continue  # meant to be the next
            if had == winner.id and any(other.id == route.id for other in before[1:]):
                continue  # it has been so before
            if self.is_finer(winner, route):
                continue
            yield route.id, winner.id

    def is_finer(self, winner: Route, route: Route) -> bool:
        """Whether one takes only a part of what the other matches: an exception, and meant."""
        key = (winner.id, route.id)
        if (known := self.pairs.get(key)) is None:
            known = self.pairs[key] = narrows(winner, route) and not narrows(route, winner)
        return known

    def verdict(self, journey: Journey, tables: ReplayTables, matched: tuple[Route, ...]) -> Verdict:
        """What `next_step` says of a call, as shares of services instead of one draw."""
        tables.seen = (journey.envelope.capability, matched)
        at = journey.envelope.received_at_millis
        step = next_step(journey, tables, IDLE, self.policy, now_millis=at, chance=middle)
        if not isinstance(step, Attempt):
            return nobody(step)
        return Verdict(step.why.route_id, self.takers(step, journey, tables))

    def takers(self, step: Attempt, journey: Journey, tables: ReplayTables) -> tuple[Taker, ...]:
        route = tables.routes_by_id.get(step.why.route_id)
        offer = step.chosen.offer
        if route is not None and route.strategy.key is not None and route.strategy.key.of(journey) is not None:
            return (Taker(step.chosen.node.service_id, offer.cost_level, 1.0),)
        shown = step.why.candidates
        if (known := self.takers_of.get(id(shown))) is None:
            shares: dict[tuple[str, str], float] = defaultdict(float)
            for candidate in shown:
                if candidate["share"]:
                    node = tables.nodes[candidate["service_id"], candidate["node_id"]]
                    shares[node.service_id, node.offers[offer.capability].cost_level] += candidate["share"]
            total = sum(shares.values()) or 1.0
            takers = tuple(Taker(*key, share / total) for key, share in sorted(shares.items()))
            known = self.takers_of[id(shown)] = (shown, takers)  # held, so that no other has its id
        return known[1]

    def report(self) -> dict[str, Any]:
        """All that was seen, as JSON (CONTRACT §7 names the first half)."""
        count = self.count
        lost = {capability for capability, code in count.lost if code == "no_available_node"}
        unprovided = {
            name
            for name in self.before.known - lost
            if is_provided(self.before, name, self.policy) and not is_provided(self.after, name, self.policy)
        }
        return {
            "sampled_calls": count.calls,
            "moved": {
                "total": tidy(sum(count.moved.values())),
                "by_route": flows(count.by_route),
                "by_service": flows(count.by_service),
                "by_capability": tidied(count.moved),
                "flows": [
                    {
                        "from": {"route": old_route, "service": old},
                        "to": {"route": new_route, "service": new},
                        "calls": tidy(calls),
                    }
                    for (old_route, old, new_route, new), calls in ranked(count.flows)
                ],
            },
            "unprovided_capabilities": sorted(lost | unprovided),
            "shadowed_routes": self.shadows(),
            "dominant_services": self.dominant(),
            "rate_limit_risks": self.rate_risks(),
            "cost_shift": {"before": tidied(count.cost_before), "after": tidied(count.cost_after)},
            "samples": [sample for samples in count.samples.values() for sample in samples][:SAMPLES_TOLD],
            "lost_calls": [
                {"capability": capability, "code": code, "calls": calls}
                for (capability, code), calls in count.lost.most_common(FLOWS_TOLD)
            ],
            "unknown": {
                "calls": count.unknown,
                "conditions": [
                    {"route": route, "condition": place, "capability": capability, "calls": calls}
                    for (route, place, capability), calls in count.unknown_at.most_common(FLOWS_TOLD)
                ],
            },
            "services": loads(count.service_before, count.service_after, "service"),
            "routes": loads(count.route_before, count.route_after, "route"),
            "scope": {
                side: [list(pair) for pair, _ in pairs.most_common(SCOPE_TOLD)]
                for side, pairs in (("before", count.scope_before), ("after", count.scope_after))
            },
        }

    def shadows(self) -> list[dict[str, Any]]:
        found: dict[tuple[str, str], dict[str, Any]] = {
            (route, by): {"route": route, "by": by, "calls": self.count.shadowed[route], "whole": True}
            for route, by in self.shadowed.items()
        }
        for (route, by), calls in self.count.robbed.items():
            known = found.get((route, by))
            has_lost_all = self.count.route_before[route] > 0 and not self.count.route_after[route]
            whole = known is not None or (has_lost_all and calls >= self.count.route_before[route])
            found[route, by] = {"route": route, "by": by, "calls": calls, "whole": whole}
        return sorted(found.values(), key=lambda one: (-one["calls"], one["route"], one["by"]))[:SHADOWS_TOLD]

    def dominant(self) -> list[dict[str, Any]]:
        """Services that get nearly all calls of a capability which others offer, too, where the change moves any."""
        found = []
        for capability in sorted(self.count.moved):
            offered_by = {node.service_id for node, _ in self.after.providers.get(capability, ())}
            before, after = self.count.before[capability], self.count.after[capability]
            calls = sum(after.values())
            if len(offered_by) < 2 or calls < DOMINANT_CALLS:
                continue
            service, most = max(after.items(), key=lambda item: item[1])
            if service and most > DOMINANT_SHARE * calls:
                share_before = before.get(service, 0.0) / (sum(before.values()) or 1.0)
                shares = {"share_before": round(share_before, 4), "share_after": round(most / calls, 4)}
                found.append({"service": service, "capability": capability, **shares, "calls": tidy(most)})
        return found

    def rate_risks(self) -> list[dict[str, Any]]:
        """Where the busiest span would bring more than the declared rates allow, and more than it does today."""
        found = []
        to_rate = self.stands_for / self.span_s
        for (service, capability), after in sorted(self.count.peaks_after().items()):
            limit = declared_rate(self.after, service, capability)
            before = self.count.peaks_before().get((service, capability), 0.0)
            if limit is not None and after * to_rate > limit and after > before:
                rates = {"before_per_s": round(before * to_rate, 3), "after_per_s": round(after * to_rate, 3)}
                found.append({"service": service, "capability": capability, "limit_per_s": limit, **rates})
        return found


class Counts:
    """What a replay has seen, in calls (parts of calls where a service is chosen by share)."""

    def __init__(self) -> None:
        self.calls = self.unknown = 0
        self.unknown_at: Counter[tuple[str, str, str]] = Counter()
        self.moved: Tally = Tally(float)
        self.by_route: Counter[tuple[str, str]] = Counter()
        self.by_service: Tally = Tally(float)
        self.flows: Tally = Tally(float)
        """By route and service before, route and service after."""
        self.robbed: Counter[tuple[str, str]] = Counter()
        self.shadowed: Counter[str] = Counter()
        self.lost: Counter[tuple[str, str]] = Counter()
        self.before: dict[str, Tally] = defaultdict(lambda: Tally(float))
        self.after: dict[str, Tally] = defaultdict(lambda: Tally(float))
        """Capability → service ("": nobody) → calls."""
        self.cost_before: Tally = Tally(float)
        self.cost_after: Tally = Tally(float)
        self.route_before: Counter[str] = Counter()
        self.route_after: Counter[str] = Counter()
        self.spans_before: dict[tuple[str, str], Tally] = defaultdict(lambda: Tally(float))
        self.spans_after: dict[tuple[str, str], Tally] = defaultdict(lambda: Tally(float))
        self.samples: dict[Any, list[dict[str, Any]]] = {}
        self.scope_before: Counter[tuple[str, str]] = Counter()
        self.scope_after: Counter[tuple[str, str]] = Counter()

    def compare(self, capability: str, moment: int, journey: Journey, before: Verdict, after: Verdict) -> None:
        """Count one call with its two verdicts."""
        self.route_before[before.route] += 1
        self.route_after[after.route] += 1
        for verdict, services, costs, spans in (
            (before, self.before, self.cost_before, self.spans_before),
            (after, self.after, self.cost_after, self.spans_after),
        ):
            for taker in verdict.takers:
                services[capability][taker.service] += taker.share
                costs[taker.cost_level] += taker.share
                spans[taker.service, capability][moment] += taker.share
            if not verdict.takers:
                services[capability][""] += 1
        if before.takers and not after.takers:
            self.lost[capability, after.code] += 1
        if before.route == after.route and before.takers is after.takers:
            return
        moved = 0.0
        for (giver, receiver), part in moves(before.takers, after.takers):
            self.by_service[giver, receiver] += part
            self.flows[before.route, giver, after.route, receiver] += part
            moved += part
        if before.route != after.route:
            self.by_route[before.route, after.route] += 1
            for service, part in stays(before.takers, after.takers):
                self.flows[before.route, service, after.route, service] += part
            moved = 1.0
        if moved:
            self.moved[capability] += moved
            self.scope_before[capability, before.route] += 1
            self.scope_after[capability, after.route] += 1
            self.keep_sample(capability, journey, before, after)

    def keep_sample(self, capability: str, journey: Journey, before: Verdict, after: Verdict) -> None:
        """Remember a few calls of each kind of move."""
        kept = self.samples.setdefault((capability, before.route, after.route, before.takers, after.takers), [])
        if len(kept) < SAMPLES_PER_FLOW:
            kept.append(
                {
                    "call_id": str(journey.call_id),
                    "capability": capability,
                    "before": told(before),
                    "after": told(after),
                }
            )

    @property
    def service_before(self) -> Tally:
        return total_by_service(self.before)

    @property
    def service_after(self) -> Tally:
        return total_by_service(self.after)

    def peaks_before(self) -> Mapping[tuple[str, str], float]:
        return {key: max(spans.values()) for key, spans in self.spans_before.items()}

    def peaks_after(self) -> Mapping[tuple[str, str], float]:
        return {key: max(spans.values()) for key, spans in self.spans_after.items()}


def middle() -> float:
    """Chance, where it must not matter: shares are told, not draws."""
    return 0.5


def nobody(step: Step) -> Verdict:
    """The verdict where a call finds nobody at first: it ends, or a fallback rule makes it wait."""
    if isinstance(step, Stop):
        return Verdict(step.why.route_id, (), step.ending.code or "")
    return Verdict(step.why.route_id if step.why is not None else AUTO, (), "no_available_node")


def moves(before: Sequence[Taker], after: Sequence[Taker]) -> Iterator[tuple[tuple[str | None, str | None], float]]:
    """Which part of a call goes from whom to whom (None: nobody); what both have alike stays."""
    old, new = by_service(before), by_service(after)
    less = {service: left for service, share in old.items() if (left := share - new.get(service, 0.0)) > 1e-9}
    more = {service: gain for service, share in new.items() if (gain := share - old.get(service, 0.0)) > 1e-9}
    total = sum(more.values())
    for giver, given in less.items():
        for taker, taken in more.items():
            yield (giver, taker), given * taken / total


def stays(before: Sequence[Taker], after: Sequence[Taker]) -> Iterator[tuple[str | None, float]]:
    """Which part of a call each service (None: nobody) gets as before."""
    old, new = by_service(before), by_service(after)
    return ((service, part) for service, share in old.items() if (part := min(share, new.get(service, 0.0))) > 1e-9)


def by_service(takers: Sequence[Taker]) -> Mapping[str | None, float]:
    shares: dict[str | None, float] = defaultdict(float)
    for taker in takers:
        shares[taker.service] += taker.share
    return shares or {None: 1.0}


def told(verdict: Verdict) -> dict[str, Any]:
    services = {service: round(share, 4) for service, share in by_service(verdict.takers).items() if service}
    return {"route": verdict.route, "services": services, **({"code": verdict.code} if verdict.code else {})}


def total_by_service(counted: Mapping[str, Tally]) -> Tally:
    total = Tally(float)
    for services in counted.values():
        for service, calls in services.items():
            total[service] += calls
    return total


def tidy(calls: float) -> float:
    """A number of calls as people read it: whole, or with one digit."""
    return round(calls) if abs(calls - round(calls)) < 0.05 else round(calls, 1)


def tidied(counted: Mapping[str, float]) -> dict[str, float]:
    return {key: tidy(calls) for key, calls in sorted(counted.items())}


def flows(counted: Mapping[Any, float]) -> list[dict[str, Any]]:
    """From where to where, the most calls first; null is nobody."""
    return [{"from": old, "to": new, "calls": tidy(calls)} for (old, new), calls in ranked(counted)]


def ranked(counted: Mapping[Any, float]) -> list[tuple[Any, float]]:
    return sorted(counted.items(), key=lambda item: (-item[1], str(item[0])))[:FLOWS_TOLD]


def loads(before: Mapping[str, float], after: Mapping[str, float], what: str) -> list[dict[str, Any]]:
    """Calls of each before and after, the most calls first; null is nobody."""
    names = sorted(set(before) | set(after), key=lambda name: (-max(before.get(name, 0), after.get(name, 0)), name))
    return [
        {what: name or None, "before": tidy(before.get(name, 0)), "after": tidy(after.get(name, 0))}
        for name in names[:FLOWS_TOLD]
    ]


# --- Of the tables alone ---------------------------------------------------------------------------------------------


def never_matching(table: RouteTable) -> dict[str, str]:
    """Routes that no call can come to, with the first route that takes all of theirs."""
    kept: dict[Any, list[tuple[int, Route, frozenset[Place]]]] = defaultdict(list)
    found: dict[str, str] = {}
    for position, route in enumerate(table.routes):
        if not route.enabled:
            continue
        places = frozenset((condition.source, condition.path) for condition in route.conditions)
        name = route.capability.text if route.capability and route.capability.kind is Kind.EXACT else None
        single = single_values(route)
        keys = {(of_name, value) for of_name in (None, name) for value in (None, *single)}
        above = sorted((entry for key in keys for entry in kept.get(key, ())), key=itemgetter(0))
        taker = next((other for _at, other, asked in above if asked <= places and narrows(route, other)), None)
        if taker is not None:
            found[route.id] = taker.id
        elif not passes_on(route):  # what it takes whole is taken by whoever takes it, too
            kept[name, single[0] if single else None].append((position, route, places))
    return found


def single_values(route: Route) -> list[Any]:
    """Places where a route asks for one value and no other; whoever takes its calls asks there for that, or more."""
    found = []
    for condition in route.conditions:
        values = finite_values(condition.checks)
        if values is not None and len(values) == 1:
            (value,) = values
            plain = float(value) if is_number(value) else value_key(value)
            found.append((condition.source, condition.path, plain))
    return found


def newly_never_matching(before: RouteTable, after: RouteTable) -> dict[str, str]:
    """Those of `after` that were not so in `before`."""
    known = never_matching(before)
    return {route: by for route, by in never_matching(after).items() if known.get(route) != by}


def passes_on(route: Route) -> bool:
    """Whether a route hands calls to the next one that matches where it has nobody: that one is meant to be below."""
    return any(rule.action == "next_route" for rule in route.fallback_rules)


def is_provided(tables: Tables, capability: str, policy: Policy) -> bool:
    """Whether some call for a capability can find a node, going by the routes that it can come to."""
    routes, falls_through = reachable_routes(tables.routes.for_capability(capability))
    offered = tables.providers.get(capability, ())
    able = [node for node, _offer in offered if standing_refusal(node, None, frozenset()) is None]
    if able and falls_through and policy.default_route == AUTO:
        return True
    targets = {rule.service for route in routes for rule in route.fallback_rules}
    targets |= {route.canary.service for route in routes if route.canary is not None}
    return any(is_reached(node, route) or node.service_id in targets for node, _offer in offered for route in routes)


def declared_rate(tables: Tables, service: str, capability: str) -> float | None:
    """Calls a second that a service's able nodes take together; None: no limit, or nobody."""
    rates = [
        offer.rate_per_s
        for node, offer in tables.providers.get(capability, ())
        if node.service_id == service and standing_refusal(node, None, frozenset()) is None
    ]
    return None if not rates or None in rates else sum(rate for rate in rates if rate is not None)
