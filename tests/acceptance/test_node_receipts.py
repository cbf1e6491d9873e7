"""What a node reports about a call that it works on."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.acceptance.agents import Agent, NewAgent, call_of, kinds_of, receipts_of
from tests.acceptance.instance import Answer, wait_until
from tests.acceptance.test_errors import leaves_a_call, problem_of
from tests.factories import SUMMARY_OUTPUT
from tests.fakes import answers, in_turn, says, waits_for


class UnderWay:
    """A call whose node has said 202 and works on."""

    def __init__(self, agent: Agent, asked: "Future[Answer]"):
        self.agent, self.asked = agent, asked
        wait_until(lambda: agent.node.invocations, "the node has the envelope")
        self.call_id = agent.node.invocations[-1].call_id
        wait_until(lambda: "acknowledged" in self.kinds, "the 202 is on disk")

    def post(self, **receipt: object) -> Answer:
        return self.agent.post_receipt(self.call_id, **receipt)

    @property
    def kinds(self) -> list[str]:
        return kinds_of(self.agent.reach, self.call_id)


class Begin:
    """Starts calls in the background; each is waited for at the end."""

    def __init__(self, people: ThreadPoolExecutor):
        self._people = people

    def __call__(self, agent: Agent, **fields: object) -> UnderWay:
        return UnderWay(agent, self._people.submit(agent.call, **fields))


@pytest.fixture
def begin() -> Iterator[Begin]:
    with ThreadPoolExecutor(4) as people:
        yield Begin(people)


def test_it_says_202_reports_progress_and_then_the_result(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(says(202)))
    for receipt in (
        {"kind": "running"},
        {"kind": "running", "progress": 0.4, "message": "page 20/50"},
        {"kind": "running", "progress": 1},
    ):
        answer = call.post(**receipt)
        assert (answer.status, answer.json) == (200, {"call_id": call.call_id, "status": "running"})
    done = call.post(kind="succeeded", output={"pages": 50})
    assert (done.status, done.json["status"]) == (200, "succeeded")
    told = call.asked.result(timeout=5)
    assert (told.status, told.json["output"], told.json["attempts"]) == (200, {"pages": 50}, 1)
    receipts = receipts_of(call.agent.reach, call.call_id)
    assert [r["kind"] for r in receipts] == [
        "accepted", "routed", "forwarded", "acknowledged", "running", "running", "running", "succeeded"
    ]  # fmt: skip
    assert [r["detail"] for r in receipts[4:7]] == [None, {"progress": 0.4, "message": "page 20/50"}, {"progress": 1.0}]
    assert {r["attempt"] for r in receipts[2:]} == {1}


def test_a_result_by_receipt_ends_a_call_whose_connection_is_still_open(new_agent: NewAgent, begin: Begin) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate))
    with ThreadPoolExecutor(1) as person:
        asked = person.submit(agent.call)
        call_id = wait_until(lambda: agent.node.invocations, "the node is at work")[0].call_id
        assert agent.post_receipt(call_id, kind="succeeded", output="by receipt").status == 200
        assert asked.result(timeout=5).json["output"] == "by receipt"
        gate.set()


def test_an_identical_repeat_leaves_no_new_receipt(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(says(202)))
    for _ in range(3):
        assert call.post(kind="running", progress=0.5).status == 200
    for _ in range(3):
        answer = call.post(kind="succeeded", output={"b": 1, "a": [2]})
        assert (answer.status, answer.json["status"]) == (200, "succeeded")
    assert call.kinds.count("running") == call.kinds.count("succeeded") == 1
    assert call.kinds[-1] == "succeeded"


@pytest.mark.parametrize(
    "receipt",
    [
        {"kind": "succeeded", "output": {"pages": 50}},
        {"kind": "failed", "error": {"code": "oom", "message": "out of memory", "retryable": False}},
        {"kind": "running", "progress": 0.5},
    ],
    ids=["succeeded", "failed", "running"],
)
def test_a_receipt_delivered_many_times_at_once_is_taken_once(
    new_agent: NewAgent, begin: Begin, receipt: dict[str, object]
) -> None:
    """A node that lost the answer sends again; both may arrive together."""
    for _round in range(5):
        call = begin(new_agent(says(202)))
        before = len(call.kinds)
        together = threading.Barrier(6)

        def deliver(call: UnderWay = call, together: threading.Barrier = together) -> Answer:
            together.wait(timeout=10)
            return call.post(**receipt)

        with ThreadPoolExecutor(6) as line:
            told = [each.result() for each in [line.submit(deliver) for _ in range(6)]]
        assert [answer.status for answer in told] == [200] * 6, [answer.body for answer in told]
        call.post(kind="succeeded", output={"pages": 50})
        call.asked.result(timeout=5)
        assert "late_result" not in call.kinds or receipt["kind"] == "failed"
        reported = {"succeeded": "succeeded", "failed": "attempt_failed", "running": "running"}[str(receipt["kind"])]
        assert call.kinds[before:].count(reported) == 1


@pytest.mark.parametrize(
    "receipt",
    [
        {"kind": "succeeded", "output": "another"},
        {"kind": "failed", "error": {"code": "x", "message": "y"}},
        {"kind": "running"},
    ],
    ids=["another output", "a failure", "still running"],
)
def test_a_contradiction_of_an_ended_call_is_refused(
    new_agent: NewAgent, begin: Begin, receipt: dict[str, object]
) -> None:
    call = begin(new_agent(says(202)))
    assert call.post(kind="succeeded", output="the one").status == 200
    for _ in range(2):
        problem = problem_of(call.post(**receipt), 409, "conflict")
        assert problem["call_id"] == call.call_id
    assert call_of(call.agent.reach, call.call_id)["output"] == "the one"
    assert call.kinds.count("late_result") == (0 if receipt["kind"] == "running" else 1)
    assert call.kinds.count("succeeded") == 1 and "failed" not in call.kinds


def test_the_late_result_of_an_earlier_attempt_is_kept_and_changes_nothing(new_agent: NewAgent, begin: Begin) -> None:
    agent = new_agent(in_turn(says(202), says(202)), idempotent=True)
    call = begin(agent, retry_base_delay_ms=1)
    error = {"code": "x", "message": "y", "retryable": True}
    assert call.post(kind="failed", error=error).status == 200
    wait_until(lambda: len(agent.node.invocations) == 2, "the second attempt is out")
    problem_of(call.post(kind="succeeded", output="too late", attempt=1), 409, "conflict")
    late = receipts_of(agent.reach, call.call_id)[-1]
    assert (late["kind"], late["attempt"], late["detail"]["output"]) == ("late_result", 1, "too late")
    assert call.post(kind="succeeded", output="in time", attempt=2).status == 200
    told = call.asked.result(timeout=5).json
    assert (told["output"], told["attempts"]) == ("in time", 2)


def test_a_late_result_after_the_deadline_is_kept(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(says(202)), timeout_ms=400)
    told = call.asked.result(timeout=5)
    problem = leaves_a_call(call.agent.reach, told, 504, "deadline_exceeded", "timed_out")
    assert problem["outcome_unknown"] is True
    problem_of(call.post(kind="succeeded", output="too late"), 409, "conflict")
    assert call.kinds[-2:] == ["timed_out", "late_result"]
    assert call_of(call.agent.reach, call.call_id)["status"] == "timed_out"


@pytest.mark.parametrize(("retryable", "idempotent", "attempts"), [(True, True, 2), (False, True, 1), (True, False, 1)])
def test_a_reported_failure_is_repeated_where_that_is_safe(
    new_agent: NewAgent, begin: Begin, retryable: bool, idempotent: bool, attempts: int
) -> None:
    agent = new_agent(in_turn(says(202), answers("second try")), idempotent=idempotent)
    call = begin(agent, retry_base_delay_ms=1)
    error = {"code": "oom", "message": "out of memory", "retryable": retryable}
    assert call.post(kind="failed", error=error).status == 200
    told = call.asked.result(timeout=5)
    if attempts == 2:
        assert (told.status, told.json["output"], told.json["attempts"]) == (200, "second try", 2)
    else:
        problem = leaves_a_call(agent.reach, told, 502, "upstream_error", "failed")
        assert problem["upstream"]["code"] == "oom" and "oom" in problem["detail"]
    assert call.kinds.count("attempt_failed") == 1


def test_a_reported_output_is_checked_too(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(says(202), output=SUMMARY_OUTPUT))
    call.post(kind="succeeded", output={"summary": 5})
    problem = leaves_a_call(call.agent.reach, call.asked.result(timeout=5), 502, "invalid_output", "failed")
    assert [error["path"] for error in problem["errors"]] == ["/output/summary"]


def test_silence_after_a_first_report_ends_the_attempt(new_agent: NewAgent, begin: Begin) -> None:
    """The shared instance allows a silence of 1.5 s; each report starts it anew."""
    call = begin(new_agent(says(202)), timeout_ms=20_000)
    assert call.post(kind="running", progress=0.1).status == 200
    problem = leaves_a_call(call.agent.reach, call.asked.result(timeout=10), 504, "deadline_exceeded", "timed_out")
    assert "fell silent" in problem["detail"] and problem["outcome_unknown"] is True


def test_silence_moves_an_idempotent_call_to_another_node(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(in_turn(says(202), answers("another try")), idempotent=True))
    assert call.post(kind="running").status == 200
    told = call.asked.result(timeout=10).json
    assert (told["output"], told["attempts"]) == ("another try", 2)


def test_who_never_reported_is_judged_by_the_deadline_alone(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(says(202)), timeout_ms=2500)
    told = call.asked.result(timeout=10)
    problem = leaves_a_call(call.agent.reach, told, 504, "deadline_exceeded", "timed_out")
    assert "deadline" in problem["detail"]


def test_an_attempt_that_was_never_made(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(says(202)))
    problem_of(call.post(kind="succeeded", output=1, attempt=2), 409, "conflict")
    assert call.kinds[-1] == "acknowledged"
    call.post(kind="succeeded", output=1)


def test_only_the_node_at_work_may_report(new_agent: NewAgent, begin: Begin) -> None:
    call, stranger = begin(new_agent(says(202))), new_agent()
    for receipt in ({"kind": "running"}, {"kind": "succeeded", "output": "forged"}):
        problem_of(call.agent.post_receipt(call.call_id, key=stranger.key, **receipt), 403, "forbidden")
    assert call.kinds[-1] == "acknowledged"
    call.post(kind="succeeded", output=1)


def test_a_call_that_nobody_made(new_agent: NewAgent) -> None:
    answer = new_agent().post_receipt("01890a5d-ac96-774b-bcce-b302099a8057", kind="running")
    problem_of(answer, 404, "not_found")


@pytest.mark.parametrize(
    "receipt",
    [
        {"kind": "accepted"},
        {"kind": "late_result"},
        {"kind": 5},
        {"kind": "running", "progress": 1.1},
        {"kind": "running", "progress": -0.1},
        {"kind": "running", "progress": "half"},
        {"kind": "running", "attempt": 0},
        {"kind": "running", "attempt": "1"},
        {"kind": "succeeded"},
        {"kind": "failed"},
        {"kind": "failed", "error": {"retryable": "yes"}},
        {"kind": "running", "message": "x" * 5000},
    ],
    ids=str,
)
def test_what_is_no_receipt(new_agent: NewAgent, receipt: dict[str, object]) -> None:
    agent = new_agent()
    call_id = agent.call().json["call_id"]
    problem_of(agent.post_receipt(call_id, **receipt), 400, "invalid_request")


def test_a_late_result_delivered_many_times_at_once_is_kept_once(new_agent: NewAgent, begin: Begin) -> None:
    call = begin(new_agent(says(202)))
    assert call.post(kind="succeeded", output="the one").status == 200
    with ThreadPoolExecutor(6) as line:
        told = list(line.map(lambda _n: call.post(kind="succeeded", output="another"), range(6)))
    assert {answer.status for answer in told} == {409}
    assert call.kinds.count("late_result") == 1
