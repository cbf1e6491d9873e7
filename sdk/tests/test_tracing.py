"""Spans with OpenTelemetry's API and a real SDK behind it. What happens without them is tested beside a real reach."""

import asyncio

import pytest
from fakes import FakeReach, an_agent, an_envelope
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_reach import AsyncReachClient, ReachClient, Refuse

TRACE, ATTEMPT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba90001"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """What the process's one tracer provider has exported; it can be set only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(autouse=True)
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


def span_named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def header_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


async def invoked(reach: FakeReach, agent, *, flags: str = "01"):
    return await reach.invoke(agent, an_envelope(trace_id=TRACE), traceparent=f"00-{TRACE}-{ATTEMPT}-{flags}")


async def test_an_async_handler_has_a_span_below_its_attempt(reach: FakeReach, running, spans):
    agent = an_agent(reach)

    @agent.handle("work")
    async def work(payload, ctx):
        await ctx.call("child", {})
        with trace.get_tracer("library").start_as_current_span("query"):
            await ctx.call("grandchild", {})
        return ctx.headers

    await running(agent)
    said = await invoked(reach, agent)
    handler, query = span_named(spans, "work"), span_named(spans, "query")
    assert handler.parent is not None and query.parent is not None and handler.context is not None
    assert (handler.kind, handler.status.status_code) == (trace.SpanKind.SERVER, trace.StatusCode.UNSET)
    assert f"{handler.context.trace_id:032x}" == TRACE
    assert f"{handler.parent.span_id:016x}" == ATTEMPT
    assert query.parent.span_id == handler.context.span_id
    assert reach.traceparents == [header_of(handler), header_of(query)]
    assert said.body["output"]["traceparent"] == header_of(handler)
    assert handler.attributes is not None and handler.attributes["reach.capability"] == "work"


async def test_a_handler_in_a_thread_too(reach: FakeReach, running, spans):
    agent = an_agent(reach)

    @agent.handle("work")
    def work(payload, ctx):
        with trace.get_tracer("library").start_as_current_span("query"):
            ctx.call("child", {})

    await running(agent)
    await invoked(reach, agent)
    handler, query = span_named(spans, "work"), span_named(spans, "query")
    assert query.parent is not None and handler.context is not None
    assert query.parent.span_id == handler.context.span_id
    assert reach.traceparents == [header_of(query)]


async def test_a_failure_is_on_the_span(reach: FakeReach, running, spans):
    agent = an_agent(reach)

    @agent.handle("work")
    async def work(payload, ctx):
        raise Refuse("the printer is out of paper")

    await running(agent)
    assert (await invoked(reach, agent)).status == 503
    handler = span_named(spans, "work")
    assert handler.status.status_code is trace.StatusCode.ERROR
    assert "out of paper" in (handler.status.description or "")


async def test_what_is_not_sampled_stays_so(reach: FakeReach, running, spans):
    agent = an_agent(reach)

    @agent.handle("work")
    async def work(payload, ctx):
        await ctx.call("child", {})

    await running(agent)
    await invoked(reach, agent, flags="00")
    assert spans.get_finished_spans() == ()
    assert reach.traceparents[0] is not None and reach.traceparents[0].endswith("-00")


async def test_a_span_of_another_trace_is_not_sent_as_the_parent(reach: FakeReach, running, spans):
    agent = an_agent(reach)

    @agent.handle("work")
    async def work(payload, ctx):
        with trace.get_tracer("library").start_as_current_span("elsewhere", context=trace.set_span_in_context(ROOT)):
            await ctx.call("child", {})

    await running(agent)
    await invoked(reach, agent)
    assert reach.traceparents == [header_of(span_named(spans, "work"))]


ROOT = trace.INVALID_SPAN


async def test_clients_send_the_current_span(reach: FakeReach, spans):
    async with AsyncReachClient(reach.url, "k") as client:
        await client.dispatch("work", {})
        with trace.get_tracer("caller").start_as_current_span("report"):
            await client.dispatch("work", {})
            await client.submit("work", {})
            await asyncio.to_thread(use_synchronous_client, reach.url)
    report = header_of(span_named(spans, "report"))
    assert reach.traceparents == [None, report, report, report]


def use_synchronous_client(url: str) -> None:
    with ReachClient(url, "k") as client:
        client.dispatch("work", {})
