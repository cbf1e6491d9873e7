"""A tiny OTLP/HTTP collector: takes spans, decodes them, keeps them."""

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes import OwnLoop


@dataclass(frozen=True)
class CollectedSpan:
    """One span as it came over the wire; ids in hex, moments in epoch nanoseconds."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    status: int
    description: str
    started_ns: int
    ended_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)


SERVER, CLIENT, ERROR = 2, 3, 2
"""Of OTLP's enumerations of kinds and statuses."""


class Collector:
    """Listens on a free port of its own; `spans` is what has come."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self._own = OwnLoop("collector")
        self._runner: web.AppRunner | None = None
        self.port: int = self._own.run(self._listen())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of_trace(self, trace_id: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def close(self) -> None:
        assert self._runner is not None
        self._own.run(self._runner.cleanup())
        self._own.close()

    async def _listen(self) -> int:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _take(self, request: web.Request) -> web.Response:
        for of_resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            service = values(of_resource.resource.attributes)["service.name"]
            for of_scope in of_resource.scope_spans:
                self.spans += [collected(span, service) for span in of_scope.spans]
        return web.Response(content_type="application/x-protobuf")


def collected(span: Any, service: str) -> CollectedSpan:
    return CollectedSpan(
        span.name,
        service,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.status.code,
        span.status.message,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        values(span.attributes),
    )


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
