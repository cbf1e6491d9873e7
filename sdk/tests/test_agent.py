"""An agent over real HTTP: what it serves, what it refuses, and what it does when Agent-Reach is away."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import statistics
import threading
import time

import aiohttp
import pytest
from fakes import FakeReach, an_agent, an_envelope, signature_headers, until

from agent_reach import (
    AgentClient,
    Capability,
    NotAgentReach,
    Refuse,
    SetupError,
    TaskFailed,
    Unauthenticated,
    current_context,
)
from agent_reach._server import ARRIVED_AFTER_S


def handler(agent: AgentClient):
    return agent.handle("work")


@pytest.fixture
def agent(reach: FakeReach):
    return an_agent(reach)


# --- Registration ----------------------------------------------------------------------------------------------------


async def test_it_listens_before_it_registers_and_tells_where(reach, agent, running):
    @handler(agent)
    async def work(payload, ctx): ...

    lives = []

    async def look(declaration):
        async with aiohttp.ClientSession() as session, session.get(declaration["address"] + "/reach/live") as answer:
            lives.append(answer.status)

    reach.before_registered = look
    await running(agent)
    assert lives == [200]
    [declaration] = reach.registrations
    assert declaration["address"] == agent.address and agent.address.startswith("http://127.0.0.1:")
    assert declaration["endpoints"]["cancel"] == "/reach/cancel"
    assert (declaration["heartbeat_interval_s"], declaration["lease_ttl_s"]) == (15, 45)


async def test_the_first_probe_may_overtake_the_answer_to_the_registration(reach, agent, running):
    @handler(agent)
    async def work(payload, ctx): ...

    answers = []

    async def probe(declaration):
        answers.append(await reach.send(declaration["address"] + "/reach/ready", {"probe": True}))

    reach.before_registered = probe
    await running(agent)
    assert answers[0].body["ready"] is True


async def test_it_waits_for_a_reach_that_is_away_with_one_line(agent, reach, running, caplog):
    @handler(agent)
    async def work(payload, ctx): ...

    await reach.go_away()
    with caplog.at_level(logging.INFO, "agent_reach"):
        task = asyncio.create_task(agent.run())
        await asyncio.sleep(1.2)  # several attempts
        await reach.listen()
        await until(lambda: agent.is_registered)
        agent.stop()
        await task
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "cannot be reached" in warnings[0] and "make run" in warnings[0]
    assert any("is back after" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [((401, "unauthenticated"), Unauthenticated), ((404, None), NotAgentReach)],
    ids=["bad key", "wrong address"],
)
async def test_what_is_refused_for_good_ends_the_start(reach, agent, answer, kind):
    @handler(agent)
    async def work(payload, ctx): ...

    reach.refuse["register"] = answer
    with pytest.raises(kind):
        await agent.run()


async def test_a_taken_port_is_named(reach):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        agent = an_agent(reach, port=taken.getsockname()[1])
        handler(agent)(lambda payload, ctx: None)
        with pytest.raises(SetupError, match="is taken: choose another port"):
            await agent.run()


async def test_heartbeats_tell_the_load_and_the_declaration(reach, running):
    agent = an_agent(reach, heartbeat_interval=1)
    go_on = asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        await go_on.wait()

    await running(agent)
    call = asyncio.create_task(reach.invoke(agent, an_envelope()))
    beat = await until(lambda: next((b for b in reach.heartbeats if b["in_flight"] == 1), None))
    assert beat["declaration_hash"] == "h1"
    go_on.set()
    await call


@pytest.mark.parametrize("how", ["reregister", "404"])
async def test_it_registers_again_when_told(reach, running, how):
    agent = an_agent(reach, heartbeat_interval=1)
    handler(agent)(lambda payload, ctx: None)
    await running(agent)
    if how == "404":
        reach.refuse["heartbeat"] = (404, "not_found")
    reach.reregister = True
    await until(lambda: len(reach.registrations) == 2)


# --- Signatures, duplicates, expiry ----------------------------------------------------------------------------------


async def test_a_task_is_done(reach, agent, running):
    @handler(agent)
    async def work(payload, ctx):
        return {"got": payload, "context": current_context() is ctx}

    await running(agent)
    said = await reach.invoke(agent, an_envelope({"a": 1}))
    assert (said.status, said.body) == (200, {"output": {"got": {"a": 1}, "context": True}})


async def test_a_plain_function_gets_a_thread(reach, agent, running):
    here = threading.get_ident()

    @handler(agent)
    def work(payload, ctx):
        ctx.progress(0.5, "half")
        return {
            "elsewhere": threading.get_ident() != here,
            "child": ctx.call("other", {}),
            "mine": current_context() is ctx,
        }

    await running(agent)
    said = await reach.invoke(agent, an_envelope())
    assert said.body == {"output": {"elsewhere": True, "child": "the child's output", "mine": True}}
    assert reach.receipts[0][1] == {"attempt": 1, "kind": "running", "progress": 0.5, "message": "half"}


@pytest.mark.parametrize("endpoint", ["invoke", "ready", "cancel"])
async def test_what_is_not_signed_by_the_reach_is_refused(reach, agent, running, endpoint):
    runs = []
    handler(agent)(lambda payload, ctx: runs.append(1))
    await running(agent)
    wrong = "whsec_d3Jvbmc="
    said = await reach.send(f"{agent.address}/reach/{endpoint}", an_envelope(), secret=wrong)
    assert (said.status, said.code) == (401, "not_signed")
    said = await reach.send(f"{agent.address}/reach/{endpoint}", an_envelope(), **{"webhook-signature": ""})
    assert said.status == 401 and runs == []


async def test_before_the_registration_a_task_is_not_started(reach, agent, running):
    handler(agent)(lambda payload, ctx: None)
    answers = []

    async def invoke(declaration):
        answers.append(await reach.send(declaration["address"] + "/reach/invoke", an_envelope()))

    reach.before_registered = invoke
    await running(agent)
    assert (answers[0].status, answers[0].code) == (503, "not_registered")


async def test_one_attempt_runs_once(reach, agent, running):
    runs = []

    @handler(agent)
    async def work(payload, ctx):
        runs.append(ctx.attempt)
        await asyncio.sleep(0.05)
        return len(runs)

    await running(agent)
    envelope = an_envelope()
    together = await asyncio.gather(*(reach.invoke(agent, envelope) for _ in range(10)))
    later = await reach.invoke(agent, envelope)
    assert runs == [1] and {said.body["output"] for said in [*together, later]} == {1}


async def test_another_attempt_at_a_call_at_work_takes_it_over(reach, running):
    agent = an_agent(reach, running_interval_s=0.05)
    runs, go_on = [], asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        runs.append(ctx.attempt)
        await go_on.wait()
        return "done"

    await running(agent)
    envelope = an_envelope()
    first = asyncio.create_task(reach.invoke(agent, envelope))
    await until(lambda: runs)
    second = asyncio.create_task(reach.invoke(agent, envelope | {"attempt": 2}))
    await until(lambda: any(receipt["attempt"] == 2 for _call, receipt in reach.receipts))
    go_on.set()
    assert (await second).body == (await first).body == {"output": "done"}
    assert runs == [1]


async def test_a_failed_attempt_may_be_tried_again(reach, agent, running):
    runs = []

    @handler(agent)
    async def work(payload, ctx):
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("not today")
        return "done"

    await running(agent)
    envelope = an_envelope(idempotency_key="k")
    assert (await reach.invoke(agent, envelope)).code == "handler_error"
    assert (await reach.invoke(agent, envelope)).code == "handler_error"
    assert (await reach.invoke(agent, envelope | {"attempt": 2})).body == {"output": "done"}
    assert runs == [1, 2]


async def test_a_repeated_idempotency_key_is_answered_from_memory(reach, agent, running):
    runs = []

    @handler(agent)
    async def work(payload, ctx):
        runs.append(payload)
        await asyncio.sleep(0.05)
        return len(runs)

    await running(agent)
    envelopes = [an_envelope({"n": 1}, idempotency_key="k") for _ in range(5)]
    together = await asyncio.gather(*(reach.invoke(agent, envelope) for envelope in envelopes))
    later = await reach.invoke(agent, an_envelope({"n": 1}, idempotency_key="k"))
    assert {said.body["output"] for said in [*together, later]} == {1}
    assert len(runs) == 1
    for other in ({"caller": "else"}, {"payload": {"n": 2}}, {"idempotency_key": None}):
        await reach.invoke(agent, an_envelope({"n": 1}, idempotency_key="k") | other)
    assert len(runs) == 4


async def test_what_is_expired_is_not_begun(reach, agent, running):
    runs = []
    handler(agent)(lambda payload, ctx: runs.append(1))
    await running(agent)
    said = await reach.invoke(agent, an_envelope(budget_ms=0))
    assert (said.status, said.code, said.body["error"]["retryable"]) == (504, "deadline_exceeded", False)
    assert runs == []


async def test_the_remaining_time_is_counted_down(reach, agent, running):
    @handler(agent)
    async def work(payload, ctx):
        return [ctx.remaining_ms(), bool(ctx.cancelled)]

    await running(agent)
    left, cancelled = (await reach.invoke(agent, an_envelope(budget_ms=5000))).body["output"]
    assert 4000 < left <= 5000 and cancelled is False


async def test_a_payload_that_does_not_fit_never_reaches_the_handler(reach, running):
    agent = AgentClient("worker", reach.url, api_key="k")
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    agent.register_capability(Capability(name="work", input_schema=schema))
    runs = []
    handler(agent)(lambda payload, ctx: runs.append(1))
    await running(agent)
    said = await reach.invoke(agent, an_envelope({"a": "x"}))
    assert (said.status, said.code, said.body["error"]["retryable"]) == (422, "invalid_payload", False)
    assert said.body["error"]["errors"][0]["path"] == "/payload/a" and runs == []


@pytest.mark.parametrize("body", [b"not json", b"{}", b"[]"])
async def test_a_body_that_is_no_envelope_is_refused(reach, agent, running, body):
    handler(agent)(lambda payload, ctx: None)
    await running(agent)

    async with aiohttp.ClientSession() as session:
        url = f"{agent.address}/reach/invoke"
        async with session.post(url, data=body, headers=signature_headers(reach.secret, body)) as answer:
            assert answer.status == 400 and (await answer.json())["error"]["code"] == "invalid_envelope"


# --- Endings ---------------------------------------------------------------------------------------------------------


def raises(exc):
    async def work(payload, ctx):
        raise exc

    return work


def returns(value):
    async def work(payload, ctx):
        return value

    return work


@pytest.mark.parametrize(
    ("work", "status", "code", "retryable"),
    [
        (raises(KeyError("path")), 500, "handler_error", True),
        (raises(SystemExit(3)), 500, "handler_error", True),
        (raises(asyncio.CancelledError()), 500, "handler_error", True),
        (raises(TaskFailed("no_such_file", "gone")), 500, "no_such_file", False),
        (raises(TaskFailed("busy_model", retryable=True)), 500, "busy_model", True),
        (raises(Refuse("model is loading")), 503, "refused", True),
        (returns(float("nan")), 500, "invalid_result", False),
        (returns(object()), 500, "invalid_result", False),
    ],
)
async def test_how_handlers_fail(reach, agent, running, work, status, code, retryable):
    handler(agent)(work)
    await running(agent)
    said = await reach.invoke(agent, an_envelope())
    assert (said.status, said.code, said.body["error"]["retryable"]) == (status, code, retryable)


async def test_a_failed_call_of_its_own_is_not_retried_again(reach, agent, running):
    @handler(agent)
    async def work(payload, ctx):
        return await ctx.call("other", {})

    reach.refuse["dispatch"] = (503, "no_available_node")
    await running(agent)
    said = await reach.invoke(agent, an_envelope())
    assert (said.status, said.code, said.body["error"]["retryable"]) == (500, "no_available_node", False)


async def test_a_child_call_inherits(reach, agent, running):
    @handler(agent)
    async def work(payload, ctx):
        return await ctx.call("other", {"q": 1}, labels={"user": "u"}, timeout_ms=60_000)

    await running(agent)
    envelope = an_envelope(urgency="bulk", budget_ms=10_000)
    assert (await reach.invoke(agent, envelope)).body == {"output": "the child's output"}
    [child] = reach.dispatched
    assert child["trace_id"] == envelope["trace_id"] and child["parent_call_id"] == envelope["call_id"]
    assert (child["urgency"], child["session_id"]) == ("bulk", "s-1")
    assert child["labels"] == {"tenant": "emea", "user": "u"}
    assert 9_000 < child["timeout_ms"] <= 10_000


async def test_log_lines_carry_both_ids(reach, agent, running, caplog):
    @handler(agent)
    async def work(payload, ctx):
        ctx.logger.info("started %s", "well")

    await running(agent)
    envelope = an_envelope()
    with caplog.at_level(logging.INFO):
        await reach.invoke(agent, envelope)
    record = next(r for r in caplog.records if "started well" in r.getMessage())
    assert f"call_id={envelope['call_id']} trace_id={envelope['trace_id']}" in record.getMessage()
    assert record.call_id == envelope["call_id"]


# --- Slots -----------------------------------------------------------------------------------------------------------


async def test_a_full_node_has_not_started_and_probes_take_no_slot(reach, running):
    agent = an_agent(reach, max_concurrency=2)
    go_on = asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        await go_on.wait()

    await running(agent)
    calls = [asyncio.create_task(reach.invoke(agent, an_envelope())) for _ in range(2)]
    await until(lambda: agent._lease._in_flight() == 2)
    said = await reach.invoke(agent, an_envelope())
    assert (said.status, said.code) == (429, "busy")
    assert (await reach.probe(agent)).body["ready"] is True
    go_on.set()
    assert [call.status for call in await asyncio.gather(*calls)] == [200, 200]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_stuck_slots_are_told_and_busy_ones_are_not(reach, running, is_async):
    agent = an_agent(reach, max_concurrency=2, stalled_after_s=0.3)
    go_on = threading.Event()

    async def in_loop(payload, ctx):
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    handler(agent)(in_loop if is_async else lambda payload, ctx: go_on.wait(20))
    await running(agent)
    calls = [asyncio.create_task(reach.invoke(agent, an_envelope(budget_ms=2000))) for _ in range(2)]
    await until(lambda: agent._lease._in_flight() == 2)
    assert (await reach.probe(agent)).body["ready"] is True
    async with asyncio.timeout(10):  # after half of the budget
        while (await reach.probe(agent)).body.get("reason") != "stalled":
            await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.gather(*calls)
    assert (await reach.probe(agent)).body["ready"] is True


async def test_a_busy_node_that_finishes_stays_ready(reach, running):
    agent = an_agent(reach, max_concurrency=2, stalled_after_s=1.0)

    @handler(agent)
    async def work(payload, ctx):
        await asyncio.sleep(0.2)

    await running(agent)
    give_up_at = time.monotonic() + 1.5

    async def keep_busy():
        while time.monotonic() < give_up_at:
            await reach.invoke(agent, an_envelope(budget_ms=1500))

    busy = asyncio.gather(*(keep_busy() for _ in range(4)))
    while not busy.done():
        assert (await reach.probe(agent)).body["ready"] is True
        await asyncio.sleep(0.02)
    await busy


async def test_a_long_task_that_reports_is_not_stuck(reach, running):
    agent = an_agent(reach, max_concurrency=1, stalled_after_s=0.2)

    @handler(agent)
    async def work(payload, ctx):
        for page in range(10):
            await ctx.progress(page / 10)
            await asyncio.sleep(0.1)

    await running(agent)
    call = asyncio.create_task(reach.invoke(agent, an_envelope(budget_ms=1500)))
    while not call.done():
        assert (await reach.probe(agent)).body["ready"] is True
        await asyncio.sleep(0.05)


# --- Readiness -------------------------------------------------------------------------------------------------------


def hangs_async():
    async def check():
        await asyncio.sleep(60)

    return check


def hangs_in_thread(gate):
    return lambda: gate.wait(30)


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (lambda: False, "says no"),
        (lambda: 1 / 0, "failed: ZeroDivisionError"),
        (hangs_async(), "did not answer within"),
    ],
    ids=["false", "exception", "silence"],
)
async def test_the_ready_check_decides(reach, agent, running, check, reason):
    handler(agent)(lambda payload, ctx: None)
    agent.ready_check(check)
    await running(agent)
    said = await reach.probe(agent)
    assert said.status == 200 and said.body["ready"] is False and reason in said.body["reason"]
    async with aiohttp.ClientSession() as session, session.get(f"{agent.address}/reach/live") as live:
        assert live.status == 200


@pytest.mark.parametrize("answer", [True, None, 1], ids=str)
async def test_a_check_without_objection_is_ready(reach, agent, running, answer):
    handler(agent)(lambda payload, ctx: None)

    @agent.ready_check
    async def check():
        return answer

    await running(agent)
    assert (await reach.probe(agent)).body["ready"] is True


async def test_hanging_checks_do_not_pile_up(reach, agent, running):
    gate, begun = threading.Event(), []
    handler(agent)(returns(None))

    @agent.ready_check
    def check():
        begun.append(1)
        gate.wait(30)

    await running(agent)
    for _ in range(3):
        said = await asyncio.gather(*(reach.probe(agent) for _ in range(5)))
        assert not any(each.body["ready"] for each in said)
    assert len(begun) == 3
    gate.set()
    await until(lambda: True)
    assert (await reach.probe(agent)).body["ready"] is True


# --- Heartbeats, progress, cancelling --------------------------------------------------------------------------------


async def test_a_task_at_work_says_so_until_its_end(reach, running):
    agent = an_agent(reach, running_interval_s=0.05)

    @handler(agent)
    async def work(payload, ctx):
        await until(lambda: len(reach.receipts) >= 3)

    await running(agent)
    envelope = an_envelope()
    await reach.invoke(agent, envelope)
    assert {call_id for call_id, _ in reach.receipts} == {envelope["call_id"]}
    assert all(receipt == {"attempt": 1, "kind": "running"} for _, receipt in reach.receipts)
    count = len(reach.receipts)
    await asyncio.sleep(0.2)
    assert len(reach.receipts) == count


async def test_when_the_attempt_is_over_the_handler_is_told_and_beats_end(reach, running):
    agent = an_agent(reach, running_interval_s=0.02)
    reach.refuse["receipt"] = (409, "conflict")

    @handler(agent)
    async def work(payload, ctx):
        await until(lambda: ctx.cancelled)
        return "told"

    await running(agent)
    assert (await reach.invoke(agent, an_envelope())).body == {"output": "told"}


async def test_cancel_interrupts_an_async_handler(reach, agent, running):
    begun, flags = [], []

    @handler(agent)
    async def work(payload, ctx):
        begun.append(1)
        try:
            await asyncio.sleep(60)
        finally:
            flags.append(ctx.cancelled.is_set())

    await running(agent)
    envelope = an_envelope()
    call = asyncio.create_task(reach.invoke(agent, envelope))
    await until(lambda: begun)
    cancel = {"call_id": envelope["call_id"], "attempt": 1}
    assert (await reach.send(f"{agent.address}/reach/cancel", cancel | {"attempt": 7})).status == 404
    assert (await reach.send(f"{agent.address}/reach/cancel", cancel)).status == 202
    said = await call
    assert (said.status, said.code, flags) == (409, "cancelled", [True])


async def test_cancel_sets_the_flag_of_a_thread(reach, agent, running):
    begun = threading.Event()

    @handler(agent)
    def work(payload, ctx):
        begun.set()
        ctx.cancelled.wait(20)
        return "stopped by itself"

    await running(agent)
    envelope = an_envelope()
    call = asyncio.create_task(reach.invoke(agent, envelope))
    await until(begun.is_set)
    await reach.send(f"{agent.address}/reach/cancel", {"call_id": envelope["call_id"], "attempt": 1})
    assert (await call).body == {"output": "stopped by itself"}


# --- The reach is away -----------------------------------------------------------------------------------------------


async def test_a_result_whose_caller_is_gone_is_posted(reach, agent, running):
    go_on = asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        go_on.set()
        await asyncio.sleep(0.2)
        return "done"

    await running(agent)
    envelope = an_envelope()
    await reach.invoke_and_hang_up(agent, envelope, go_on)
    await until(lambda: reach.receipts)
    assert reach.receipts == [(envelope["call_id"], {"attempt": 1, "kind": "succeeded", "output": "done"})]


async def test_a_connection_that_dies_with_the_answer_is_noticed(reach, agent, running):
    begun = asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        asyncio.get_running_loop().call_later(0.15, begun.set)  # just after the answer
        return "done"

    await running(agent)
    envelope = an_envelope()
    await reach.invoke_and_hang_up(agent, envelope, begun)
    await until(lambda: reach.receipts)
    assert reach.receipts[0][1]["output"] == "done"


async def test_receipts_are_kept_while_the_reach_is_away(reach, running):
    agent = an_agent(reach, running_interval_s=0.05, heartbeat_interval=1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        begun.set()
        await go_on.wait()
        began = time.monotonic()
        await ctx.progress(0.5, "in between")
        assert time.monotonic() - began < 1  # never waits for it
        return "done"

    await running(agent)
    envelope = an_envelope()
    await reach.invoke_and_hang_up(agent, envelope, begun)
    await reach.go_away()
    go_on.set()
    await asyncio.sleep(0.5)
    await reach.listen()
    await until(lambda: any(receipt["kind"] == "succeeded" for _, receipt in reach.receipts))
    told = [receipt for _, receipt in reach.receipts if receipt != {"attempt": 1, "kind": "running"}]
    assert told == [
        {"attempt": 1, "kind": "running", "progress": 0.5, "message": "in between"},
        {"attempt": 1, "kind": "succeeded", "output": "done"},
    ]


async def test_it_serves_on_while_the_reach_is_away(reach, running):
    agent = an_agent(reach, heartbeat_interval=1)
    handler(agent)(lambda payload, ctx: "done")
    await running(agent)
    await reach.go_away()
    await asyncio.sleep(1.2)  # a heartbeat fails
    assert (await reach.invoke(agent, an_envelope())).body == {"output": "done"}
    await reach.listen()
    await until(lambda: reach.heartbeats)


# --- The end ---------------------------------------------------------------------------------------------------------


async def test_sigterm_lets_tasks_finish_and_takes_no_new_ones(reach, agent):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        begun.set()
        await go_on.wait()
        return "done"

    run = asyncio.create_task(agent.run())
    await until(lambda: agent.is_registered)
    call = asyncio.create_task(reach.invoke(agent, an_envelope()))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: reach.farewells)
    assert float(reach.farewells[0]) > 0

    async def refused():
        said = await reach.invoke(agent, an_envelope())
        return said.status == 503 and said.code == "stopping"

    while not await refused():
        await asyncio.sleep(0.01)
    assert (await reach.probe(agent)).body["reason"] == "stopping"
    go_on.set()
    assert (await call).body == {"output": "done"}
    await asyncio.wait_for(run, 5)
    assert reach.farewells[-1] == "0"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(agent.address.rsplit(":", 1)[1]))):
        pytest.fail("it still listens")


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_a_task_that_does_not_finish_in_time_is_told_as_failed(reach, is_async):
    agent = an_agent(reach, drain_s=0.2)
    begun, gate = threading.Event(), threading.Event()

    async def in_loop(payload, ctx):
        begun.set()
        await asyncio.sleep(60)

    def in_thread(payload, ctx):
        begun.set()
        gate.wait(20)

    handler(agent)(in_loop if is_async else in_thread)
    run = asyncio.create_task(agent.run())
    await until(lambda: agent.is_registered)
    call = asyncio.create_task(reach.invoke(agent, an_envelope()))
    await until(begun.is_set)
    agent.stop()
    said = await call
    assert (said.status, said.code, said.body["error"]["retryable"]) == (500, "node_stopped", True)
    await asyncio.wait_for(run, 5)
    gate.set()


async def test_a_result_that_waits_is_delivered_before_the_end(reach, running):
    agent = an_agent(reach)
    begun = asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        begun.set()
        await asyncio.sleep(0.2)
        return "done"

    run = asyncio.create_task(agent.run())
    await until(lambda: agent.is_registered)
    await reach.invoke_and_hang_up(agent, an_envelope(), begun)
    await reach.go_away()
    await asyncio.sleep(0.3)
    agent.stop()
    await asyncio.sleep(0.2)
    await reach.listen()
    await asyncio.wait_for(run, 10)
    assert [receipt["kind"] for _, receipt in reach.receipts] == ["succeeded"]


async def test_a_connection_that_died_with_the_answer_is_noticed_at_the_end(reach, agent):
    begun = asyncio.Event()

    @handler(agent)
    async def work(payload, ctx):
        asyncio.get_running_loop().call_later(0.15, begun.set)  # just after the answer
        return "done"

    run = asyncio.create_task(agent.run())
    await until(lambda: agent.is_registered)
    await reach.invoke_and_hang_up(agent, an_envelope(), begun)
    agent.stop()
    await asyncio.wait_for(run, 10)
    assert [receipt["kind"] for _, receipt in reach.receipts] == ["succeeded"]


async def test_after_its_end_it_posts_nothing(reach, agent, caplog):
    """The connections that it closes itself had brought their answers."""
    handler(agent)(returns("done"))
    run = asyncio.create_task(agent.run())
    await until(lambda: agent.is_registered)
    assert (await reach.invoke(agent, an_envelope())).body == {"output": "done"}
    agent.stop()
    await asyncio.wait_for(run, 10)
    await asyncio.sleep(ARRIVED_AFTER_S + 0.2)
    gc.collect()  # a task whose exception nobody fetched says so when it goes
    assert reach.receipts == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_it_can_be_stopped_while_it_still_waits_for_the_reach(reach, agent):
    handler(agent)(lambda payload, ctx: None)
    await reach.go_away()
    run = asyncio.create_task(agent.run())
    await asyncio.sleep(0.2)
    agent.stop()
    await asyncio.wait_for(run, 5)


# --- The wire itself -------------------------------------------------------------------------------------------------


async def test_an_answer_is_one_segment_and_does_not_wait(reach, agent, running):
    """Headers and body in one write, without Nagle's algorithm: quicker than the delayed ACK."""
    handler(agent)(returns({"a": 1}))
    await running(agent)
    host, port = agent.address.removeprefix("http://").split(":")

    reader, writer = await asyncio.open_connection(host, int(port))
    took_s = []
    for _ in range(100):
        began = time.monotonic()
        body = json.dumps(an_envelope()).encode()
        lines = [f"{name}: {value}" for name, value in signature_headers(reach.secret, body).items()]
        head = ["POST /reach/invoke HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *lines, "", ""]
        writer.write("\r\n".join(head).encode() + body)
        answer = await reader.read(65536)
        assert answer.endswith(b'\r\n\r\n{"output":{"a":1}}')  # all of it in the first read
        took_s.append(time.monotonic() - began)
    assert statistics.median(took_s) < 0.04 / 2
    writer.close()
    await writer.wait_closed()
