"""The clocks of a node and of one process are ten minutes off, either way: nobody notices."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.agents import call_of, dispatch, key_of
from tests.acceptance.incidents.callers import Callers, epoch_s
from tests.acceptance.incidents.report import Report
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.sdk.agents import spawn_agent, wait_ready
from tests.bed import clock

OFF_S, TIMEOUT_S = 600, 5

AGENT = """
import time
from agent_reach import AgentClient, Capability

client = AgentClient("clockwork", node_id="n1")
client.register_capability(Capability(name="clockwork_task", input_schema={"type": "object"}))

@client.handle("clockwork_task")
def work(payload, ctx):
    left_ms = ctx.remaining_ms()
    time.sleep(payload.get("work_s", 0.02))
    return {"left_ms": left_ms, "now": time.time()}

client.start()
"""


@pytest.fixture(
    params=[OFF_S, -OFF_S], ids=["the node ahead, the process behind", "the node behind, the process ahead"]
)
def node_off_s(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def right_and_wrong(database_url: str, tmp_path: Path, node_off_s: int) -> Iterator[tuple[Instance, Instance]]:
    """Two processes that dispatch, on one database; the second's clock is off."""
    right = Instance(tmp_path / "right", {"DATABASE_URL": database_url})
    wrong = Instance(tmp_path / "wrong", {"DATABASE_URL": database_url, **clock.shifted(-node_off_s)})
    try:
        yield right.start(), wrong.start()
    finally:
        right.remove()
        wrong.remove()


def test_clocks_ten_minutes_off(
    right_and_wrong: tuple[Instance, Instance], node_off_s: int, tmp_path: Path, report: Report
) -> None:
    right, wrong = right_and_wrong
    key = key_of(right, "clockwork", "register", "dispatch")
    agent = spawn_agent(tmp_path, AGENT, reach_addr=wrong.url, key=key, **clock.shifted(node_off_s))
    try:
        wait_ready(right, "clockwork", agent)
        report.note("the node registers with the process whose clock is off, and calls begin")
        for at in (right, wrong):
            wait_until(lambda at=at: dispatch(at, "clockwork_task").status == 200, "both know the node")
        asked = {"threads": 2, "timeout_ms": TIMEOUT_S * 1000}
        with (
            Callers(right, "clockwork_task", report, name="by the right: ", **asked) as by_right,
            Callers(wrong, "clockwork_task", report, name="by the wrong: ", **asked) as by_wrong,
        ):
            for column in ("by the right: n1", "by the wrong: n1"):
                report.wait_for(column, 40)
            spent_s = {name: deadline_s(at) for name, at in (("right", right), ("wrong", wrong))}
            report.note(f"a deadline of 1 s ends calls after {spent_s}")
        history = right.request("GET", "/api/v1/services/clockwork/nodes/n1/history", key=right.key).json["results"]
    finally:
        agent.remove()

    outputs = [answer.json["output"] for answer in (*by_right.answers, *by_wrong.answers)]
    assert all(abs(one["now"] - time.time() - node_off_s) < 60 for one in outputs), "its clock was indeed off"
    assert all(0 < one["left_ms"] <= TIMEOUT_S * 1000 for one in outputs), "its budget was right all the same"
    assert all(1 <= spent <= 3 for spent in spent_s.values())
    assert [change["status"] for change in history] == ["ready", "starting"], "no lease ran out, no probe failed"
    for answer in (by_right.answers[-1], by_wrong.answers[-1]):
        call = call_of(right, answer.json["call_id"])
        assert call["accepted_at"] <= call["ended_at"] <= call["deadline"]
        assert abs(epoch_s(call["accepted_at"]) - time.time()) < 60, "moments are the database's"
        assert 0 <= answer.json["duration_ms"] < TIMEOUT_S * 1000


def deadline_s(at: Instance) -> float:
    """How long a call takes that its deadline of 1 s ends, by the test's own clock."""
    began = time.monotonic()
    answer = dispatch(at, "clockwork_task", {"work_s": 10}, timeout_ms=1000)
    assert (answer.status, answer.json["code"]) == (504, "deadline_exceeded")
    return round(time.monotonic() - began, 2)
