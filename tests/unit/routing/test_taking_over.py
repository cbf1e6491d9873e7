"""A call that is taken over is the call that was accepted."""

from datetime import UTC, datetime

from receipts.core.trace_context import ParentSpan
from routing.dispatch import stored_request
from routing.engine import envelope_of
from tests.factories import an_envelope


def test_the_envelope_comes_back_as_it_was() -> None:
    envelope = an_envelope(
        received_at_millis=1_790_000_000_000,
        tags=frozenset({"prod"}),
        urgency="bulk",
        trace_id="a" * 32,
        context={"turn": 3},
        parent_span=ParentSpan("a" * 32, "b" * 16, False),
    )
    row = {
        "capability": envelope.capability,
        "request": stored_request(envelope),
        "caller": envelope.caller,
        "accepted_at": datetime.fromtimestamp(1_790_000_000, UTC),
        "idempotency_key": None,
        "trace_id": envelope.trace_id,
        "parent_call_id": None,
        "labels": None,
        "session_id": None,
    }
    again = envelope_of(row)
    assert {name: getattr(again, name) for name in envelope.__slots__} == {
        name: getattr(envelope, name) for name in envelope.__slots__
    }
