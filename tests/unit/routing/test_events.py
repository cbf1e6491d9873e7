"""Server-Sent Events: where a client goes on, and what a receipt looks like."""

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.rows import json_of
from registry.errors import InvalidRequest
from routing.events import END_OF_EVENT, event, laid_out, last_event_id, up_to_the_end


@pytest.mark.parametrize(
    ("header", "query", "after"),
    [
        pytest.param(None, None, 0, id="from the beginning"),
        pytest.param("7", None, 7, id="header"),
        pytest.param(None, "7", 7, id="query"),
        pytest.param("8", "3", 8, id="the header is newer"),
        pytest.param("", "3", 3, id="an empty header says nothing"),
        pytest.param(" 4 ", None, 4, id="spaces"),
        pytest.param("0000000004", None, 4, id="zeros"),
        pytest.param(str(2**31 - 1), None, 2**31 - 1, id="the largest"),
    ],
)
def test_where_a_client_goes_on(header: str | None, query: str | None, after: int) -> None:
    assert last_event_id(header, query) == after


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "+1",
        "1.0",
        "1e3",
        "x",
        "0x10",
        "1 2",
        "١٢",
        "²",
        str(2**31),
        "9" * 11,
        "9" * 100_000,
        "null",
        "1\x00",
        "1_0",
    ],
)
def test_what_is_no_id_is_refused_wherever_it_stands(text: str) -> None:
    for given_as in ((text, None), (None, text)):
        with pytest.raises(InvalidRequest, match="last_event_id must be the id of an event"):
            last_event_id(*given_as)


@given(st.text())
def test_nothing_else_is_ever_raised(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        assert 0 <= last_event_id(text, None) < 2**31


@pytest.mark.parametrize(
    ("kinds", "sent"),
    [
        ([], []),
        (["accepted", "forwarded"], ["accepted", "forwarded"]),
        (["attempt_failed", "late_result", "succeeded"], ["attempt_failed", "late_result", "succeeded"]),
        (["cancelled", "late_result", "late_result"], ["cancelled"]),
        (["timed_out"], ["timed_out"]),
    ],
)
def test_a_stream_ends_with_the_receipt_that_ends_the_call(kinds: list[str], sent: list[str]) -> None:
    assert [receipt["kind"] for receipt in up_to_the_end([{"kind": kind} for kind in kinds])] == sent


def a_receipt(**facts: Any) -> dict[str, Any]:
    named = {"attempt": 1, "service_id": "s", "node_id": "n", "at": datetime(2026, 1, 2, tzinfo=UTC), "detail": None}
    return {"seq": 3, "kind": "running", **named, **facts}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_an_event_is_two_lines_whatever_is_told(detail: Any) -> None:
    sent = event(a_receipt(detail=json_of(detail).decode()))
    first, second, *rest = sent.decode().split("\n")
    assert (first, rest) == ("id: 3", ["", ""]) and b"\r" not in sent
    told = json.loads(second.removeprefix("data: "))
    assert told["detail"] == detail and told["at"] == "2026-01-02T00:00:00Z"
    assert list(told) == ["seq", "kind", "attempt", "service_id", "node_id", "at", "detail"]


@given(st.lists(st.booleans(), max_size=8), st.sampled_from([b"", b"retry: 1\n\n"]))
def test_small_receipts_are_sent_together_and_a_large_one_by_parts(large: list[bool], lead: bytes) -> None:
    """With the details where the pieces leave them out, it is what all of them would be at once."""
    receipts = [a_receipt(seq=n, is_large=is_large) for n, is_large in enumerate(large, start=1)]
    pieces = laid_out(lead, receipts)
    sent = b"".join(piece.head + (b"null" + END_OF_EVENT if piece.is_cut_short else b"") for piece in pieces)
    assert sent == lead + b"".join(event(a_receipt(seq=n)) for n in range(1, len(large) + 1))
    assert [piece.seq for piece in pieces if piece.is_cut_short] == [n for n, one in enumerate(large, start=1) if one]
    assert len(pieces) <= sum(large) + 1 and all(piece.head for piece in pieces)
