"""A call that is taken over is the call that was accepted."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Ended, Outcome
from receipts.core.lifecycle import Kind
from receipts.core.recovery import Seen, progress_of
from receipts.core.trace_context import ParentSpan
from receipts.rows import json_of
from registry.errors import Unavailable
from routing.core.plan import Fallback, after_fallback
from routing.dispatch import (
    OpenCall,
    failure_document,
    fallback_document,
    reported_failure,
    stored_request,
    told_by_the_database,
)
from routing.engine import envelope_of, journey_of
from routing.errors import TakenOver
from tests.factories import CALL_ID, a_journey, an_envelope


def test_the_envelope_comes_back_as_it_was() -> None:
    envelope = an_envelope(
        received_at_millis=1_790_000_000_000,
        tags=frozenset({"prod"}),
        urgency="bulk",
        trace_id="a" * 32,
        context={"turn": 3},
        intent="summarize",
        parent_span=ParentSpan("a" * 32, "b" * 16, False),
        is_async=True,
        callback_url="https://billing.test/done",
    )
    again = envelope_of(a_row(envelope))
    assert {name: getattr(again, name) for name in envelope.__slots__} == {
        name: getattr(envelope, name) for name in envelope.__slots__
    }


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Ended.NOT_STARTED, "answered 503: busy", http_status=503),
        Outcome(Ended.NOT_STARTED, "no connection", unreached=True),
        Outcome(Ended.NOT_STARTED, "the envelope was not sent"),
        Outcome(Ended.BROKEN, "the reach's process that had forwarded it is gone", ours=True),
        Outcome(Ended.FAILED, "answered 500", error={"code": "x"}, retryable=True, http_status=500),
        Outcome(Ended.INVALID_OUTPUT, "not as declared", errors=({"path": "$.a", "message": "is not text"},)),
    ],
)
def test_so_does_how_an_attempt_of_it_failed(outcome: Outcome) -> None:
    """Also what is not told in words: a further attempt is charged to the budget of its service, or is not."""
    again = reported_failure(json_of(failure_document(outcome)).decode())
    assert again == replace(outcome, recorded=True)
    assert again.costs_budget == outcome.costs_budget


def test_so_does_how_its_intent_was_read() -> None:
    envelope = an_envelope(intent="summarize")
    row = a_row(envelope) | {"request": stored_request(envelope, {"chosen": "file_summary"})}
    assert journey_of(row, progress_of([])).reading == {"chosen": "file_summary"}


def test_fallback_rules_that_were_applied_are_not_applied_again() -> None:
    taken = [
        Fallback("r", "error", "retry", 1, wait_ms=500),
        Fallback("r", "error", "next_route", 2),
        Fallback("s", "no_available_node", "route_to", 0, service="spare"),
    ]
    receipts = [Seen(Kind.FALLBACK, None, None, None, json_of(fallback_document(f)).decode()) for f in taken]
    journey, expected = journey_of(a_row(an_envelope()), progress_of(receipts)), a_journey()
    for fallback in taken:
        expected = after_fallback(expected, fallback)
    for name in ("routes_left", "used_fallbacks", "handed_to"):
        assert getattr(journey, name) == getattr(expected, name)


class KnownCall:
    """A journal that has one call, open or ended, and tells nobody of anything."""

    def __init__(self, **facts: Any) -> None:
        self.row = a_row(an_envelope()) | facts

    async def read(self, _sql: str, *_parameters: Any) -> list[dict[str, Any]]:
        return [self.row]


async def test_who_waits_for_nothing_lets_go_of_a_call_that_another_carries_by_now() -> None:
    parts: Any = SimpleNamespace(journal=KnownCall())
    with pytest.raises(TakenOver):
        await asyncio.wait_for(told_by_the_database(OpenCall(str(CALL_ID), "me", is_awaited=False), parts), 5)


async def test_and_hears_how_one_was_ended() -> None:
    at, error = datetime.fromtimestamp(1_790_000_001, UTC), '{"code":"cancelled","detail":"by a test"}'
    parts: Any = SimpleNamespace(journal=KnownCall(status="cancelled", ended_at=at, error=error))
    told = await told_by_the_database(OpenCall(str(CALL_ID), "me", is_awaited=False), parts)
    assert told.ending.code == "cancelled"


class AwayJournal:
    async def read(self, *_asked: Any) -> list[dict[str, Any]]:
        raise Unavailable


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_who_was_accepted_is_not_told_that_it_was_not(is_awaited: bool) -> None:
    """A call that another process has taken over, while the database is away: its caller is given its id."""
    parts: Any = SimpleNamespace(journal=AwayJournal())
    with pytest.raises(Unavailable) as told:
        await told_by_the_database(OpenCall(str(CALL_ID), "me", is_awaited=is_awaited), parts)
    assert told.value.call_id == str(CALL_ID)
    assert "nothing was accepted" not in str(told.value)


def a_row(envelope: CallEnvelope) -> dict[str, Any]:
    """The stored call of an envelope, as far as taking it over reads it."""
    accepted = datetime.fromtimestamp(1_790_000_000, UTC)
    return {
        "id": CALL_ID,
        "capability": envelope.capability,
        "request": stored_request(envelope),
        "caller": envelope.caller,
        "origin_caller": envelope.caller,
        "accepted_at": accepted,
        "deadline": accepted,
        "depth": 0,
        "route_id": "auto",
        "idempotent": False,
        "first_forwarded_at": None,
        "idempotency_key": None,
        "trace_id": envelope.trace_id,
        "parent_call_id": None,
        "labels": None,
        "session_id": None,
        "async_rank": 2 if envelope.is_async else None,
        "callback_url": envelope.callback_url,
        "status": "running",
        "service_id": None,
        "node_id": None,
        "table_revision": 1,
        "attempts": 0,
        "ended_at": None,
        "output": None,
        "error": None,
    }
