"""Calls that are accepted by the database alone: for processes that dispatch nothing, like the console.

An engine of some worker places them, as it does asynchronous calls.
"""

from typing import Any

from django.db import connection

from receipts.core.lifecycle import Kind
from receipts.journal import DUE
from receipts.models import Call, Receipt, WaitingCall
from receipts.rows import json_of


def accept_waiting(call: Call, **told: Any) -> None:
    """Write down a new call that nobody carries, inside the caller's transaction, and wake the engines at its commit.

    `told` stands in its first receipt, besides what stands in every call's.
    """
    call.save(force_insert=True)
    usual = {
        "caller": call.caller,
        "capability": call.capability,
        "deadline_millis": round(call.deadline.timestamp() * 1000),
    }
    Receipt.objects.create(
        call_id=call.pk, seq=1, kind=Kind.ACCEPTED, at=call.accepted_at, detail=json_of(usual | told).decode()
    )
    WaitingCall.objects.create(
        call_id=call.pk,
        capability=call.capability,
        async_rank=call.async_rank or 0,
        due_at=call.accepted_at,
        deadline=call.deadline,
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [DUE])
