"""A call that a person makes by hand at the console. It goes the way of every asynchronous call.

The console's process may dispatch nothing, so the database accepts it, and an engine places it.
"""

import random
from datetime import timedelta

import uuid_utils.compat as uuids
from django.db import transaction

from receipts.accepting import accept_waiting
from receipts.core.envelope import ASYNC_RANKS, CallEnvelope
from receipts.core.lifecycle import CallStatus
from receipts.journal import NOBODY
from receipts.models import Call
from registry.audit import audit
from registry.clock import now
from registry.core.node import Tier
from routing.core.plan import AUTO
from routing.dispatch import new_trace_id, stored_request
from routing.live import policy_from_settings
from routing.querysets import live_number


def ask(envelope: CallEnvelope, *, tier: Tier, by: str) -> Call:
    """Accept the call, audited. `tier` says how long it may take where the envelope does not."""
    accepted_at = now()
    policy = policy_from_settings()
    budget_ms = min(envelope.timeout_ms or policy.tier_ms[tier], policy.max_timeout_ms)
    call = Call(
        id=uuids.uuid7(),
        trace_id=envelope.trace_id or new_trace_id(random.SystemRandom()),
        caller=envelope.caller,
        origin_caller=envelope.caller,
        capability=envelope.capability,
        status=CallStatus.ACCEPTED,
        route_id=AUTO,
        table_revision=live_number(),
        seq=1,
        accepted_at=accepted_at,
        deadline=accepted_at + timedelta(milliseconds=budget_ms),
        request=stored_request(envelope),
        request_digest=envelope.request_digest,
        payload_digest=envelope.payload_digest,
        labels=dict(envelope.labels) or None,
        owner=NOBODY,
        async_rank=ASYNC_RANKS[envelope.urgency],
    )
    with transaction.atomic():
        accept_waiting(call, by=by)
        audit(by, "try call", str(call.pk), capability=call.capability)
    return call
