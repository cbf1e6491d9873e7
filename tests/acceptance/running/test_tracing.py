"""Traces as a collector receives them: from a caller through the reach and its nodes, as one tree."""

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.acceptance.agents import Agent, NewAgent, dispatch, registered
from tests.acceptance.instance import Instance, free_port, wait_until
from tests.acceptance.running.collector import CLIENT, ERROR, SERVER, CollectedSpan, Collector
from tests.acceptance.sdk.agents import AgentProcess, key_for, spawn_agent, wait_ready
from tests.bed.topology import Topology
from tests.fakes import FakeNode, answers, fails, in_turn, says, waits_for

QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
"""The SDK waits 5 s for more spans otherwise."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A reach that sends its spans to the collector."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **QUICK}
    instance = Instance(tmp_path_factory.mktemp("traced") / "home", environment)
    try:
        yield instance.start()
    finally:
        instance.remove()


WITH_OTEL = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({{"service.name": "{service}"}}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter("{collector}/v1/traces")))
trace.set_tracer_provider(provider)
"""
WITHOUT_OTEL = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
"""
AGENT = """
from agent_reach import AgentClient, Capability

client = AgentClient("{service}")
client.register_capability(Capability(name="{capability}"))

@client.handle("{capability}")
{body}

client.start()
"""
CALLS_ON = """
async def report(payload, ctx):
    return await ctx.call("{child}", payload)
"""
IN_A_THREAD = """
def query(payload, ctx):
    return {"rows": 1}
"""
CALLER = """
from agent_reach import ReachClient

with trace.get_tracer("caller").start_as_current_span("report of the day"), ReachClient() as reach:
    print(reach.dispatch("{capability}", {{}}).trace_id, flush=True)
provider.shutdown()
"""

Spawn = Callable[..., AgentProcess]


@pytest.fixture
def spawn(traced: Instance, collector: Collector, tmp_path: Path) -> Iterator[Spawn]:
    made: list[AgentProcess] = []

    def start(service: str, script: str, *, otel: bool = True) -> AgentProcess:
        before = WITH_OTEL.format(service=service, collector=collector.url) if otel else WITHOUT_OTEL
        made.append(spawn_agent(tmp_path, before + script, reach_addr=traced.url, key=key_for(traced, service)))
        return made[-1]

    yield start
    for process in made:
        process.remove()


def pair_of_agents(traced: Instance, spawn: Spawn, *, otel: bool) -> tuple[str, str]:
    """Node A, which calls node B; the names of their services, which are also their capabilities."""
    a, b = f"a-{secrets.token_hex(3)}", f"b-{secrets.token_hex(3)}"
    for service, body in ((b, IN_A_THREAD), (a, CALLS_ON.format(child=b))):
        script = AGENT.format(service=service, capability=service, body=body)
        wait_ready(traced, service, spawn(service, script, otel=otel))
    for capability in (a, b):
        wait_until(lambda name=capability: can_be_placed(traced, name), f"the dispatcher knows {capability}", 10)
    return a, b


def can_be_placed(reach: Instance, capability: str) -> bool:
    asked = {"capability": capability, "payload": {}}
    return reach.request("POST", "/api/v1/dispatch/explain", asked, key=reach.key).json["chosen"] is not None


def tree(collector: Collector, trace_id: str, count: int) -> list[CollectedSpan]:
    """The spans of a trace from its root to its leaf: each has one child, and nothing stands beside."""
    spans = wait_until(
        lambda: found if len(found := collector.of_trace(trace_id)) >= count else None, f"{count} spans", 15
    )
    assert len(spans) == count, [span.name for span in spans]
    ids = {span.span_id for span in spans}
    [chain] = [[span] for span in spans if span.parent_id not in ids]
    while below := [span for span in spans if span.parent_id == chain[-1].span_id]:
        chain += below
    assert len(chain) == count, [span.name for span in chain]
    return chain


def test_one_tree_from_the_caller_to_the_last_node(traced: Instance, collector: Collector, spawn: Spawn) -> None:
    a, b = pair_of_agents(traced, spawn, otel=True)
    caller = spawn("caller", CALLER.format(capability=a))
    assert caller.wait() == 0, caller.output
    trace_id = caller.output.split()[-1]
    chain = tree(collector, trace_id, 7)
    assert [(span.service, span.name) for span in chain] == [
        ("caller", "report of the day"),
        ("agent-reach", f"dispatch {a}"),
        ("agent-reach", f"invoke {a}"),
        (a, a),
        ("agent-reach", f"dispatch {b}"),
        ("agent-reach", f"invoke {b}"),
        (b, b),
    ]
    assert [span.kind for span in chain[1:]] == [SERVER, CLIENT, SERVER, SERVER, CLIENT, SERVER]
    assert all(span.status != ERROR for span in chain)
    for above, span in itertools.pairwise(chain):
        assert above.started_ns <= span.started_ns + 1_000_000 and span.ended_ns <= above.ended_ns + 1_000_000
    call, attempt = chain[1], chain[2]
    assert call.attributes["reach.caller"] == "caller" and call.attributes["reach.status"] == "succeeded"
    assert call.span_id == call.attributes["reach.call_id"][-12:] + "0000"
    assert attempt.attributes["http.response.status_code"] == 200 and attempt.attributes["peer.service"] == a
    assert attempt.attributes["server.address"] and attempt.attributes["server.port"] > 0


def test_nodes_without_opentelemetry_keep_the_tree_whole(traced: Instance, collector: Collector, spawn: Spawn) -> None:
    a, b = pair_of_agents(traced, spawn, otel=False)
    answer = dispatch(traced, a)
    assert answer.status == 200, answer.body
    chain = tree(collector, answer.json["trace_id"], 4)
    assert [span.name for span in chain] == [f"dispatch {a}", f"invoke {a}", f"dispatch {b}", f"invoke {b}"]
    assert chain[0].parent_id == ""


def test_a_child_without_any_header_hangs_below_its_parents_attempt(
    traced: Instance, collector: Collector, new_agent: NewAgent
) -> None:
    """Written without the client: only `parent_call_id` tells."""
    agent = new_agent(at=traced)
    first = agent.call()
    child = agent.call(parent_call_id=first.json["call_id"])
    chain = tree(collector, child.json["trace_id"], 4)
    assert [span.name for span in chain] == [f"dispatch {agent.capability}", f"invoke {agent.capability}"] * 2


def test_a_retried_attempt(traced: Instance, collector: Collector, new_agent: NewAgent) -> None:
    agent = new_agent(in_turn(fails(503, "busy", "no slot"), answers()), at=traced, idempotent=True)
    answer = agent.call(retry_base_delay_ms=1)
    assert answer.json["attempts"] == 2
    trace_id = answer.json["trace_id"]
    spans = wait_until(lambda: found if len(found := collector.of_trace(trace_id)) == 3 else None, "three spans", 15)
    [call] = [span for span in spans if span.kind == SERVER]
    first, second = sorted((span for span in spans if span.kind == CLIENT), key=lambda span: span.span_id)
    assert first.parent_id == second.parent_id == call.span_id
    assert (first.status, first.attributes["error.type"]) == (ERROR, "not_started")
    assert "busy" in first.description and second.status != ERROR and call.status != ERROR
    assert second.attributes["http.request.resend_count"] == 1
    assert [one.headers["traceparent"].split("-")[2] for one in agent.node.invocations] == [
        first.span_id,
        second.span_id,
    ]


def test_a_call_that_fails_and_one_that_is_rejected(
    traced: Instance, collector: Collector, new_agent: NewAgent
) -> None:
    agent = new_agent(fails(500, "broken", "it is broken", retryable=False), at=traced)
    failed, rejected = agent.call().json, dispatch(traced, "never_declared").json
    call, _attempt = tree(collector, failed["trace_id"], 2)
    assert (call.status, call.attributes["error.type"]) == (ERROR, "upstream_error")
    assert call.description.startswith("upstream_error: ")
    [call] = tree(collector, rejected["trace_id"], 1)
    assert (call.attributes["reach.status"], call.attributes["reach.code"]) == ("rejected", "unknown_capability")


def test_a_result_that_comes_by_receipt(traced: Instance, collector: Collector, new_agent: NewAgent) -> None:
    agent = new_agent(says(202), at=traced)
    calling = Thread(target=agent.call)
    calling.start()
    wait_until(lambda: agent.node.invocations, "the envelope has arrived", 10)
    taken = agent.node.invocations[0]
    assert agent.post_receipt(taken.call_id, kind="succeeded", output={}).status == 200
    calling.join()
    call, attempt = tree(collector, taken.envelope["trace_id"], 2)
    assert (call.attributes["reach.status"], attempt.attributes["reach.outcome"]) == ("succeeded", "succeeded")


def test_flags_of_the_caller_are_honoured(traced: Instance, collector: Collector, new_agent: NewAgent) -> None:
    agent = new_agent(at=traced)
    for flags in ("00", "01"):
        trace_id, above = secrets.token_hex(16), secrets.token_hex(8)
        headers = {"traceparent": f"00-{trace_id}-{above}-{flags}"}
        assert dispatch(traced, agent.capability, headers=headers).json["trace_id"] == trace_id
        passed_on = agent.node.invocations[-1].headers["traceparent"]
        assert (passed_on.split("-")[1], passed_on[-2:]) == (trace_id, flags)
        if flags == "00":
            unwanted = trace_id
    call, _attempt = tree(collector, trace_id, 2)  # sent after the other would have been
    assert call.parent_id == above
    assert collector.of_trace(unwanted) == []


def test_a_collector_that_is_away_costs_calls_nothing(
    new_instance: Callable[..., Instance], new_agent: NewAgent
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    fast = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1", **QUICK}
    reach = new_instance(OTEL_EXPORTER_OTLP_ENDPOINT=nobody, **fast).start()
    agent = new_agent(at=reach)
    began = time.monotonic()
    while "spans were lost" not in reach.output or time.monotonic() - began < 4:
        assert time.monotonic() - began < 30, reach.output
        asked = time.monotonic()
        assert agent.call().status == 200
        assert time.monotonic() - asked < 1
        time.sleep(0.02)
    said = [line for line in reach.output.splitlines() if "WARNING" in line or "ERROR" in line]
    assert len(said) == 1 and "the collector at 127.0.0.1 does not take them" in said[0], said
    began = time.monotonic()
    assert reach.stop() == 0
    assert time.monotonic() - began < 15


def test_sampling_by_ratio(new_instance: Callable[..., Instance], collector: Collector, new_agent: NewAgent) -> None:
    """Nothing is recorded of traces that nobody has decided about; who says so is recorded all the same."""
    reach = new_instance(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, REACH_TRACE_SAMPLE="0", **QUICK).start()
    agent = new_agent(at=reach)
    left_out = agent.call().json["trace_id"]
    assert agent.node.invocations[-1].headers["traceparent"].endswith("-00")
    wanted = secrets.token_hex(16)
    headers = {"traceparent": f"00-{wanted}-{secrets.token_hex(8)}-01"}
    dispatch(reach, agent.capability, headers=headers)
    assert len(tree(collector, wanted, 2)) == 2
    assert collector.of_trace(left_out) == []


def test_a_call_that_is_carried_on_after_a_crash_continues_its_tree(
    new_instance: Callable[..., Instance], database_url: str, collector: Collector
) -> None:
    environment = {"DATABASE_URL": database_url, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **QUICK}
    first, second = (new_instance(name, **environment).start() for name in ("first", "second"))
    gate = Event()
    agent = registered(first, FakeNode(waits_for(gate)), idempotent=True)
    trace_id = call_and_crash(first, agent)
    wait_until(lambda: len(agent.node.invocations) == 2, "the other reach sends it again", 30)
    gate.set()
    spans = wait_until(lambda: found if len(found := collector.of_trace(trace_id)) == 3 else None, "three spans", 15)
    [call_span] = [span for span in spans if span.kind == SERVER]
    lost, repeated = sorted((span for span in spans if span.kind == CLIENT), key=lambda span: span.span_id)
    assert call_span.parent_id == ABOVE
    assert lost.parent_id == repeated.parent_id == call_span.span_id
    assert (lost.status, lost.attributes["reach.outcome"]) == (ERROR, "broken")
    assert repeated.attributes["reach.outcome"] == "succeeded"
    assert lost.ended_ns <= call_span.ended_ns and call_span.started_ns <= lost.started_ns
    recovered = [line for line in second.output.splitlines() if "recovered" in line]
    assert [line for line in recovered if f"trace_id={trace_id}" in line], recovered
    agent.node.close()
    assert second.stop() == 0


def test_a_worker_of_its_own_exports_what_it_recovers(tmp_path: Path, database_url: str, collector: Collector) -> None:
    """Every part a process: the one dispatcher dies, the worker carries its call to the end and tells of it."""
    environment = {"DATABASE_URL": database_url, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **QUICK}
    reach = Topology(tmp_path / "home", environment, dispatchers=1, workers=1)
    gate = Event()
    try:
        reach.start()
        agent = registered(reach, FakeNode(waits_for(gate)), idempotent=True)
        trace_id = call_and_crash(reach.dispatchers[0], agent)
        wait_until(lambda: len(agent.node.invocations) == 2, "the worker sends it again", 30)
        gate.set()
        spans = wait_until(lambda: found if len(found := collector.of_trace(trace_id)) == 3 else None, "spans", 15)
        assert {span.attributes["reach.status"] for span in spans if span.kind == SERVER} == {"succeeded"}
        agent.node.close()
    finally:
        gate.set()
        reach.remove()


def call_and_crash(reach: Instance, agent: Agent) -> str:
    """Kill the dispatcher of a call when its envelope has arrived; the call's trace id."""
    trace_id = secrets.token_hex(16)

    def call() -> None:
        with contextlib.suppress(OSError):  # its reach dies
            dispatch(reach, agent.capability, headers={"traceparent": f"00-{trace_id}-{ABOVE}-01"})

    calling = Thread(target=call)
    calling.start()
    wait_until(lambda: agent.node.invocations, "the envelope has arrived", 10)
    reach.kill()
    calling.join()
    return trace_id


ABOVE = "00f067aa0ba902b7"
