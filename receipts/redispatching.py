"""An ended, failed call again, as a new call that nobody waits for: what was asked, by whom, in the same trace."""

from datetime import timedelta
from uuid import UUID

import msgspec
import uuid_utils.compat as uuids
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from receipts.accepting import accept_waiting
from receipts.core.envelope import ASYNC_RANKS
from receipts.core.lifecycle import CallStatus, Kind
from receipts.errors import CallNotFound, NotAgain
from receipts.journal import NOBODY
from receipts.models import Call, Receipt
from registry.audit import audit
from registry.clock import now


def redispatch_call(call_id: UUID, *, by: str, rank: int | None = None) -> Call:
    """Accept the same request anew, for an engine to place. It is its first caller's again, who gets the callback.

    Parent and trace stay. The parent's deadline does not bind it, nor does the idempotency key stand for it. `rank`
    says after whom it is placed, where that is not by its urgency.
    Raises CallNotFound, NotAgain (also while another one does it again already).
    """
    with transaction.atomic():
        ended = Call.objects.select_for_update().filter(pk=call_id).first()
        if ended is None:
            raise CallNotFound(f"no call {call_id}")
        if ended.ended_at is None or ended.status == CallStatus.SUCCEEDED:
            raise NotAgain(f"only a call that has failed is done again, and this one is {ended.status}", call_id)
        if ended.mirror_of is not None:
            raise NotAgain("this is a mirrored copy: nobody has asked for it", call_id)
        if under_way := done_again(ended).filter(ended_at=None).first():
            raise NotAgain(f"it is being done again already, as call {under_way.pk}", call_id)
        again = same_request(ended)
        if rank is not None:
            again.async_rank = rank
        accept_waiting(again, redispatch_of=str(call_id), by=by)
        audit(by, "redispatch call", str(call_id), again=str(again.pk))
    return again


def done_again(call: Call) -> QuerySet[Call]:
    """The calls that do this one again, oldest first; the trace has an index."""
    return Call.objects.filter(trace_id=call.trace_id, redispatch_of=call.pk).order_by("pk")


def same_request(ended: Call) -> Call:
    """A new call, not stored yet, that asks for what an ended one asked for."""
    accepted_at = now()
    urgency = msgspec.json.decode(ended.request)["urgency"]
    return Call(
        id=uuids.uuid7(),
        trace_id=ended.trace_id,
        parent_call_id=ended.parent_call_id,
        depth=ended.depth,
        caller=ended.caller,
        origin_caller=ended.origin_caller,
        capability=asked_capability(ended),
        status=CallStatus.ACCEPTED,
        route_id=ended.route_id,
        table_revision=ended.table_revision,
        seq=1,
        accepted_at=accepted_at,
        deadline=accepted_at + budget(ended),
        request=ended.request,
        request_digest=ended.request_digest,
        payload_digest=ended.payload_digest,
        labels=ended.labels,
        session_id=ended.session_id,
        owner=NOBODY,
        async_rank=ASYNC_RANKS[urgency],
        callback_url=ended.callback_url,
        redispatch_of=ended.pk,
    )


def asked_capability(ended: Call) -> str:
    """What was asked for: a fallback rule may have handed the call to another capability since."""
    accepted = Receipt.objects.filter(call_id=ended.pk, kind=Kind.ACCEPTED).order_by("seq").first()
    told = msgspec.json.decode(accepted.detail) if accepted is not None and accepted.detail else {}
    return told.get("capability", ended.capability)


def budget(ended: Call) -> timedelta:
    """How long it may take: what its caller has asked for, else as long as the ended one might, unless its parent's
    remainder had cut that or nobody had said."""
    if (asked_ms := msgspec.json.decode(ended.request).get("timeout_ms")) is not None:
        return timedelta(milliseconds=min(asked_ms, settings.REACH_MAX_TIMEOUT_MS))
    had = ended.deadline - ended.accepted_at
    usual = timedelta(seconds=settings.REACH_TIER_MEDIUM_S)
    return had if ended.parent_call_id is None and had > timedelta() else max(had, usual)
