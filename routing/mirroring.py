"""Copies of calls for a service that is to be seen at work before it gets any: nobody waits for them.

A copy is a call of its own, tried once. The caller never hears of it, breakers, latencies, metrics and statistics learn
nothing from it, and it is no load by which calls are parted.
"""

import logging
from collections import Counter
from dataclasses import replace

from receipts.core.ending import Ending
from receipts.core.envelope import Urgency
from receipts.core.journey import Ended, Journey, NodeKey, Tried
from receipts.core.lifecycle import Kind
from registry.clock import now_millis
from registry.core.node import Node
from registry.errors import Unavailable
from registry.log_context import enter_call
from routing.core.plan import Attempt, ending_after
from routing.core.sticking import Mirror
from routing.dispatch import OpenCall, carry, checked, close, decide, failure_document, new_call, told_elsewhere
from routing.live import LiveParts

log = logging.getLogger(__name__)

flying: Counter[NodeKey] = Counter()
"""The copies that nodes have at work, of this process."""
fates: Counter[str] = Counter()
"""What became of the copies that were due: `copied`; `full` or `nobody`, and none was made."""


def mirror(journey: Journey, attempt: Attempt, parts: LiveParts) -> None:
    """The envelope of a new call is about to leave: copy it, where its route says so and there is room."""
    route = parts.tables.routes_by_id.get(attempt.why.route_id)
    if route is None or route.mirror is None or not route.mirror.takes(route.id, journey.call_id):
        return
    if flying.total() >= parts.most_mirrored or parts.overload(Urgency.BULK):
        fates["full"] += 1
        return
    parts.tell(copied(journey, route.mirror, parts))


async def copied(journey: Journey, mirror: Mirror, parts: LiveParts) -> None:
    """Carry a copy to the mirror's service, if somebody there can take it."""
    envelope = replace(
        journey.envelope, idempotency_key=None, received_at_millis=now_millis(), is_async=False, callback_url=None
    )
    copy = replace(
        journey,
        envelope=envelope,
        call_id=parts.new_call_id(),
        mirror_of=journey.call_id,
        handed_to=mirror.service,
        first_forwarded_at_millis=None,
    )
    step = decide(copy, parts)
    if not isinstance(step, Attempt) or step.why.fallbacks or step.chosen.node.service_id != mirror.service:
        fates["nobody"] += 1
        return
    node = step.chosen.node
    if is_full(node, parts):
        fates["full"] += 1
        return
    step = replace(step, why=replace(step.why, notes=(f"a copy of {journey.call_id}; nobody waits for it",)))
    flying[node.key] += 1
    parts.load.spend_one(step.chosen)
    fates["copied"] += 1
    try:
        await carry_once(copy, step, parts)
    except Unavailable:
        log.warning("a copy of call %s was given up: the database is away", journey.call_id)
    finally:
        flying[node.key] -= 1
        if not flying[node.key]:
            del flying[node.key]


def is_full(node: Node, parts: LiveParts) -> bool:
    """Whether calls and copies together leave no place at the node."""
    return (
        node.max_concurrency is not None and parts.load.in_flight(node.key) + flying[node.key] >= node.max_concurrency
    )


async def carry_once(copy: Journey, attempt: Attempt, parts: LiveParts) -> None:
    """One attempt, written down as any call's. Raises Unavailable."""
    call = OpenCall(str(copy.call_id), str(parts.owner))
    enter_call(call.call_id, copy.trace_id)
    row, copy = new_call(call, copy, attempt, keyed=False)
    await parts.journal.accept(row, call.taken())
    outcome = await carry(call, copy, attempt, 1, parts)
    node = attempt.chosen.node.key
    if outcome is None:
        await told_elsewhere(call, node, 1, parts)
        return
    outcome = checked(outcome, attempt.chosen.offer)
    if outcome.ended is Ended.SUCCEEDED:
        end = Ending(None, output=outcome.output)
    else:
        if not outcome.recorded:
            call.note(Kind.ATTEMPT_FAILED, failure_document(outcome), attempt=1, node=node)
        end = ending_after(Tried(1, node, attempt.why.route_id, outcome))
    await close(call, copy, end, attempt.why, node, 1, parts)
