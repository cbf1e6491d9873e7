"""Jobs that take longer than a silence may last: heartbeats carry them, silence ends them, the deadline ends all.

An hour is made short here: a `heavy` job has 6 s, a `light` one 1 s, and a silence may last 1 s.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.acceptance.agents import Agent, NewAgent, dispatch, kinds_of, receipts_of
from tests.acceptance.instance import Answer, wait_until
from tests.acceptance.kinds import Reach, a_reach
from tests.acceptance.test_errors import leaves_a_call
from tests.fakes import Behaviour, answers, does, in_turn, says, streams, waits_for, works

LIGHT_S, HEAVY_S, IDLE_S = 1.0, 6.0, 1.0
JOB_S = 3.0
"""Longer than a silence may last and than a light job may take."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reach]:
    environment = {
        "REACH_TIER_LIGHT_S": str(LIGHT_S),
        "REACH_TIER_HEAVY_S": str(HEAVY_S),
        "REACH_IDLE_TIMEOUT_S": str(IDLE_S),
    }
    instance = a_reach(tmp_path_factory.mktemp("hasty") / "home", environment)
    try:
        yield instance.start()
    finally:
        instance.remove()


@pytest.fixture
def heavy(hasty: Reach, new_agent: NewAgent) -> Callable[..., Agent]:
    return lambda behave, **offer: new_agent(behave, at=hasty, **{"timeout_tier": "heavy"} | offer)


def timed(ask: Callable[..., Answer], **fields: Any) -> tuple[Answer, float]:
    began = time.monotonic()
    return ask(**fields), time.monotonic() - began


def while_it_works(agent: Agent, report: Callable[[str], None], **fields: Any) -> tuple[Answer, float]:
    """Ask, and have somebody report on the call as soon as its node has it (and has said 202, where it does)."""
    before = len(agent.node.invocations)
    with ThreadPoolExecutor(1) as person:
        asked = person.submit(timed, agent.call, **fields)
        wait_until(lambda: len(agent.node.invocations) > before, "the node has it")
        report(agent.node.invocations[-1].call_id)
        return asked.result(timeout=HEAVY_S + 5)


def beats(agent: Agent, seconds: float) -> Callable[[str], None]:
    """A heartbeat several times in each silence that is allowed; they differ in nothing, as heartbeats do."""

    def report(call_id: str) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert agent.post_receipt(call_id, kind="running").status == 200
            time.sleep(IDLE_S / 3)

    return report


def test_heartbeats_carry_a_job_that_says_202(heavy: Callable[..., Agent]) -> None:
    agent = heavy(says(202))

    def report(call_id: str) -> None:
        beats(agent, JOB_S)(call_id)
        assert agent.post_receipt(call_id, kind="succeeded", output="done").status == 200

    answer, seconds = while_it_works(agent, report)
    assert (answer.status, answer.json["output"], answer.json["attempts"]) == (200, "done", 1)
    assert JOB_S <= seconds < HEAVY_S
    assert kinds_of(agent.reach, answer.json["call_id"]).count("running") == 1, "an identical one leaves no receipt"


def test_heartbeats_carry_a_job_whose_connection_is_held(heavy: Callable[..., Agent]) -> None:
    gate = threading.Event()
    agent = heavy(waits_for(gate, answers("done")))

    def report(call_id: str) -> None:
        beats(agent, JOB_S)(call_id)
        gate.set()

    answer, seconds = while_it_works(agent, report)
    assert (answer.status, answer.json["output"]) == (200, "done") and JOB_S <= seconds < HEAVY_S


def test_lines_carry_a_job_that_streams_them(heavy: Callable[..., Agent]) -> None:
    lines = [{"kind": "running"}, IDLE_S / 2] * int(2 * JOB_S / IDLE_S)
    answer, seconds = timed(heavy(streams(*lines, {"kind": "succeeded", "output": "done"})).call)
    assert (answer.status, answer.json["output"]) == (200, "done") and JOB_S <= seconds < HEAVY_S


@pytest.mark.parametrize("held", [False, True], ids=["says 202", "holds the connection"])
def test_falling_silent_after_a_first_heartbeat_ends_it(heavy: Callable[..., Agent], held: bool) -> None:
    agent = heavy(waits_for(threading.Event()) if held else says(202))
    answer, seconds = while_it_works(agent, beats(agent, IDLE_S / 6))
    problem = leaves_a_call(agent.reach, answer, 504, "deadline_exceeded", "timed_out")
    assert "fell silent for 1 s" in problem["detail"] and problem["outcome_unknown"] is True
    assert IDLE_S <= seconds < HEAVY_S / 2, "long before its deadline"


def test_falling_silent_in_the_middle_of_its_lines_ends_it(heavy: Callable[..., Agent]) -> None:
    answer, seconds = timed(heavy(streams({"kind": "running"}, 60.0)).call)
    assert answer.json["code"] == "deadline_exceeded" and "fell silent" in answer.json["detail"]
    assert IDLE_S <= seconds < HEAVY_S / 2


def test_a_late_heartbeat_arms_the_timer_of_a_job_that_was_silent_before(heavy: Callable[..., Agent]) -> None:
    agent = heavy(says(202))

    def report(call_id: str) -> None:
        time.sleep(2 * IDLE_S)  # nobody is judged by silence before a first word
        beats(agent, IDLE_S / 6)(call_id)

    answer, seconds = while_it_works(agent, report)
    assert "fell silent" in answer.json["detail"] and 3 * IDLE_S <= seconds < HEAVY_S


@pytest.mark.parametrize("behave", [says(202), waits_for(threading.Event())], ids=["says 202", "holds the connection"])
def test_a_job_that_never_sent_any_runs_to_its_deadline(heavy: Callable[..., Agent], behave: Behaviour) -> None:
    agent = heavy(behave)
    answer, seconds = timed(agent.call)
    problem = leaves_a_call(agent.reach, answer, 504, "deadline_exceeded", "timed_out")
    assert "had not answered by the deadline" in problem["detail"]
    assert HEAVY_S <= seconds < HEAVY_S + 1


def test_a_job_that_never_sent_any_may_take_its_time(heavy: Callable[..., Agent]) -> None:
    answer, seconds = timed(heavy(works(JOB_S, answers("done"))).call)
    assert (answer.status, answer.json["output"]) == (200, "done") and seconds >= JOB_S


def test_heartbeats_move_no_deadline(heavy: Callable[..., Agent]) -> None:
    agent = heavy(says(202))
    answer, seconds = while_it_works(agent, beats(agent, 1.5 * IDLE_S), timeout_ms=2000)
    assert "had not answered by the deadline" in answer.json["detail"] and 2 <= seconds < 3


def test_a_light_job_has_the_time_of_its_tier(heavy: Callable[..., Agent]) -> None:
    answer, seconds = timed(heavy(works(JOB_S), timeout_tier="light").call)
    assert answer.json["code"] == "deadline_exceeded" and LIGHT_S <= seconds < LIGHT_S + 1


def test_after_a_silence_the_next_try_has_a_silence_of_its_own(heavy: Callable[..., Agent]) -> None:
    """The first attempt's heartbeats arm nothing for the second."""
    done = works(2 * IDLE_S, answers("done"))
    agent = heavy(in_turn(streams({"kind": "running"}, 60.0), done), idempotent=True)
    answer, _seconds = timed(agent.call)
    assert (answer.json["output"], answer.json["attempts"]) == ("done", 2)
    failed = [r["detail"]["ended"] for r in receipts_of(agent.reach, answer.json["call_id"]) if "failed" in r["kind"]]
    assert failed == ["silent"]


def test_a_child_has_no_more_time_than_its_parent_has_left(heavy: Callable[..., Agent]) -> None:
    """A heavy child of a call with 2 s: it ends with its parent, whatever its own tier and wish."""
    child = heavy(waits_for(threading.Event()))
    ends: list[tuple[Answer, float]] = []

    def ask_child(invocation: Any) -> None:
        time.sleep(0.5)
        fields = {"parent_call_id": invocation.call_id, "timeout_ms": 60_000, "key": parent.key}
        ends.append(timed(lambda **f: dispatch(child.reach, child.capability, **f), **fields))

    parent = heavy(does(ask_child))
    answer, _seconds = timed(parent.call, timeout_ms=2000)
    assert answer.json["code"] == "deadline_exceeded"
    ((told, seconds),) = wait_until(lambda: ends, "the child has ended")
    assert told.json["code"] == "deadline_exceeded" and 1 <= seconds < 2
    (seen,) = child.node.invocations
    assert 1000 < seen.envelope["deadline_millis"] - seen.envelope["forwarded_at_millis"] <= 1500
