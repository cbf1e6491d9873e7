"""What to do next with a call. Read this first: match a route, filter its nodes, pick one; or wait; or stop, and why.

Pure: tables, load, time and chance are arguments. `explain` runs the same code and sends nothing.
"""

import math
from collections.abc import Container, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Any, Final, TypeVar

from receipts.core.ending import Ending
from receipts.core.envelope import CallEnvelope, Urgency
from receipts.core.journey import Ended, Journey, NodeKey, Tried
from registry.core.node import Tier
from routing.core.balancing import Chance, Load, choice_sentence
from routing.core.breaker import NODE_SHUT, OF_SERVICE, SERVICE_SHUT, Shuts, State, shut_note
from routing.core.intent import unknown_sentence, unread_sentence
from routing.core.limits import next_room_s, pick_within_limits
from routing.core.matching import Route, Strategy, matched_routes
from routing.core.pool import NOTHING_SHUT, Candidate, Field, Pool, Preferences, make_field
from routing.core.retry import backoff_ms, may_repeat
from routing.core.similarity import remembered_likeness
from routing.core.sticking import Canary
from routing.core.tables import Tables

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Policy:
    """The installation's limits (settings of the same names)."""

    default_route: str = AUTO
    max_retries: int = 2
    retry_base_delay_ms: int = 100
    retry_total_ms: int = 30_000
    retry_after_ms: int = 1000
    max_timeout_ms: int = 600_000
    max_hops: int = 16
    intent_min_score: float = 0.5
    near_limit: float = 0.8
    """Of a limit: so much is taken, and `interactive` calls and `cost_aware` routes look elsewhere first."""
    tier_ms: Mapping[str, int] = field(
        default_factory=lambda: {Tier.LIGHT: 10_000, Tier.MEDIUM: 60_000, Tier.HEAVY: 600_000}
    )


@dataclass(frozen=True, slots=True)
class Fallback:
    """A fallback rule that was applied; `rule` is its place among its route's."""

    route_id: str
    condition: str
    action: str
    rule: int = 0
    service: str | None = None
    capability: str | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Why:
    """The reasons of one decision, as `routed` keeps them and `explain` shows them."""

    route_id: str
    table_revision: int
    strategy: str
    candidates: tuple[dict[str, Any], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    fallbacks: tuple[Fallback, ...] = ()
    notes: tuple[str, ...] = ()
    """What else decided, a sentence each."""
    reading: Mapping[str, Any] | None = None
    """How the call's intent was read."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Send the envelope to this node."""

    chosen: Candidate
    deadline_millis: int
    why: Why


@dataclass(frozen=True, slots=True)
class Wait:
    """Rest, then ask again. `why` tells of the fallback rule that says so; a retry's backoff has none."""

    wait_ms: int
    why: Why | None = None

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        return self.why.fallbacks if self.why is not None else ()


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """The call ends here."""

    ending: Ending
    why: Why


Step = Attempt | Wait | Stop
SomeStep = TypeVar("SomeStep", bound=Step)


def next_step(journey: Journey, tables: Tables, load: Load, policy: Policy, *, now_millis: int, chance: Chance) -> Step:
    """Decide what happens to a call now. Draws from `chance`; changes nothing."""
    last = journey.last
    if last is not None and last.number > journey.waited:
        return after_attempt(journey, last, tables, load, policy, now_millis=now_millis, chance=chance)
    step = choose(journey, tables, load, policy, now_millis=now_millis, chance=chance)
    if journey.reading is None or step.why is None:
        return step
    return replace(step, why=replace(step.why, reading=journey.reading))


def after_attempt(
    journey: Journey, last: Tried, tables: Tables, load: Load, policy: Policy, *, now_millis: int, chance: Chance
) -> Step:
    """An attempt has failed: rest and repeat, fall back, or stop."""
    route = tables.routes_by_id.get(last.route_id)
    if last.outcome.unsent and now_millis >= (journey.deadline_millis or 0):
        why = Why(last.route_id, tables.revision, route.strategy.type if route else "least_loaded")
        return Stop(Ending("deadline_exceeded", NO_TIME), why)
    repeatable = may_repeat(last.outcome, idempotent=journey.idempotent)
    wait_ms = backoff_ms(last.number, base_ms=base_delay_ms(journey.envelope, route, policy), chance=chance())
    spent = None
    if (
        repeatable
        and last.number <= max_retries(journey.envelope, route, policy)
        and now_millis + wait_ms < latest_start_millis(journey, route, policy)
    ):
        spent = budget_refusal(last, load)
        if spent is None:
            return Wait(wait_ms)
    condition = "timeout" if last.outcome.ended in (Ended.TIMED_OUT, Ended.SILENT) else "error"
    taken = next_fallback(journey, route, condition)
    why = Why(last.route_id, tables.revision, route.strategy.type if route else "least_loaded")
    if taken is None:
        return Stop(ending_after(last, spent), why)
    if taken.action == "return_503":
        ending = Ending(
            "no_available_node",
            f"{ending_after(last, spent).detail}; the route's fallback rule answers 503",
            outcome_unknown=last.outcome.unknown,
            upstream=last.outcome.error,
            retry_after_ms=taken.wait_ms or policy.retry_after_ms,
        )
        return Stop(ending, replace(why, fallbacks=(taken,)))
    wait_ms = taken.wait_ms or 0
    latest_millis = latest_start_millis(journey, route if taken.action == "retry" else None, policy)
    if not repeatable or last.number > policy.max_retries or now_millis + wait_ms >= latest_millis:
        return Stop(ending_after(last, spent), why)
    if spent := budget_refusal(last, load):
        return Stop(ending_after(last, spent), why)
    if taken.action == "retry":
        return Wait(wait_ms, replace(why, fallbacks=(taken,)))
    onward = replace(after_fallback(journey, taken), waited=last.number)
    return with_fallbacks((taken,), choose(onward, tables, load, policy, now_millis=now_millis, chance=chance))


def choose(journey: Journey, tables: Tables, load: Load, policy: Policy, *, now_millis: int, chance: Chance) -> Step:
    """Find a route with an able node, in order, following the fallback rules; and pick the node."""
    if refused := refused_before_routing(journey, tables, policy):
        return refused
    caller = journey.envelope.caller
    fallbacks: tuple[Fallback, ...] = ()
    taken: Fallback | None = None
    why, search = None, NO_SEARCH
    while (route := current_route(journey, tables)) is not PAST_THE_LAST:
        route_id, strategy = (route.id, route.strategy.type) if route else (AUTO, AUTO_STRATEGY.type)
        if route is None and policy.default_route == "deny":
            ending = Ending("forbidden", "no route matches, and calls without a route are refused")
            return Stop(ending, Why(AUTO, tables.revision, strategy, fallbacks=fallbacks))
        if route is not None and route.allow_callers and caller not in route.allow_callers:
            ending = Ending("forbidden", f"route {route.id} does not take calls from {caller}")
            return Stop(ending, Why(route_id, tables.revision, strategy, fallbacks=fallbacks))
        search = look_for_node(journey, route, tables, load, policy, chance, now_millis)
        found = search.found
        why = Why(route_id, tables.revision, strategy, found.shown, found.left_out, fallbacks, search.notes)
        if search.chosen is not None:
            deadline_millis = journey.deadline_millis or deadline_of(journey, search.chosen.offer.tier, route, policy)
            if deadline_millis <= now_millis:
                return Stop(Ending("deadline_exceeded", NO_TIME), why)
            if journey.last is not None and now_millis > latest_start_millis(journey, route, policy):
                return Stop(ending_after(journey.last), why)
            return Attempt(search.chosen, deadline_millis, why)
        handed_on = journey.handed_to is not None or any(fallback.action == "route_to" for fallback in fallbacks)
        if search.hopeless is not None and not handed_on:  # the caller's mistake only where the caller asked for it
            return Stop(search.hopeless, why)
        taken = next_fallback(journey, route, search.condition)
        if taken is None:
            break
        journey = after_fallback(journey, taken)
        if taken.action == "retry" and now_millis + (taken.wait_ms or 0) >= last_moment(journey, found, route, policy):
            continue  # no time for it: the next rule, if there is one
        fallbacks = (*fallbacks, taken)
        if taken.action == "return_503":
            break
        if taken.action == "retry":
            return Wait(taken.wait_ms or 0, replace(why, fallbacks=fallbacks))
    if why is None:  # no route is left
        why = Why(AUTO, tables.revision, "least_loaded")
    answers_503 = taken is not None and taken.action == "return_503"
    wait_ms = taken.wait_ms if taken is not None and answers_503 else None
    if wait_ms is None and search.again_at_s is not None:
        wait_ms = max(1, math.ceil(search.again_at_s * 1000 - now_millis))
    ending = Ending(
        "no_available_node" if answers_503 and search.condition == "rate_limited" else search.condition,
        no_node_sentence(journey.envelope, search.found),
        retry_after_ms=policy.retry_after_ms if wait_ms is None else wait_ms,
    )
    return Stop(ending, replace(why, fallbacks=fallbacks))


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Whom a route has for a call: one of the field, or nobody under a fallback rule's condition."""

    found: Field
    chosen: Candidate | None
    condition: str = "no_available_node"
    hopeless: Ending | None = None
    """How the call ends where waiting or another route of the same capability would not help."""
    notes: tuple[str, ...] = ()
    again_at_s: float | None = None
    """When somebody may take calls again (s by the reach's clock), where that is known."""


def look_for_node(
    journey: Journey,
    route: Route | None,
    tables: Tables,
    load: Load,
    policy: Policy,
    chance: Chance,
    now_millis: int,
) -> Search:
    """Somebody for the call: of the canary where the call is the canary's, else by the route's strategy."""
    notes: tuple[str, ...] = ()
    if journey.handed_to is not None:
        pool = tables.pool(journey.envelope.capability, route, journey.envelope.tags, only=journey.handed_to)
        search = look_in(pool, journey, AUTO_STRATEGY, load, policy, chance, now_millis)
        return replace(search, notes=(f"a fallback rule has handed it to {journey.handed_to}", *search.notes))
    if route is not None and route.canary is not None:
        is_canary, note = canary_verdict(journey, route.id, route.canary)
        if is_canary:
            pool = tables.pool(journey.envelope.capability, route, journey.envelope.tags, only=route.canary.service)
            search = look_in(pool, journey, route.strategy, load, policy, chance, now_millis)
            if search.chosen is not None:
                return replace(search, notes=(note, *search.notes))
            note = f"the canary {route.canary.service} has no able node: the route's strategy chose"
        notes = (note,) if note else ()
    pool = tables.pool(journey.envelope.capability, route, journey.envelope.tags)
    search = look_in(pool, journey, route.strategy if route else AUTO_STRATEGY, load, policy, chance, now_millis)
    return replace(search, notes=notes + search.notes) if notes else search


def canary_verdict(journey: Journey, route_id: str, canary: Canary) -> tuple[bool, str]:
    """Whether the canary should have this call, and what there is to say of it."""
    key = canary.sticky_by.of(journey)
    if key is None:
        return False, f"no canary: the call has no {canary.sticky_by}"
    if not canary.takes(route_id, key):
        return False, ""
    if any(tried.node[0] == canary.service for tried in journey.tried):
        return False, f"the canary {canary.service} was tried already: the route's strategy chose"
    return True, f"canary: {canary.percent:g} % to {canary.service}, by {canary.sticky_by}"


def look_in(
    pool: Pool, journey: Journey, strategy: Strategy, load: Load, policy: Policy, chance: Chance, now_millis: int
) -> Search:
    """Filter a pool by payload, callers, loops, suspicion and limits; pick by the strategy."""
    envelope = journey.envelope
    refusals = group_refusals(pool, journey)
    unlike, likenesses = refusals, None
    if strategy.type == "fuzzy":
        wanted = envelope.intent or strategy.text or envelope.capability
        likenesses = tuple(remembered_likeness(wanted, group.words) for group in pool.groups)
        unlike = unlike_refusals(refusals, likenesses, strategy.min_score)
    cheap_first = envelope.urgency == Urgency.BULK and strategy.type not in BOUND
    shuts = load.shut()
    shut = pool.breakers.intersection(shuts) if shuts else NOTHING_SHUT
    found = pool.field(unlike, likenesses, cheap_first=cheap_first, shut=shut)
    found = sparing(load.suspects(), untried(without_loops(found, journey), journey))
    notes = shut_notes(shut, shuts, now_millis) if shut else ()
    if not found.able:
        if shut and (NODE_SHUT in found.left_out or SERVICE_SHUT in found.left_out):
            return Search(found, None, "circuit_open", notes=notes, again_at_s=first_trial_s(found, shuts))
        return Search(found, None, hopeless=whole_refusal(pool, refusals, envelope, found), notes=notes)
    careful = strategy.type == "cost_aware" or (envelope.urgency == Urgency.INTERACTIVE and strategy.type != "sticky")
    near_limit = policy.near_limit if careful else None
    key = strategy.key.of(journey) if strategy.key is not None else None
    missing = strategy.key is not None and key is None
    left, chosen = pick_within_limits(strategy.type, found, load, chance, key, near_limit=near_limit)
    if chosen is None:
        again_at_s = now_millis / 1000 + next_room_s(found, load, guess_s=policy.retry_after_ms / 1000)
        return Search(left, None, "rate_limited", notes=notes, again_at_s=again_at_s)
    if missing:
        notes += (f"sticks to nothing: the call has no {strategy.key}; the least loaded was chosen",)
    elif len(left.able) > 1:
        notes += (choice_sentence(strategy.type),)
    return Search(left, chosen, notes=notes)


def shut_notes(shut: Set[NodeKey], shuts: Shuts, now_millis: int) -> tuple[str, ...]:
    """A sentence for each of these breakers; services' first, and the rest counted."""
    some = sorted(shut, key=lambda key: (key[1] != OF_SERVICE, key)) if len(shut) < 1000 else shut
    notes = [shut_note(key, shuts[key], now_millis / 1000) for key in islice(some, BREAKERS_TOLD)]
    if len(shut) > BREAKERS_TOLD:
        notes.append(f"and {len(shut) - BREAKERS_TOLD} more breakers are open")
    return tuple(notes)


def first_trial_s(found: Field, shuts: Shuts) -> float | None:
    """When the first of the candidates behind breakers may be tried again; None where that is being tried now."""
    moments = []
    for candidate in found.candidates:
        if candidate.refusal in (NODE_SHUT, SERVICE_SHUT):
            node = candidate.node
            behind = [s for key in (node.key, (node.service_id, OF_SERVICE)) if (s := shuts.get(key)) is not None]
            if any(shut.state is not State.OPEN for shut in behind):
                return None
            moments.append(max(shut.until_s for shut in behind))
    return min(moments, default=None)


class Past(Enum):
    """Where `next_route` has led beyond the last matching route."""

    LAST = "past the last"


PAST_THE_LAST: Final = Past.LAST


def current_route(journey: Journey, tables: Tables) -> Route | Past | None:
    """The matching route that the call stands at; `auto` (None) only where none matches at all."""
    none_matched = True
    for position, route in enumerate(matched_routes(journey.envelope, tables.routes_for(journey.envelope.capability))):
        none_matched = False
        if position >= journey.routes_left:
            return route
    return None if none_matched and journey.routes_left == 0 else PAST_THE_LAST


def refused_before_routing(journey: Journey, tables: Tables, policy: Policy) -> Stop | None:
    """An unknown capability, or a chain too deep."""
    capability = journey.envelope.capability
    if capability in tables.known and journey.depth <= policy.max_hops:
        return None
    why = Why(AUTO, tables.revision, "least_loaded")
    if capability not in tables.known:
        if journey.reading is not None:
            detail = unread_sentence(journey.reading, tables.known, min_score=policy.intent_min_score)
        else:
            detail = unknown_sentence(capability, tables.known)
        return Stop(Ending("unknown_capability", detail), why)
    return Stop(Ending("loop_detected", f"the chain of calls is deeper than {policy.max_hops}"), why)


NO_TIME = "no time was left to start"
BAD_PAYLOAD = "its input schema refuses the payload"
BAD_CALLER = "does not take calls from this caller"
LOOP = "is already working on this payload higher up the chain"
BOUND = frozenset({"weighted_random", "sticky"})
"""Strategies whose choice urgency does not bend: reviewed weights stay what they are, and what sticks stays."""
AUTO_STRATEGY = Strategy("least_loaded")
BREAKERS_TOLD = 8
NO_SEARCH = Search(make_field((), Preferences()), None)


def without_loops(found: Field, journey: Journey) -> Field:
    """The field without services that have the same capability and payload open among the call's ancestors."""
    open_above = {a.service_id for a in journey.ancestors if a.capability == journey.envelope.capability}
    if not open_above:
        return found
    digest = journey.envelope.payload_digest
    looping = {a.service_id for a in journey.ancestors if a.payload_digest == digest} & open_above
    if not looping:
        return found
    return found.changed(lambda c: replace(c, refusal=LOOP) if c.node.service_id in looping else c)


def untried(found: Field, journey: Journey) -> Field:
    """The field as a further attempt should see it: another service first, else another node, else any."""
    if not journey.tried:
        return found
    nodes = {tried.node for tried in journey.tried}
    services = {service for service, _node in nodes}
    return found.changed(lambda c: replace(c, tried=(c.node.service_id in services) + (c.node.key in nodes)))


def sparing(suspects: Container[NodeKey], found: Field) -> Field:
    """The field with the nodes that this process itself suspects as last choice."""
    if not suspects or not any(c.node.key in suspects for c in found.able):
        return found
    return found.changed(lambda c: replace(c, suspect=c.suspect or c.node.key in suspects))


def group_refusals(pool: Pool, journey: Journey) -> tuple[str | None, ...]:
    """Per group, why this call may not go there (None: it may)."""
    envelope = journey.envelope
    return tuple(
        BAD_CALLER
        if not group.admits(envelope.caller)
        else None
        if group.schema.accepts(envelope.payload)
        else BAD_PAYLOAD
        for group in pool.groups
    )


def unlike_refusals(
    refusals: tuple[str | None, ...], likenesses: tuple[float, ...], least: float
) -> tuple[str | None, ...]:
    """The refusals of groups, with those of groups that say too little of what is looked for."""
    return tuple(
        refusal or (f"its likeness {likeness:.2f} is below {least:g}" if likeness < least else None)
        for refusal, likeness in zip(refusals, likenesses, strict=True)
    )


def whole_refusal(pool: Pool, refusals: tuple[str | None, ...], envelope: CallEnvelope, found: Field) -> Ending | None:
    """The ending when every candidate is out for the same kind of reason, so that waiting would not help."""
    if LOOP in found.left_out:
        return Ending("loop_detected", f"{envelope.capability} with this payload is already open among the ancestors")
    if not refusals or None in refusals:
        return None
    if BAD_PAYLOAD not in refusals:
        return Ending("forbidden", f"{envelope.capability} does not take calls from {envelope.caller}")
    group = pool.groups[refusals.index(BAD_PAYLOAD)]
    errors = tuple(group.schema.errors(envelope.payload, root="/payload"))
    first = f"{errors[0]['path']}: {errors[0]['message']}" if errors else "see the schema"
    return Ending("invalid_payload", f"the payload does not fit {envelope.capability}: {first}", errors=errors)


def with_fallbacks(taken: tuple[Fallback, ...], step: SomeStep) -> SomeStep:
    """The step, with these fallbacks before its own."""
    if step.why is None or not taken:
        return step
    return replace(step, why=replace(step.why, fallbacks=taken + step.why.fallbacks))


def next_fallback(journey: Journey, route: Route | None, condition: str) -> Fallback | None:
    """What the first of the route's rules for a condition says that this call has not used yet."""
    if route is None:
        return None
    for place, rule in enumerate(route.fallback_rules):
        if rule.condition == condition and (route.id, place) not in journey.used_fallbacks:
            return Fallback(
                route.id, condition, rule.action, place, rule.service, rule.capability, rule.wait_before_retry_ms
            )
    return None


def after_fallback(journey: Journey, taken: Fallback) -> Journey:
    """The journey after a fallback rule: on to the next route, or in the hands of a service or another capability."""
    journey = replace(journey, used_fallbacks=journey.used_fallbacks | {(taken.route_id, taken.rule)})
    if taken.action == "next_route":
        return replace(journey, routes_left=journey.routes_left + 1, handed_to=None)
    if taken.action == "route_to" and taken.capability is not None:
        envelope = replace(journey.envelope, capability=taken.capability)
        return replace(journey, envelope=envelope, routes_left=0, handed_to=None)
    if taken.action == "route_to":
        return replace(journey, handed_to=taken.service)
    return journey


def last_moment(journey: Journey, found: Field, route: Route | None, policy: Policy) -> int:
    """Epoch milliseconds: no attempt of a call that has found nobody yet starts after this."""
    if journey.deadline_millis is not None:
        return latest_start_millis(journey, route, policy)
    tier = found.candidates[0].offer.tier if found.candidates else Tier.MEDIUM
    return deadline_of(journey, tier, route, policy)


def deadline_of(journey: Journey, tier: Tier, route: Route | None, policy: Policy) -> int:
    """Epoch milliseconds: what the caller asked or the capability's tier, capped by route, installation and parent."""
    envelope = journey.envelope
    wanted = envelope.timeout_ms or policy.tier_ms[tier]
    if route is not None and route.timeout_ms is not None:
        wanted = min(wanted, route.timeout_ms)
    deadline = envelope.received_at_millis + min(wanted, policy.max_timeout_ms)
    parent = journey.parent_deadline_millis
    return deadline if parent is None else min(deadline, parent)


def max_retries(envelope: CallEnvelope, route: Route | None, policy: Policy) -> int:
    """The lowest of what installation, route and call allow."""
    allowed = [policy.max_retries, route.max_retries if route else None, envelope.max_retries]
    return min(limit for limit in allowed if limit is not None)


def base_delay_ms(envelope: CallEnvelope, route: Route | None, policy: Policy) -> int:
    """The call may only lower what the route says, the route may say what it likes."""
    base = policy.retry_base_delay_ms
    if route is not None and route.retry_base_delay_ms is not None:
        base = route.retry_base_delay_ms
    return base if envelope.retry_base_delay_ms is None else min(base, envelope.retry_base_delay_ms)


def latest_start_millis(journey: Journey, route: Route | None, policy: Policy) -> int:
    """No attempt starts after this moment: the deadline, or the retries' total after the first forward."""
    total_ms = policy.retry_total_ms
    if route is not None and route.retry_total_ms is not None:
        total_ms = min(total_ms, route.retry_total_ms)
    first, deadline = journey.first_forwarded_at_millis, journey.deadline_millis
    assert deadline is not None, "set by the first decision"
    return deadline if first is None else min(deadline, first + total_ms)


def budget_refusal(last: Tried, load: Load) -> str | None:
    """Why the retry budget allows no further attempt."""
    return load.retry_refusal(last.node[0]) if last.outcome.costs_budget else None


def ending_after(last: Tried, spent: str | None = None) -> Ending:
    """What the caller is told when the last attempt was in vain, and, if so, that a `spent` budget forbids another."""
    ending = ending_of_attempt(last)
    return ending if spent is None else replace(ending, detail=f"{ending.detail}; {spent}")


def ending_of_attempt(last: Tried) -> Ending:
    outcome = last.outcome
    where = f"{last.node[0]}/{last.node[1]}"
    match outcome.ended:
        case Ended.TIMED_OUT:
            return Ending("deadline_exceeded", f"{where} had not answered by the deadline", outcome_unknown=True)
        case Ended.SILENT:
            return Ending("deadline_exceeded", f"{where} {outcome.reason}", outcome_unknown=True)
        case Ended.INVALID_OUTPUT:
            return Ending("invalid_output", f"{where}: {outcome.reason}", errors=outcome.errors)
        case _:
            return Ending(
                "upstream_error",
                f"{where}: {outcome.reason}",
                upstream=outcome.error,
                outcome_unknown=outcome.unknown,
            )


def no_node_sentence(envelope: CallEnvelope, found: Field) -> str:
    if not found.left_out:
        return f"nobody provides {envelope.capability} now"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(found.left_out.items()))
    return f"no node can take {envelope.capability} now: {reasons}"


def matching_ids(envelope: CallEnvelope, tables: Tables) -> list[str]:
    """The ids of all routes that match, in order; for `explain`."""
    return [route.id for route in matched_routes(envelope, tables.routes_for(envelope.capability))]
