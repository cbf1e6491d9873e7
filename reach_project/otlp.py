"""Spans of calls and attempts, made when they have ended, from what the journey tells: nothing is kept open meanwhile.

The span of a call hangs below its caller's; each attempt's hangs below the call's and is what the node gets as its
parent (`receipts/core/trace_context.py` derives the ids). The SDK queues and sends them in a thread; when the queue is
full the oldest are dropped. A collector that is away costs calls nothing.
"""

import logging
import threading
from collections.abc import Sequence
from functools import lru_cache
from time import monotonic
from urllib.parse import urlsplit

from django.conf import settings
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.http_attributes import (
    HTTP_REQUEST_METHOD,
    HTTP_REQUEST_RESEND_COUNT,
    HTTP_RESPONSE_STATUS_CODE,
)
from opentelemetry.semconv.attributes.server_attributes import SERVER_ADDRESS, SERVER_PORT
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from reach_project import VERSION
from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Ended, Journey, Outcome
from receipts.core.trace_context import ParentSpan, attempt_span_id, is_sampled
from registry.clock import now_ns
from routing.core.plan import Attempt
from routing.dispatch import Result

log = logging.getLogger(__name__)

WARN_EVERY_S = 60.0
DESCRIPTION_CHARS = 500
LIMITS = SpanLimits(max_span_attribute_length=1024)

Attributes = dict[str, AttributeValue]


class GivenIds(IdGenerator):
    """Ids that are set just before a span is made, by the very thread that makes it."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give(self, trace_id: str, span_id: str) -> None:
        self._given.trace_id, self._given.span_id = int(trace_id, 16), int(span_id, 16)

    def generate_trace_id(self) -> int:
        return self._given.trace_id

    def generate_span_id(self) -> int:
        return self._given.span_id


class PatientExporter(SpanExporter):
    """Another exporter; its failures are told as one warning a minute (settings silence the SDK)."""

    def __init__(self, exporter: SpanExporter, where: str):
        self._exporter, self._where = exporter, where
        self._lost = 0
        self._warned_at = -WARN_EVERY_S

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if monotonic() - self._warned_at >= WARN_EVERY_S:
                self._warned_at = monotonic()
                log.warning("%d spans were lost: the collector at %s does not take them", self._lost, self._where)
                self._lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class Spans:
    """The observer that makes spans. `ratio` of the traces that nobody above has decided about are recorded."""

    def __init__(self, processor: SpanProcessor, *, ratio: float, role: str):
        self._ratio = ratio
        self._ids = GivenIds()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # what is not sampled is not made
            resource=resource(role),
            id_generator=self._ids,
            span_limits=LIMITS,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("agent-reach", VERSION)

    @classmethod
    def to_collector(cls, *, ratio: float, role: str) -> "Spans":
        """Spans for the collector of the OTEL_EXPORTER_OTLP_* settings."""
        endpoint = settings.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or settings.OTEL_EXPORTER_OTLP_ENDPOINT
        exporter = PatientExporter(OTLPSpanExporter(), urlsplit(endpoint).hostname or endpoint)
        return cls(BatchSpanProcessor(exporter), ratio=ratio, role=role)

    def close(self) -> None:
        """Send what is left. Blocks for as long as the collector is tried."""
        self._provider.shutdown()

    def attempted(self, journey: Journey, attempt: Attempt, number: int, outcome: Outcome, started_ns: int) -> None:
        if not is_sampled(journey.trace_id, journey.envelope.parent_span, self._ratio):
            return
        call_id, node = str(journey.call_id), attempt.chosen.node
        host, port = host_and_port(node.address)
        attributes: Attributes = {
            HTTP_REQUEST_METHOD: "POST",
            SERVER_ADDRESS: host,
            SERVER_PORT: port,
            "peer.service": node.service_id,
            "reach.call_id": call_id,
            "reach.attempt": number,
            "reach.capability": journey.envelope.capability,
            "reach.service_id": node.service_id,
            "reach.node_id": node.node_id,
            "reach.route_id": attempt.why.route_id,
            "reach.outcome": outcome.ended.value,
        }
        if number > 1:
            attributes[HTTP_REQUEST_RESEND_COUNT] = number - 1
        if outcome.http_status is not None:
            attributes[HTTP_RESPONSE_STATUS_CODE] = outcome.http_status
        failure = None
        if outcome.ended is not Ended.SUCCEEDED:
            attributes[ERROR_TYPE] = outcome.ended.value
            failure = outcome.reason or outcome.ended.value
        self._emit(
            f"invoke {journey.envelope.capability}",
            SpanKind.CLIENT,
            trace_id=journey.trace_id,
            span_id=attempt_span_id(call_id, number),
            parent=ParentSpan(journey.trace_id, attempt_span_id(call_id, 0)),
            attributes=attributes,
            failure=failure,
            started_ns=started_ns,
        )

    def ended(self, envelope: CallEnvelope, result: Result) -> None:
        if not is_sampled(result.trace_id, envelope.parent_span, self._ratio):
            return
        call_id, code = str(result.call_id), result.ending.code
        attributes: Attributes = {
            "reach.call_id": call_id,
            "reach.capability": envelope.capability,
            "reach.caller": envelope.caller,
            "reach.urgency": str(envelope.urgency),
            "reach.status": result.status,
            "reach.attempts": result.attempts,
            "reach.route_id": result.route_id or "",
            "reach.table_revision": result.table_revision,
        }
        if result.service_id and result.node_id:
            attributes |= {"reach.service_id": result.service_id, "reach.node_id": result.node_id}
        if code is not None:
            attributes |= {"reach.code": code, ERROR_TYPE: code}
        self._emit(
            f"dispatch {envelope.capability}",
            SpanKind.SERVER,
            trace_id=result.trace_id,
            span_id=attempt_span_id(call_id, 0),
            parent=envelope.parent_span,
            attributes=attributes,
            failure=None if code is None else f"{code}: {result.ending.detail}",
            started_ns=envelope.received_at_millis * 1_000_000,
        )

    def _emit(
        self,
        name: str,
        kind: SpanKind,
        *,
        trace_id: str,
        span_id: str,
        parent: ParentSpan | None,
        attributes: Attributes,
        failure: str | None,
        started_ns: int,
    ) -> None:
        self._ids.give(trace_id, span_id)
        context = Context() if parent is None else below(parent)
        span = self._tracer.start_span(name, context, kind, attributes, start_time=started_ns)
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure[:DESCRIPTION_CHARS]))
        span.end(max(started_ns, now_ns()))


def below(parent: ParentSpan) -> Context:
    """The SDK's context of a span below that one."""
    above = SpanContext(
        int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    return set_span_in_context(NonRecordingSpan(above), Context())


@lru_cache(maxsize=4096)
def host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def resource(role: str) -> Resource:
    """What the SDK finds out by itself (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES), and who we are."""
    ours = Resource({SERVICE_NAME: "agent-reach", SERVICE_VERSION: VERSION, "reach.role": role})
    found = Resource.create()
    named = found.attributes.get(SERVICE_NAME, "")
    if not str(named).startswith("unknown_service"):
        ours = ours.merge(Resource({SERVICE_NAME: named}))
    return found.merge(ours)
