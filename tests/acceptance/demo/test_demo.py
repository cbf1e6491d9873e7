"""`make demo`, as a newcomer meets it: its first minute, and its end."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.sdk.agents import agent_reach

FIRST_CALL = "agent-reach trace "


class Demo(Instance):
    """An instance that the demo starts, with all that belongs to it."""

    command = (sys.executable, "-m", "demo")

    def members(self) -> list[psutil.Process]:
        """Everything that it has started, itself included."""
        assert self.process is not None
        itself = psutil.Process(self.process.pid)
        return [itself, *itself.children(recursive=True)]

    def statuses(self) -> set[str]:
        """How the calls that have ended did so; "retried" when one succeeded at a later attempt."""
        calls = self.request("GET", "/api/v1/calls?limit=500", key=self.key).json["results"]
        retried = {"retried" for call in calls if call["status"] == "succeeded" and call["attempts"] > 1}
        return {call["status"] for call in calls} | retried


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    instance = Demo(tmp_path_factory.mktemp("demo") / "home", first_start=True)
    try:
        instance.start()
        yield instance
    finally:
        instance.remove()


def test_a_report_question_is_traced_within_a_minute(demo: Demo) -> None:
    ready_at = time.monotonic()
    wait_until(lambda: FIRST_CALL in demo.output or not demo.is_running, "the demo says what to try next")
    assert FIRST_CALL in demo.output, demo.output
    call_id = demo.output.split(FIRST_CALL, 1)[1].split()[0]
    shown = agent_reach("trace", call_id, reach_addr=demo.url, key=demo.key)
    assert time.monotonic() - ready_at < 60
    assert shown.returncode == 0, shown.stderr
    chain = ["report_question", "data_query", "permission_check", "write_ticket"]
    lines = shown.stdout.splitlines()
    heads = [number for number, line in enumerate(lines) if " for " in line and " by " in line]
    assert [lines[number].split("── ")[1].split()[0] for number in heads] == chain
    for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        receipts = "\n".join(lines[begin:end])
        assert all(kind in receipts for kind in ("accepted", "routed", "forwarded", "succeeded"))


def test_calls_end_in_every_way(demo: Demo) -> None:
    every = {"succeeded", "failed", "timed_out", "rejected", "retried"}
    wait_until(lambda: every <= demo.statuses(), f"{every} have occurred", 100)


def test_the_table_went_through_review(demo: Demo) -> None:
    [change] = demo.request("GET", "/api/v1/route-changes", key=demo.key).json["results"]
    assert change["status"] == "published"
    assert (change["author"], change["approvals"][0]["approver"]) == ("demo-author", "demo-approver")


def test_nothing_is_left_of_it(demo: Demo) -> None:
    processes = demo.members()
    assert len(processes) > 15
    assert demo.stop() == 0
    _gone, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert "Traceback" not in demo.output + "".join(log.read_text() for log in Path(demo.home, "demo").glob("*.log"))
