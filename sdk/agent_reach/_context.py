"""What a handler is told about its task, and what it may do with it."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Unpack

from agent_reach._tracing import current_traceparent
from agent_reach._wire import is_of_trace
from agent_reach.errors import DeadlineExceeded
from agent_reach.models import CallOptions, Envelope

Report = Callable[[float | None, str | None], Awaitable[None]]
"""Brings progress and message on their way; returns once they are delivered, or kept for later."""
Dispatch = Callable[[str, Any, CallOptions, str | None], Awaitable[Any]]
"""Hands a task to Agent-Reach below the span of a `traceparent`; its output."""

_current: ContextVar["BaseContext | None"] = ContextVar("agent_reach_context", default=None)


def current_context() -> "BaseContext | None":
    """The context of the task that is at work here, for library code far below the handler; None outside of one."""
    return _current.get()


class CallLogger(logging.LoggerAdapter[logging.Logger]):
    """Every line ends with call_id and trace_id; both are on the record too, for structured logs."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        facts = dict(self.extra or {})
        kwargs["extra"] = facts | dict(kwargs.get("extra") or {})
        return f"{msg} [call_id={facts['call_id']} trace_id={facts['trace_id']}]", kwargs


class Cancelled(threading.Event):
    """Set when the result is not wanted any more: `if ctx.cancelled:` and `ctx.cancelled.is_set()` say the same."""

    def __bool__(self) -> bool:
        return self.is_set()


class BaseContext:
    """The facts of one task. Async handlers get a `Context`, those in threads a `ThreadContext`."""

    def __init__(self, envelope: Envelope, report: Report, dispatch: Dispatch, headers: dict[str, str]):
        self._envelope, self._report, self._dispatch = envelope, report, dispatch
        self.call_id, self.trace_id, self.parent_call_id = envelope.call_id, envelope.trace_id, envelope.parent_call_id
        self.attempt, self.capability = envelope.attempt, envelope.capability
        self.caller, self.origin_caller = envelope.caller, envelope.origin_caller
        self.idempotency_key, self.session_id = envelope.idempotency_key, envelope.session_id
        self.urgency = envelope.urgency
        self.labels, self.context = dict(envelope.labels), dict(envelope.context)
        self.deadline_millis = envelope.deadline_millis
        self.headers = headers
        self.cancelled = Cancelled()
        self.logger = CallLogger(
            logging.getLogger(f"agent_reach.{envelope.capability}"),
            {"call_id": envelope.call_id, "trace_id": envelope.trace_id},
        )

    def remaining_ms(self) -> int:
        """Milliseconds left of the task's budget, by this process's own monotonic clock; never below 0."""
        return max(0, int((self._envelope.deadline_s - time.monotonic()) * 1000))

    def enter_span(self) -> None:
        """From here on other systems are told of the span that is current now."""
        if traceparent := self._traceparent():
            self.headers["traceparent"] = traceparent

    def _traceparent(self) -> str | None:
        """The span that is current here if it belongs to this trace, else the one that the task came with."""
        current = current_traceparent()
        return current if is_of_trace(current, self.trace_id) else self.headers.get("traceparent")

    async def _progress(self, progress: float | None, message: str | None) -> None:
        if progress is not None and not 0 <= progress <= 1:
            raise ValueError(f"progress is a number from 0 to 1, not {progress}")
        await self._report(progress, message)

    async def _call(self, capability: str, payload: Any, options: CallOptions) -> Any:
        left_ms = self.remaining_ms()
        if left_ms <= 0:
            raise DeadlineExceeded(
                f"no time is left to call {capability}", call_id=self.call_id, trace_id=self.trace_id
            )
        inherited: CallOptions = {
            "trace_id": self.trace_id,
            "parent_call_id": self.call_id,
            "urgency": self._envelope.urgency,  # type: ignore[typeddict-item]
            "session_id": self.session_id,
        }
        merged: CallOptions = {**inherited, **options}
        merged["labels"] = {**self.labels, **options.get("labels", {})}
        merged["timeout_ms"] = min(left_ms, options.get("timeout_ms") or left_ms)
        return await self._dispatch(capability, payload, merged, self._traceparent())


class Context(BaseContext):
    """The second argument of an async handler."""

    async def progress(self, progress: float | None = None, message: str | None = None) -> None:
        """Say how far the task is: 0 to 1, and a sentence. Never waits for an Agent-Reach that is away."""
        await self._progress(progress, message)

    async def call(self, capability: str, payload: Any, **options: Unpack[CallOptions]) -> Any:
        """Have a part of the task done by whoever offers `capability`; its output.

        Trace, labels, urgency, session and the remaining budget go along. Raises what `dispatch` raises.
        """
        return await self._call(capability, payload, options)


class ThreadContext(BaseContext):
    """The second argument of a handler that is a plain `def`: the same, without await."""

    def __init__(self, envelope: Envelope, report: Report, dispatch: Dispatch, headers: dict[str, str]):
        super().__init__(envelope, report, dispatch, headers)
        self._loop = asyncio.get_running_loop()

    def progress(self, progress: float | None = None, message: str | None = None) -> None:
        """Say how far the task is: 0 to 1, and a sentence. Never waits for an Agent-Reach that is away."""
        asyncio.run_coroutine_threadsafe(self._progress(progress, message), self._loop).result()

    def call(self, capability: str, payload: Any, **options: Unpack[CallOptions]) -> Any:
        """Have a part of the task done by whoever offers `capability`; its output. See `Context.call`."""
        return asyncio.run_coroutine_threadsafe(self._call(capability, payload, options), self._loop).result()


def enter(context: BaseContext) -> None:
    """Make it the current context of this task or thread."""
    _current.set(context)
