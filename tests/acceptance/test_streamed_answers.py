"""A node that answers line by line: progress while it works, then its result, all in one answer."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.agents import NewAgent, kinds_of, receipts_of
from tests.acceptance.instance import wait_until
from tests.acceptance.test_errors import leaves_a_call
from tests.factories import SUMMARY_OUTPUT
from tests.fakes import answers, in_turn, streams

DONE = {"kind": "succeeded", "output": {"pages": 50}}
IDLE_S = 1.5
"""The silence that the shared instance allows."""


def test_progress_and_then_the_result(new_agent: NewAgent) -> None:
    agent = new_agent(
        streams(
            {"kind": "running"},
            {"kind": "running"},
            {"kind": "running", "progress": 0.4, "message": "page 20/50"},
            {"kind": "running", "progress": 1},
            DONE,
        )
    )
    told = agent.call()
    assert (told.status, told.json["output"], told.json["attempts"]) == (200, {"pages": 50}, 1)
    receipts = receipts_of(agent.reach, told.json["call_id"])
    assert [r["kind"] for r in receipts] == [
        "accepted", "routed", "forwarded", "acknowledged", "running", "running", "running", "succeeded"
    ]  # fmt: skip
    assert [r["detail"] for r in receipts[4:7]] == [None, {"progress": 0.4, "message": "page 20/50"}, {"progress": 1.0}]
    assert {(r["attempt"], r["node_id"]) for r in receipts[2:]} == {(1, agent.node_id)}


def test_progress_is_there_while_it_works(new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(streams({"kind": "running", "progress": 0.5}, gate, DONE))
    with ThreadPoolExecutor(1) as person:
        asked = person.submit(agent.call)
        call_id = wait_until(lambda: agent.node.invocations, "the node is at work")[0].call_id
        wait_until(lambda: kinds_of(agent.reach, call_id)[-2:] == ["acknowledged", "running"], "its line is a receipt")
        gate.set()
        assert asked.result(timeout=5).json["output"] == {"pages": 50}


def test_a_last_word_alone_is_an_answer(new_agent: NewAgent) -> None:
    agent = new_agent(streams(DONE))
    assert kinds_of(agent.reach, agent.call().json["call_id"])[-2:] == ["acknowledged", "succeeded"]


def test_lines_keep_a_long_job_alive_and_silence_ends_it(new_agent: NewAgent) -> None:
    """Heartbeats carry it beyond the silence that is allowed; then it falls silent and another try is made."""
    beats = [{"kind": "running"}, 0.5] * 5
    agent = new_agent(
        in_turn(streams(*beats, DONE), streams({"kind": "running"}, 30.0), answers("another try")), idempotent=True
    )
    began = time.monotonic()
    assert agent.call().json["output"] == {"pages": 50}
    assert time.monotonic() - began > IDLE_S
    told = agent.call().json
    assert (told["output"], told["attempts"]) == ("another try", 2)
    failed = next(r for r in receipts_of(agent.reach, told["call_id"]) if r["kind"] == "attempt_failed")
    assert failed["detail"]["ended"] == "silent"


def test_a_line_moves_no_deadline(new_agent: NewAgent) -> None:
    agent = new_agent(streams(*[{"kind": "running"}, 0.2] * 20, DONE))
    problem = leaves_a_call(agent.reach, agent.call(timeout_ms=1000), 504, "deadline_exceeded", "timed_out")
    assert "deadline" in problem["detail"] and problem["outcome_unknown"] is True


@pytest.mark.parametrize("idempotent", [True, False])
def test_an_answer_without_a_last_word_is_a_broken_connection(new_agent: NewAgent, idempotent: bool) -> None:
    agent = new_agent(in_turn(streams({"kind": "running"}), answers("second try")), idempotent=idempotent)
    told = agent.call(retry_base_delay_ms=1)
    if idempotent:
        assert (told.json["output"], told.json["attempts"]) == ("second try", 2)
    else:
        problem = leaves_a_call(agent.reach, told, 502, "upstream_error", "failed")
        assert problem["outcome_unknown"] is True and "without a last word" in problem["detail"]


def test_a_failure_in_its_own_words(new_agent: NewAgent) -> None:
    error = {"code": "oom", "message": "out of memory", "retryable": False}
    agent = new_agent(streams({"kind": "running"}, {"kind": "failed", "error": error}), idempotent=True)
    problem = leaves_a_call(agent.reach, agent.call(), 502, "upstream_error", "failed")
    assert problem["upstream"] == error


def test_a_malformed_line_is_told_by_its_number(new_agent: NewAgent) -> None:
    agent = new_agent(streams({"kind": "running"}, b"page 20 of 50\n", DONE))
    problem = leaves_a_call(agent.reach, agent.call(), 502, "invalid_output", "failed")
    assert "line 2 of its answer is no receipt" in problem["detail"]


def test_the_result_is_checked_too(new_agent: NewAgent) -> None:
    agent = new_agent(streams({"kind": "succeeded", "output": {"summary": 5}}), output=SUMMARY_OUTPUT)
    problem = leaves_a_call(agent.reach, agent.call(), 502, "invalid_output", "failed")
    assert [error["path"] for error in problem["errors"]] == ["/output/summary"]


def test_an_endless_line_is_given_up(new_agent: NewAgent) -> None:
    agent = new_agent(streams(b'{"kind":"succeeded","output":"', *[b"x" * 1_000_000] * 6))
    problem = leaves_a_call(agent.reach, agent.call(), 502, "upstream_error", "failed")
    assert "line 1 of its answer is larger than 4194304 bytes" in problem["detail"]


def test_a_flood_of_lines_is_held_back_and_few_of_them_are_kept(new_agent: NewAgent) -> None:
    """Of 3000 lines at once 1000 a second are read, ten a second are kept, and the result comes all the same."""
    flood = b"".join(b'{"kind":"running","message":"%d"}\n' % n for n in range(3000))
    agent = new_agent(streams(flood, DONE))
    began = time.monotonic()
    told = agent.call()
    seconds = time.monotonic() - began
    assert told.json["output"] == {"pages": 50}
    kept = kinds_of(agent.reach, told.json["call_id"]).count("running")
    assert 1 <= kept <= 10 * (seconds + 2)


def test_a_result_by_receipt_ends_a_call_whose_lines_still_come(new_agent: NewAgent) -> None:
    agent = new_agent(streams(*[{"kind": "running", "progress": n / 100} for n in range(1, 4)], 30.0))
    with ThreadPoolExecutor(1) as person:
        asked = person.submit(agent.call)
        call_id = wait_until(lambda: agent.node.invocations, "the node is at work")[0].call_id
        wait_until(lambda: kinds_of(agent.reach, call_id).count("running") == 3, "its lines are receipts")
        assert agent.post_receipt(call_id, kind="succeeded", output="by receipt").status == 200
        assert asked.result(timeout=5).json["output"] == "by receipt"
