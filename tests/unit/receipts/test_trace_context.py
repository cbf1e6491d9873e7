"""What `traceparent` says, and which spans a call makes."""

import pytest

from receipts.core.trace_context import (
    ParentSpan,
    attempt_span_id,
    is_sampled,
    parent_span_of,
    traceparent_of,
    valid_trace_id,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(f"00-{TRACE}-{SPAN}-01", ParentSpan(TRACE, SPAN, True), id="sampled"),
        pytest.param(f"00-{TRACE}-{SPAN}-00", ParentSpan(TRACE, SPAN, False), id="not sampled"),
        pytest.param(f"00-{TRACE}-{SPAN}-03", ParentSpan(TRACE, SPAN, True), id="a flag of later days"),
        pytest.param(None, None, id="absent"),
        pytest.param("", None, id="empty"),
        pytest.param(f"ff-{TRACE}-{SPAN}-01", None, id="no version"),
        pytest.param(f"00-{TRACE.upper()}-{SPAN}-01", None, id="upper case"),
        pytest.param(f"00-{'0' * 32}-{SPAN}-01", None, id="no trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", None, id="no span"),
        pytest.param(f"00-{TRACE}-{SPAN}", None, id="no flags"),
        pytest.param(f"00-{TRACE}-{SPAN}-01\n", None, id="a line break"),
    ],
)
def test_parent_span(header: str | None, expected: ParentSpan | None) -> None:
    assert parent_span_of(header) == expected


def test_what_is_passed_on_reads_back() -> None:
    for sampled in (True, False):
        assert parent_span_of(traceparent_of(TRACE, SPAN, sampled=sampled)) == ParentSpan(TRACE, SPAN, sampled)


def test_spans_of_a_call() -> None:
    call_id = "01890a5d-ac96-774b-bcce-b302099a8057"
    assert [attempt_span_id(call_id, number) for number in (0, 1, 12)] == [
        "b302099a80570000",
        "b302099a80570001",
        "b302099a8057000c",
    ]


def test_the_caller_decides_whether_a_trace_is_recorded() -> None:
    assert is_sampled(TRACE, ParentSpan(TRACE, SPAN, True), 0.0)
    assert not is_sampled(TRACE, ParentSpan(TRACE, SPAN, False), 1.0)


@pytest.mark.parametrize("parent", [None, ParentSpan(TRACE, SPAN)])
def test_else_a_share_of_the_traces_is(parent: ParentSpan | None) -> None:
    low, high = f"{'a' * 16}{'0' * 16}", f"{'a' * 16}{'f' * 16}"
    assert [is_sampled(low, parent, ratio) for ratio in (0.0, 0.1, 1.0)] == [False, True, True]
    assert [is_sampled(high, parent, ratio) for ratio in (0.0, 0.9, 1.0)] == [False, False, True]


def test_trace_ids() -> None:
    assert valid_trace_id(TRACE)
    assert not any(map(valid_trace_id, ("0" * 32, TRACE.upper(), TRACE[1:], "")))
