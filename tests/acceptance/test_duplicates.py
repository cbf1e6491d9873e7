"""One idempotency key, many callers, two dispatcher processes on one database: the node works once."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from tests.acceptance.agents import Agent, NewAgent, dispatch, kinds_of, receipts_of
from tests.acceptance.instance import Answer, Instance, wait_until
from tests.fakes import answers, says, waits_for

Pair = tuple[Instance, Instance]
EACH = 10


@contextmanager
def callers_at_both(pair: Pair, agent: Agent, key: str) -> Iterator[dict[str, list[Future[Answer]]]]:
    """Ten callers at each process, all let go at once with the same request; their answers by the process's URL."""
    together = threading.Barrier(2 * EACH)

    def ask(reach: Instance) -> Answer:
        together.wait(timeout=10)
        return dispatch(reach, agent.capability, {"n": 1}, key=agent.key, idempotency_key=key)

    with ThreadPoolExecutor(2 * EACH) as callers:
        yield {reach.url: [callers.submit(ask, reach) for _ in range(EACH)] for reach in pair}


def agreed(told: list[Answer]) -> Answer:
    """The one answer that all got, but for `replayed`."""
    assert {answer.status for answer in told} == {200}, [answer.body for answer in told]
    assert len({str(answer.json | {"replayed": None}) for answer in told}) == 1
    return told[0]


def carrier_of(pair: Pair, call_id: str) -> Instance:
    """Which of the two processes carries a call."""
    url = pair[0].environment["DATABASE_URL"]
    with psycopg.connect(url) as session:
        row = session.execute(
            "SELECT p.pid FROM calls c JOIN process_leases p ON p.owner = c.owner WHERE c.id = %s", [call_id]
        ).fetchone()
    assert row is not None
    return next(reach for reach in pair if reach.process is not None and reach.process.pid == row[0])


@pytest.fixture
def agent(pair: Pair, new_agent: NewAgent) -> Agent:
    """Known to both processes."""
    agent = new_agent(at=pair[0])
    wait_until(lambda: agent.is_known_to(pair[1]), "the other process knows it too")
    return agent


def test_twenty_at_two_processes_and_one_more_after_kill_9(pair: Pair, agent: Agent) -> None:
    gate = threading.Event()
    agent.node.behave = waits_for(gate, answers({"sum": 42}))
    with callers_at_both(pair, agent, "once") as asked:
        wait_until(lambda: agent.node.invocations, "the node is at work")
        gate.set()
        told = [each.result() for answers_of in asked.values() for each in answers_of]
    answer = agreed(told)
    assert sorted(each.json["replayed"] for each in told) == [False] + [True] * (2 * EACH - 1)

    carrier = carrier_of(pair, answer.json["call_id"])
    other = pair[1] if carrier is pair[0] else pair[0]
    carrier.kill()
    one_more = dispatch(other, agent.capability, {"n": 1}, key=agent.key, idempotency_key="once")
    assert one_more.json == answer.json | {"replayed": True}
    carrier.start()
    again = dispatch(carrier, agent.capability, {"n": 1}, key=agent.key, idempotency_key="once")
    assert again.json == answer.json | {"replayed": True}
    assert len(agent.node.invocations) == 1
    assert kinds_of(other, answer.json["call_id"]) == ["accepted", "routed", "forwarded", "succeeded"]


def test_the_carrier_is_killed_in_the_middle_and_the_others_still_get_the_one_answer(pair: Pair, agent: Agent) -> None:
    """The node has said 202 and is not asked again; its receipt finds the call, whoever carries it now."""
    agent.node.behave = says(202)
    with callers_at_both(pair, agent, "survives") as asked:
        wait_until(lambda: agent.node.invocations, "the node is at work")
        call_id = agent.node.invocations[0].call_id
        wait_until(lambda: "acknowledged" in kinds_of(pair[0], call_id), "its 202 is on disk")
        carrier = carrier_of(pair, call_id)
        other = pair[1] if carrier is pair[0] else pair[0]
        carrier.kill()
        wait_until(lambda: "recovered" in kinds_of(other, call_id), "the other process has taken over", 30)
        agent.reach = other
        assert agent.post_receipt(call_id, kind="succeeded", output={"sum": 42}).status == 200
        told = [each.result() for each in asked[other.url]]
        broken = [each.exception() for each in asked[carrier.url]]
    answer = agreed(told)
    assert all(isinstance(exc, OSError) for exc in broken)
    one_more = dispatch(other, agent.capability, {"n": 1}, key=agent.key, idempotency_key="survives")
    assert one_more.json == answer.json | {"replayed": True} and answer.json["output"] == {"sum": 42}
    assert [run.call_id for run in agent.node.invocations] == [call_id]
    assert [r["kind"] for r in receipts_of(other, call_id) if r["attempt"] == 1][-1] == "succeeded"
    carrier.start()


def test_keys_in_opposite_orders_do_not_wait_for_each_other(pair: Pair, agent: Agent) -> None:
    """Groups of two processes that hold the same keys, sent in opposite orders, again and again."""
    keys = [f"key-{n}" for n in range(20)]

    def ask(reach: Instance, order: list[str]) -> set[str]:
        with ThreadPoolExecutor(10) as callers:
            told = callers.map(lambda key: dispatch(reach, agent.capability, key=agent.key, idempotency_key=key), order)
            return {answer.json["call_id"] for answer in told}

    with ThreadPoolExecutor(2) as both:
        first, second = both.map(ask, pair, (keys, keys[::-1]))
    assert first == second and len(first) == len(keys)
    assert len(agent.node.invocations) == len(keys)
