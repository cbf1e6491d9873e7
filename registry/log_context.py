"""Which call is at work here, for every line that is logged meanwhile: set once, inherited by tasks and threads."""

from contextvars import ContextVar

_call: ContextVar[tuple[str, str] | None] = ContextVar("reach_call", default=None)


def enter_call(call_id: str, trace_id: str) -> None:
    """From here on this task (of asyncio) works for that call."""
    _call.set((call_id, trace_id))


def fields() -> dict[str, str]:
    """What a line logged here should carry; nothing outside of a call."""
    call = _call.get()
    return {} if call is None else {"call_id": call[0], "trace_id": call[1]}
