"""The database is away: nothing is accepted, nothing is told that is not written; all goes on when it is back."""

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.acceptance.agents import call_of, calls_where, dispatch, kinds_of, registered
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.test_errors import leaves_no_call
from tests.bed.proxy import Proxy
from tests.fakes import FakeNode, waits_for


@pytest.fixture
def line(database_url: str) -> Iterator[Proxy]:
    given = conninfo_to_dict(database_url)
    line = Proxy(int(given["port"]), str(given["host"]))
    yield line
    line.close()


@pytest.fixture
def reach(new_instance: Callable[..., Instance], database_url: str, line: Proxy) -> Iterator[Instance]:
    given = conninfo_to_dict(database_url)
    password = f":{given['password']}" if given.get("password") else ""
    url = f"postgresql://{given['user']}{password}@127.0.0.1:{line.port}/{given['dbname']}?sslmode=disable"
    instance = new_instance(DATABASE_URL=url).start()
    yield instance
    instance.stop()  # while it still has its database


def test_what_happens_while_the_database_is_away(reach: Instance, line: Proxy) -> None:
    gate = threading.Event()
    agent = registered(reach, FakeNode(waits_for(gate)))
    trace = secrets.token_hex(16)
    try:
        with ThreadPoolExecutor(1) as caller:
            under_way = caller.submit(agent.call, {"n": 1})
            wait_until(lambda: agent.node.invocations, "a call is at work")
            line.cut()

            for path in ("dispatch", f"calls/{agent.node.invocations[0].call_id}/receipts", "route-changes"):
                method, body = (
                    ("GET", None) if path.endswith("receipts") else ("POST", {"capability": agent.capability})
                )
                sent = body and body | {"payload": {"n": 2}, "trace_id": trace}
                leaves_no_call(reach.request(method, f"/api/v1/{path}", sent, key=reach.key), 503, "unavailable")
            wait_until(lambda: reach.request("GET", "/readyz").status == 503, "it says that it is not ready")

            gate.set()
            wait_until(lambda: agent.node.invocations[0].over_at, "the node has answered")
            leaves_no_call(dispatch(reach, agent.capability, {"n": 2}, trace_id=trace), 503, "unavailable")
            assert not under_way.done(), "a success was told that is not on disk"

            line.mend()
            told = under_way.result(timeout=15)
        assert (told.status, told.json["output"]) == (200, {"echo": {"n": 1}})
        wait_until(reach.is_ready, "every process has its database again")
        assert call_of(reach, told.json["call_id"])["status"] == "succeeded"
        assert kinds_of(reach, told.json["call_id"]) == ["accepted", "routed", "forwarded", "succeeded"]
        assert len(agent.node.invocations) == 1
        wait_until(lambda: dispatch(reach, agent.capability, {"n": 3}).status == 200, "calls are accepted again")
        assert calls_where(reach, trace_id=trace) == []
    finally:
        agent.leave()


def test_metrics_answer_meanwhile(reach: Instance, line: Proxy) -> None:
    def told() -> str:
        answer = reach.request("GET", "/metrics", key=reach.key)
        assert answer.status == 200, answer.body
        return answer.body.decode()

    works, does_not = (f'reach_part_working{{part="database"}} {value}' for value in ("1.0", "0.0"))
    assert works in told()
    line.cut()
    wait_until(lambda: does_not in told(), "they tell that the database is away")
    line.mend()
    wait_until(lambda: works in told(), "they tell that it is back")
