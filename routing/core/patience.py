"""How an asynchronous call waits: which refusals are no end for it, how long it rests, who is placed first. Pure.

What a sync caller is told at once (429, 503) an asynchronous call waits out, until its deadline. A node that has not
begun has done no harm, so its refusal is waited out alike.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from receipts.core.ending import Ending
from receipts.core.journey import Ended, Journey
from registry.core.node import Tier
from routing.core.matching import Route
from routing.core.plan import (
    AUTO,
    AUTO_STRATEGY,
    Policy,
    Stop,
    Why,
    current_route,
    deadline_of,
    ending_after,
    latest_start_millis,
)
from routing.core.retry import may_repeat
from routing.core.shedding import SHED_AT
from routing.core.tables import Tables

FOR_NOW: Final = frozenset({"rate_limited", "no_available_node", "circuit_open"})
"""Codes that say "not now": what a sync caller is told with 429 or 503."""
NAMELESS_REST_MS: Final = 1000
"""Where a refusal does not say when it is worth another look."""
FIRST_REST_MS, LONGEST_REST_MS = 250, 30_000
"""After an attempt that its node refused to begin, where retries are used up: doubled with each refusal."""
KIND_AT_MOST: Final = 4
"""Of what an engine has, one capability takes at most so many times what is left free: four fifths of all."""


def rest_ms(stop: Stop, journey: Journey, *, chance: float) -> int | None:
    """How long an asynchronous call rests before it is looked at again, at most; None: `stop` is its end."""
    last = journey.last
    if last is None or last.number <= journey.waited:
        return (stop.ending.retry_after_ms or NAMELESS_REST_MS) if stop.ending.code in FOR_NOW else None
    if last.outcome.ended is not Ended.NOT_STARTED or not may_repeat(last.outcome, idempotent=journey.idempotent):
        return None
    refused = sum(tried.outcome.ended is Ended.NOT_STARTED for tried in journey.tried)
    return round(min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** min(refused - 1, 16)) * (0.5 + chance))


def deadline_to_wait(journey: Journey, tables: Tables, policy: Policy) -> int:
    """The deadline (epoch milliseconds) of a call that nobody takes yet: by the tier of who offers it, able or not."""
    found = current_route(journey, tables)
    route = found if isinstance(found, Route) else None
    pool = tables.pool(journey.envelope.capability, route, journey.envelope.tags)
    tiers = (candidate.offer.tier for group in pool.groups for candidate in group.candidates)
    return deadline_of(journey, next(tiers, Tier.MEDIUM), route, policy)


def patience_millis(journey: Journey, tables: Tables, policy: Policy) -> int:
    """Epoch milliseconds until which a call waits to be placed: its deadline, or where a node may have begun on it the
    moment after which no attempt starts."""
    assert journey.deadline_millis is not None, "set when it was accepted"
    last = journey.last
    if last is None or all(tried.outcome.ended is Ended.NOT_STARTED for tried in journey.tried):
        return journey.deadline_millis
    return latest_start_millis(journey, tables.routes_by_id.get(last.route_id), policy)


def end_of_patience(refused: Stop | None, journey: Journey, revision: int) -> Stop:
    """How a call ends that has waited for as long as it may: with what it was refused for last."""
    if refused is None:
        why = Why(AUTO, revision, AUTO_STRATEGY.type)
        if journey.last is not None:
            return Stop(ending_after(journey.last), why)
        return Stop(Ending("deadline_exceeded", "its deadline came before an engine had room for it"), why)
    detail = f"{refused.ending.detail}; it waited for as long as it could"
    return Stop(replace(refused.ending, detail=detail, retry_after_ms=None), refused.why)


def has_place(urgency: str, *, of_kind: int, taken: int, places: int) -> bool:
    """Whether an engine that has `taken` of its places, `of_kind` of them by this capability, takes one more of it.

    Bulk yields first, as at dispatchers. However much one capability has to do, there is a place for the next one: what
    a kind may take shrinks with what is free (A. Choudhury, E. Hahne, "Dynamic Queue Length Thresholds", 1998).
    """
    return taken < SHED_AT[urgency] * places and of_kind < most_of_kind(places - taken)


def most_of_kind(free: int) -> int:
    """How much of what an engine has one capability may have, where so much is free."""
    return KIND_AT_MOST * free


def sign_of(journey: Journey, stop: Stop) -> Hashable:
    """What calls have in common that are refused for the same reasons: while one of them is, so are the others.

    Nearly: who goes by it looks at each call itself now and then.
    """
    envelope, why = journey.envelope, stop.why
    reasons = frozenset(why.left_out.items())
    return envelope.capability, envelope.tags, envelope.caller, why.route_id, stop.ending.code, reasons
