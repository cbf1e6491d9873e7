"""Spans of handlers and the `traceparent` of calls.

With `opentelemetry-api` installed they are real. Without, each task passes on the span that Agent-Reach gave it, so
that the tree of a trace stays whole.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agent_reach.models import Envelope

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # the extra `otel` is not installed
    HAS_OTEL = False
else:
    HAS_OTEL = True
    _w3c = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """The span that is current here, as a header; None without OpenTelemetry, or outside of any span."""
    if not HAS_OTEL:
        return None
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def handler_span(envelope: Envelope, headers: Mapping[str, str]) -> Iterator[None]:
    """The span of one run of a handler, current for so long; its parent is the attempt that `headers` name.

    An exception that passes through is recorded and makes the span an error.
    """
    if not HAS_OTEL:
        yield
        return
    attributes: dict[str, str | int] = {
        "reach.call_id": envelope.call_id,
        "reach.attempt": envelope.attempt,
        "reach.capability": envelope.capability,
        "reach.caller": envelope.caller,
    }
    with trace.get_tracer("agent_reach").start_as_current_span(
        envelope.capability, context=_w3c.extract(headers), kind=trace.SpanKind.SERVER, attributes=attributes
    ):
        yield
