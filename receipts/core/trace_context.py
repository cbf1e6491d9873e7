"""W3C trace context: which span a call hangs below, which spans it makes itself, and whether anybody records them.

Span ids are not drawn but derived, so that whoever carries a call on after a crash continues the same tree: a call's is
the end of its call_id and `0000`, an attempt's the same with its number.
"""

import re
from dataclasses import dataclass

TRACE_ID = re.compile(r"[0-9a-f]{32}")
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
NO_TRACE, NO_SPAN = "0" * 32, "0" * 16
SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class ParentSpan:
    """The span above a call's own. `is_sampled` is None where nobody has said whether the trace is recorded."""

    trace_id: str
    span_id: str
    is_sampled: bool | None = None


def valid_trace_id(text: str) -> bool:
    """32 lower-case hex digits, not all zero."""
    return TRACE_ID.fullmatch(text) is not None and text != NO_TRACE


def parent_span_of(traceparent: str | None) -> ParentSpan | None:
    """What a `traceparent` header says; None when it is absent or malformed (then it is ignored)."""
    found = TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found is None or found[1] == NO_TRACE or found[2] == NO_SPAN:
        return None
    return ParentSpan(found[1], found[2], bool(int(found[3], 16) & SAMPLED))


def attempt_span_id(call_id: str, attempt: int) -> str:
    """The span id (16 hex digits) of an attempt at a call; attempt 0 is the call itself."""
    return f"{call_id[-12:]}{attempt & 0xFFFF:04x}"


def is_sampled(trace_id: str, parent: ParentSpan | None, ratio: float) -> bool:
    """Whether a trace is recorded: as its caller has decided, else that share of all traces, by their id.

    By the id as OpenTelemetry's TraceIdRatioBased does it, so that everybody who asks decides alike.
    """
    if parent is not None and parent.is_sampled is not None:
        return parent.is_sampled
    return int(trace_id[16:], 16) < round(ratio * 2**64)


def traceparent_of(trace_id: str, span_id: str, *, sampled: bool) -> str:
    """The header that tells the next one."""
    return f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}"
