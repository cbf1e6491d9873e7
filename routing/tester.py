"""Where would this call go? The matcher and the plan of the dispatchers, on the live table or a proposed one.

Nothing is sent and nothing is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Journey
from registry.clock import now_millis
from routing import live, replay
from routing.core.balancing import Load
from routing.core.impact import IDLE, middle
from routing.core.matching import Route, match_refusal
from routing.core.plan import Attempt, Step, Stop, next_step
from routing.core.tables import Tables
from routing.dispatch import why_document
from routing.models import RouteChange

ROUTES_TOLD = 50
NO_CALL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Looked:
    """One route that was looked at, in order; `refusal` says why it does not match (empty: it does)."""

    route: str
    refusal: str


@dataclass(frozen=True, slots=True)
class Tried:
    """What would become of the call."""

    why: dict[str, Any]
    """As a `routed` receipt would tell it."""
    problem: dict[str, Any] | None
    wait_ms: int | None
    looked_at: Sequence[Looked]
    """The routes down to the one that takes it (to the end, where none does)."""
    left_out: int


def tried(envelope: CallEnvelope, change: RouteChange | None) -> Tried:
    """Decide where a call would go at this moment: by the live table, or by that of a change."""
    tables, load = tables_and_load()
    if change is not None:
        texts, _masked = replay.declared_words()
        table = replay.table_from(change.document, change.base_revision + 1, texts)
        tables = tables.moved(tables.version, routes=table)
    journey = Journey(envelope, NO_CALL, "0" * 32, envelope.caller)
    step = next_step(journey, tables, load, live.policy_from_settings(), now_millis=now_millis(), chance=middle)
    return told(step, envelope, tables)


def tables_and_load() -> tuple[Tables, Load]:
    """Those of this process, where it follows the database; else as they now lie there, with nothing to do."""
    if live.current is not None:
        return live.current.tables, live.current.load
    return replay.load_tables(), IDLE


def told(step: Step, envelope: CallEnvelope, tables: Tables) -> Tried:
    assert step.why is not None, "a call that has not been tried has no backoff"
    chosen = step.chosen.node.key if isinstance(step, Attempt) else None
    looked = looked_at(envelope, tables.routes.routes, step.why.route_id)
    return Tried(
        why=why_document(step.why, chosen),
        problem=step.ending.document() if isinstance(step, Stop) else None,
        wait_ms=None if isinstance(step, Attempt | Stop) else step.wait_ms,
        looked_at=looked[:ROUTES_TOLD],
        left_out=max(0, len(looked) - ROUTES_TOLD),
    )


def looked_at(envelope: CallEnvelope, routes: Sequence[Route], taker: str) -> list[Looked]:
    """The routes down to `taker` and why each does not match; those for other capabilities are no news."""
    found = []
    for route in routes:
        pattern = route.capability
        is_meant = pattern is None or pattern.accepts(envelope.capability)
        if is_meant or route.id == taker:
            found.append(Looked(route.id, match_refusal(envelope, route) or ""))
        if route.id == taker:
            break
    return found
