"""Following a call as Server-Sent Events: everything once, in order, at any dispatcher, and nothing left behind."""

import contextlib
import http.client
import http.cookiejar
import json
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.agents import Agent, NewAgent, dispatch, key_of, kinds_of, open_call, receipts_of
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.streams import Stream, hang_up
from tests.acceptance.test_errors import problem_of
from tests.fakes import answers, says, waits_for

Pair = tuple[Instance, Instance]
NO_CALL = "01890a5d-ac96-774b-bcce-b302099a8057"


def server(reach: Any) -> Instance:
    """Who answers what reads."""
    return reach.dispatchers[-1] if hasattr(reach, "dispatchers") else reach


def waiting_at(reach: Instance, kind: str) -> float:
    """How many wait at that process, as it says itself."""
    text = reach.request("GET", "/metrics", key=reach.key).body.decode()
    [family] = [f for f in text_string_to_metric_families(text) if f.name == "reach_waiting_clients"]
    return next(sample.value for sample in family.samples if sample.labels == {"kind": kind})


@contextmanager
def at_work(agent: Agent, **fields: Any) -> Iterator[tuple[str, threading.Event]]:
    """A call that ends when the event is set, or when the block does."""
    gate = threading.Event()
    agent.node.behave = waits_for(gate, answers({"sum": 42}))
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(agent.call, **fields)
        try:
            yield open_call(agent)["call_id"], gate
        finally:
            gate.set()
            asked.result()


# --- What is told ----------------------------------------------------------------------------------------------------


def test_an_ended_call_is_told_again_and_the_stream_closes(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    call_id = agent.call().json["call_id"]
    with Stream(server(reach).port, call_id, reach.key) as stream:
        assert stream.status == 200
        told = {name.lower(): value for name, value in stream.response.getheaders()}
        assert told["content-type"] == "text/event-stream"
        assert (told["cache-control"], told["x-accel-buffering"]) == ("no-store", "no")
        assert "content-length" not in told and re.fullmatch("[0-9a-f]{32}", told["x-request-id"])
        events = list(stream.events())
    assert [receipt for _seq, receipt in events] == receipts_of(reach, call_id)
    assert [seq for seq, _receipt in events] == [receipt["seq"] for _seq, receipt in events] == [1, 2, 3, 4]
    assert stream.said == ["retry: 1000"]


def test_receipts_come_as_they_are_written(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(says(202))
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(agent.call)
        call_id = open_call(agent)["call_id"]
        with Stream(server(reach).port, call_id, reach.key) as stream:
            told = stream.events()
            seen = [next(told)[1]["kind"] for _ in range(4)]
            assert seen == ["accepted", "routed", "forwarded", "acknowledged"]
            for progress in (0.25, 0.5, 0.75):
                agent.post_receipt(call_id, kind="running", progress=progress)
                assert next(told)[1]["detail"] == {"progress": progress}
            agent.post_receipt(call_id, kind="succeeded", output={})
            assert [receipt["kind"] for _seq, receipt in told] == ["succeeded"]
        assert asked.result().status == 200


def test_every_way_to_end_ends_it(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    with at_work(agent) as (call_id, _gate), Stream(server(reach).port, call_id, reach.key) as stream:
        told = stream.events()
        next(told)
        assert reach.request("POST", f"/api/v1/calls/{call_id}/cancel", {}, key=reach.key).status == 202
        assert [receipt["kind"] for _seq, receipt in told][-1] == "cancelled"
    with at_work(agent, timeout_ms=300) as (call_id, _gate), Stream(server(reach).port, call_id, reach.key) as stream:
        assert stream.receipts()[-1]["kind"] == "timed_out"
    rejected = dispatch(reach, "never_declared").json["call_id"]
    with Stream(server(reach).port, rejected, reach.key) as stream:
        assert stream.receipts()[-1]["kind"] == "rejected"


def test_what_comes_after_the_end_is_not_part_of_it(reach: Instance, new_agent: NewAgent) -> None:
    """So that a stream is the same whenever it is asked for; the list of receipts has it."""
    agent = new_agent()
    call_id = agent.call().json["call_id"]
    assert agent.post_receipt(call_id, kind="succeeded", output="another").status == 409
    assert kinds_of(reach, call_id)[-2:] == ["succeeded", "late_result"]
    with Stream(server(reach).port, call_id, reach.key) as stream:
        assert [receipt["kind"] for receipt in stream.receipts()][-1] == "succeeded"
    with Stream(server(reach).port, call_id, reach.key, last_id=4) as stream:
        assert stream.status == 204


def test_a_call_carried_by_one_process_is_followed_at_the_other(pair: Pair, new_agent: NewAgent) -> None:
    agent = new_agent(at=pair[0])
    wait_until(lambda: agent.is_known_to(pair[1]), "the other process knows it too")
    with at_work(agent) as (call_id, gate), Stream(pair[1].port, call_id, agent.reach.key) as stream:
        told = stream.events()
        assert [next(told)[1]["kind"] for _ in range(3)] == ["accepted", "routed", "forwarded"]
        gate.set()
        assert [receipt["kind"] for _seq, receipt in told] == ["succeeded"]


# --- Coming back -----------------------------------------------------------------------------------------------------


def test_a_client_that_comes_back_misses_nothing_and_hears_nothing_twice(pair: Pair, new_agent: NewAgent) -> None:
    """In the middle of a call, at the other process, where it only knows the number it had last."""
    agent = new_agent(says(202), at=pair[0])
    wait_until(lambda: agent.is_known_to(pair[1]), "the other process knows it too")
    seqs: list[int] = []
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(agent.call)
        call_id = open_call(agent)["call_id"]
        for number in range(6):
            process = pair[number % 2]
            with Stream(process.port, call_id, process.key, last_id=seqs[-1] if seqs else None) as stream:
                told = stream.events()
                if not seqs:
                    seqs += [next(told)[0] for _ in range(4)]
                agent.post_receipt(call_id, kind="running", progress=number / 10)
                seqs.append(next(told)[0])
                hang_up(stream)
        agent.post_receipt(call_id, kind="succeeded", output={})
        asked.result()
    with Stream(pair[0].port, call_id, pair[0].key, query=f"?last_event_id={seqs[-1]}") as stream:
        seqs += [seq for seq, _receipt in stream.events()]
    assert seqs == list(range(1, 12)) == [receipt["seq"] for receipt in receipts_of(pair[0], call_id)]


def test_where_nothing_comes_any_more_a_browser_is_told_not_to_come_back(reach: Instance, new_agent: NewAgent) -> None:
    call_id = new_agent().call().json["call_id"]
    with Stream(server(reach).port, call_id, reach.key, last_id=4) as stream:
        assert (stream.status, stream.response.read()) == (204, b"")
        assert stream.response.getheader("Content-Length") is None


@pytest.mark.parametrize("last_id", ["x", "-1", "1.5", "99999999999999999999", "9" * 4000, "5"])
def test_an_id_that_is_none_of_the_calls_is_refused(reach: Instance, new_agent: NewAgent, last_id: str) -> None:
    call_id = new_agent().call().json["call_id"]
    for given in ({"last_id": last_id}, {"query": f"?last_event_id={last_id}"}):
        with Stream(server(reach).port, call_id, reach.key, **given) as stream:  # type: ignore[arg-type]
            problem = stream.problem()
            assert (stream.status, problem["code"]) == (400, "invalid_request")
            assert [error["path"] for error in problem["errors"]] == ["/last_event_id"]


# --- Who may ---------------------------------------------------------------------------------------------------------


def test_who_may_read_a_call_may_follow_it(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    mine, stranger, observer = (key_of(reach, who, scope) for who, scope in (
        ("follower", "dispatch"), ("stranger", "dispatch"), ("observer", "observe")
    ))  # fmt: skip
    call_id = agent.call(key=mine).json["call_id"]
    for key in (mine, observer, reach.key):
        with Stream(server(reach).port, call_id, key) as stream:
            assert stream.receipts()[-1]["kind"] == "succeeded"
    for method in ("events", "wait"):
        problem_of(reach.request("GET", f"/api/v1/calls/{call_id}/{method}", key=stranger), 403, "forbidden")
        problem_of(reach.request("GET", f"/api/v1/calls/{call_id}/{method}", key="nobody"), 401, "unauthenticated")
        problem_of(reach.request("GET", f"/api/v1/calls/{NO_CALL}/{method}", key=reach.key), 404, "not_found")
        problem_of(
            reach.request("POST", f"/api/v1/calls/{call_id}/{method}", {}, key=reach.key), 405, "method_not_allowed"
        )


def test_whatever_is_accepted_the_answer_is_a_stream_and_head_has_no_body(reach: Instance, new_agent: NewAgent) -> None:
    call_id = new_agent().call().json["call_id"]
    for accept in ("text/event-stream", "application/json", "*/*", "nonsense"):
        with Stream(server(reach).port, call_id, reach.key, headers={"Accept": accept}) as stream:
            assert stream.receipts()[-1]["kind"] == "succeeded"
    for wanted, status in ((call_id, 200), (NO_CALL, 404)):
        with Stream(server(reach).port, wanted, reach.key, method="HEAD") as stream:
            assert (stream.status, stream.response.read()) == (status, b"")
    head = reach.request("HEAD", f"/api/v1/calls/{call_id}/events", key=reach.key)
    assert head.headers["Content-Type"] == "text/event-stream" and head.headers["Content-Length"] is None


def test_an_operator_follows_a_call_in_the_browser(reach: Instance, new_agent: NewAgent) -> None:
    """By the session of the admin, through the stock handler."""
    at = getattr(reach, "console", reach)
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    browser.open(f"{at.url}/admin/login/").read()
    form = {
        "csrfmiddlewaretoken": next(cookie.value for cookie in jar if cookie.name == "csrftoken"),
        "username": reach.credentials["admin_username"],
        "password": reach.credentials["admin_password"],
    }
    browser.open(f"{at.url}/admin/login/", urllib.parse.urlencode(form).encode()).read()
    agent = new_agent()
    with at_work(agent) as (call_id, gate):
        with browser.open(f"{at.url}/api/v1/calls/{call_id}/events", timeout=20) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            while b"forwarded" not in stream.readline():
                pass
            assert waiting_at(at, "events") == 1
            gate.set()
            assert b"succeeded" in stream.read()
        wait_until(lambda: waiting_at(at, "events") == 0, "nothing is left of it", 10)
    with at_work(agent) as (call_id, _gate):
        with browser.open(f"{at.url}/api/v1/calls/{call_id}/events", timeout=20) as stream:
            stream.readline()
        wait_until(lambda: waiting_at(at, "events") == 0, "nothing is left of one that was left", 10)


# --- What is left behind ---------------------------------------------------------------------------------------------


def test_clients_that_go_away_leave_nothing_behind(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent()
    at = server(reach)
    before = {kind: waiting_at(at, kind) for kind in ("events", "wait")}
    with at_work(agent) as (call_id, _gate), ExitStack() as streams:
        opened = [streams.enter_context(Stream(at.port, call_id, reach.key)) for _ in range(10)]
        for stream in opened:
            next(stream.events())
        waits = [socket.create_connection(("127.0.0.1", at.port)) for _ in range(10)]
        for one in waits:
            one.sendall(
                f"GET /api/v1/calls/{call_id}/wait?timeout_s=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: Bearer {reach.key}\r\n\r\n".encode()
            )
        wait_until(lambda: waiting_at(at, "wait") == before["wait"] + 10, "they wait", 10)
        assert waiting_at(at, "events") == before["events"] + 10
        for stream in opened:
            hang_up(stream)
        for number, one in enumerate(waits):
            if number % 2:
                one.shutdown(socket.SHUT_WR)  # half closed: what cannot ask any more is not answered
            else:
                one.close()
        for kind, count in before.items():
            wait_until(lambda kind=kind, count=count: waiting_at(at, kind) == count, f"{kind}: nobody waits", 10)
        for one in waits:
            one.close()


def test_pipelining_does_not_hide_that_a_client_has_gone(reach: Instance, new_agent: NewAgent) -> None:
    """Nor does what is no HTTP at all, behind a request that is."""
    agent = new_agent()
    at = server(reach)
    before = at.output.count("Traceback")
    with at_work(agent) as (call_id, _gate):
        for what in ("wait?timeout_s=60", "events"):
            request = (
                f"GET /api/v1/calls/{call_id}/{what} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: Bearer {reach.key}\r\n\r\n"
            ).encode()
            with socket.create_connection(("127.0.0.1", at.port)) as one:
                one.sendall(request)
                wait_until(lambda what=what: waiting_at(at, what.partition("?")[0]) == 1, "it is served", 10)
                one.sendall(request * 3 + b"what is this?\r\n")
                wait_until(lambda what=what: waiting_at(at, what.partition("?")[0]) == 0, "nobody waits", 10)
    assert at.output.count("Traceback") == before


# --- A hasty instance: short of patience and of room -----------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(
        tmp_path_factory.mktemp("hasty") / "home",
        {
            "REACH_EVENTS_KEEPALIVE_S": "0.2",
            "REACH_EVENTS_MAX_S": "4",
            "REACH_EVENTS_STALL_S": "1",
            "REACH_EVENTS_RETRY_MS": "77",
            "REACH_MAX_WAITING_CLIENTS": "5",
            "REACH_MAX_WAITING_CLIENTS_PER_KEY": "3",
        },
    )
    try:
        yield instance.start()
    finally:
        instance.remove()


def database_of(instance: Instance) -> psycopg.Connection:
    from reach_project import embedded

    at = embedded.database_settings(instance.home)
    return psycopg.connect(
        dbname=str(at["NAME"]), user=str(at["USER"]), host=str(at["HOST"]), port=str(at["PORT"]), autocommit=True
    )


def test_a_silent_stream_keeps_its_connection_and_ends_in_time(hasty: Instance, new_agent: NewAgent) -> None:
    """A call that does not end does not hold a stream for ever: its client comes back with what it had last."""
    agent = new_agent(at=hasty)
    with at_work(agent) as (call_id, _gate):
        began = time.monotonic()
        with Stream(hasty.port, call_id, hasty.key) as stream:
            assert len(stream.receipts()) == 3
        assert time.monotonic() - began >= 4
        assert stream.said[0] == "retry: 77" and stream.said.count(":") >= 3
        assert stream.said[-1] == ": this stream is long enough: come back with Last-Event-ID: 3"


def test_no_key_may_wait_too_often_and_all_together_neither(hasty: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(at=hasty)
    first, second, third = (key_of(hasty, f"many-{n}", "observe") for n in range(3))
    with at_work(agent) as (call_id, _gate), ExitStack() as open_ones:

        def opens(key: str) -> Stream:
            return open_ones.enter_context(Stream(hasty.port, call_id, key))

        assert [opens(first).status for _ in range(3)] == [200] * 3
        refused = opens(first)
        problem = refused.problem()
        assert (refused.status, problem["code"], problem["retry_after_ms"]) == (429, "rate_limited", 1000)
        assert "3 waits and streams open" in problem["detail"] and refused.response.getheader("Retry-After") == "1"
        wait = hasty.request("GET", f"/api/v1/calls/{call_id}/wait", key=first)
        problem_of(wait, 429, "rate_limited")
        assert [opens(second).status for _ in range(2)] == [200] * 2
        problem = (refused := opens(third)).problem()
        assert (refused.status, problem["code"]) == (503, "overloaded")
        assert hasty.request("GET", f"/api/v1/calls/{call_id}/wait?timeout_s=0", key=first).status == 200
        assert agent.call(timeout_ms=50).status == 504, "calls are taken all the same"
    wait_until(lambda: waiting_at(hasty, "events") == 0, "nothing is left of them", 10)


def test_a_revoked_key_ends_its_streams(hasty: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(at=hasty)
    made = hasty.request("POST", "/api/v1/keys", {"service_id": "leaver", "scopes": ["observe"]}, key=hasty.key).json
    with at_work(agent) as (call_id, _gate):
        wait_until(lambda: hasty.request("GET", f"/api/v1/calls/{call_id}", key=made["key"]).status == 200, "known")
        with Stream(hasty.port, call_id, made["key"], timeout_s=30) as stream:
            next(stream.events())
            assert hasty.request("DELETE", f"/api/v1/keys/{made['key_id']}", key=hasty.key).status == 204
            stream.receipts()
        assert stream.said[-1] == ": the key is not valid any more"
        with Stream(hasty.port, call_id, made["key"]) as stream:
            assert stream.status == 401


def test_a_client_that_takes_nothing_is_cut_off(hasty: Instance, new_agent: NewAgent) -> None:
    """Its receipts stay where they are, in the database: one that does take them gets all."""
    agent = new_agent(at=hasty)
    call_id = agent.call().json["call_id"]
    with database_of(hasty) as session:
        session.execute("UPDATE receipts SET seq = seq + 30 WHERE call_id = %s AND seq = 4", [call_id])
        session.execute("UPDATE calls SET seq = seq + 30 WHERE id = %s", [call_id])
        session.execute(
            "INSERT INTO receipts (call_id, seq, kind, at, detail) SELECT %s, 3 + n, 'running', now(),"
            " json_build_object('message', repeat('x', 100000)) FROM generate_series(1, 30) n",
            [call_id],
        )
    told: list[dict[str, Any]] = []
    while not told or told[-1]["kind"] != "succeeded":  # a busy machine may not do it within one stream's time
        with Stream(hasty.port, call_id, hasty.key, last_id=len(told)) as stream:
            told += stream.receipts()
    assert told == receipts_of(hasty, call_id) and [receipt["seq"] for receipt in told] == list(range(1, 35))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", hasty.port))
        slow.sendall(
            f"GET /api/v1/calls/{call_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {hasty.key}\r\n\r\n".encode()
        )
        wait_until(lambda: waiting_at(hasty, "events") == 1, "it is there", 10)
        wait_until(lambda: waiting_at(hasty, "events") == 0, "it is cut off", 20)
        slow.settimeout(10)
        took = b""
        with contextlib.suppress(ConnectionResetError):
            while part := slow.recv(1_000_000):
                took += part
        assert took and not took.endswith(b"0\r\n\r\n"), "half a stream does not look like a whole one"


def test_a_process_that_stops_sends_its_followers_elsewhere(hasty: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(at=hasty)
    with (
        at_work(agent) as (call_id, gate),
        ThreadPoolExecutor(2) as others,
        Stream(hasty.port, call_id, hasty.key, last_id=1) as stream,
    ):
        told = stream.events()
        assert next(told)[0] == 2
        waits = others.submit(hasty.request, "GET", f"/api/v1/calls/{call_id}/wait?timeout_s=60", key=hasty.key)
        wait_until(lambda: waiting_at(hasty, "wait") == 1, "it waits", 10)
        stopped = others.submit(hasty.stop)
        assert [seq for seq, _receipt in told] == [3]
        assert stream.said[-1] == ": this process is stopping: come back with Last-Event-ID: 3"
        answer = waits.result(15)
        assert (answer.status, answer.json["status"]) == (200, "running")
        gate.set()  # its caller is still answered
        assert stopped.result(40) == 0
    assert "Traceback" not in hasty.output
    hasty.start()
    with Stream(hasty.port, call_id, hasty.key, last_id=3) as stream:
        assert [receipt["kind"] for receipt in stream.receipts()] == ["succeeded"]


def test_json_is_what_each_event_holds(reach: Instance, new_agent: NewAgent) -> None:
    """As any client of the standard reads it: two lines, and a blank one."""
    call_id = new_agent().call().json["call_id"]
    connection = http.client.HTTPConnection("127.0.0.1", server(reach).port, timeout=20)
    connection.request("GET", f"/api/v1/calls/{call_id}/events", headers={"Authorization": f"Bearer {reach.key}"})
    head, *events, end = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert (head, end) == ("retry: 1000", "")
    for number, text in enumerate(events, start=1):
        named, data = text.split("\n")
        assert named == f"id: {number}" and json.loads(data.removeprefix("data: "))["seq"] == number
