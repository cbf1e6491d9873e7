import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from standardwebhooks import Webhook

from registry import clock, health, knocks, tasks
from registry.models import Node, NodeLease, NodeProbe, SnapshotVersion, StatusChange
from registry.querysets import with_status
from tests.bed.process import wait_until
from tests.integration.registry.conftest import Api

pytestmark = pytest.mark.django_db

NODE = "services/doc-summarizer/nodes/n1"


@pytest.fixture
def registered(agent: Api, node_server) -> Api:
    agent.register(address=node_server.address)
    return agent


def probe():
    """The turn of every node has come."""
    NodeProbe.objects.update(due_at=timezone.now())
    tasks.probe_due()


def seen(api):
    shown = api("GET", NODE).json()
    return shown["status"], shown["status_reason"]


def test_one_success_makes_a_node_ready(registered, node_server):
    probe()
    assert seen(registered) == ("ready", "")
    assert {(method, path) for method, path, _headers, _body in node_server.asked} == {
        ("GET", "/reach/live"),
        ("POST", "/reach/ready"),
    }


def test_a_node_is_due_at_once_when_it_registers_and_when_it_moves(agent, node_server):
    agent.register(address="http://127.0.0.1:1")
    tasks.probe_due()
    assert seen(agent) == ("not_ready", "connection refused")
    NodeProbe.objects.update(due_at=timezone.now() + timedelta(hours=1))
    agent.register(address=node_server.address)
    tasks.probe_due()
    assert seen(agent) == ("ready", "")


def test_probes_are_marked_and_signed_with_the_service_s_secret(agent, node_server):
    secret = agent.register(address=node_server.address).json()["signing_secret"]
    probe()
    [(headers, body)] = [(headers, body) for method, _path, headers, body in node_server.asked if method == "POST"]
    assert headers["X-Reach-Probe"] == "1"
    assert headers["Content-Type"] == "application/json"
    assert Webhook(secret).verify(body, headers) == {"probe": True, "capability": None}


@pytest.mark.parametrize(
    ("live", "ready", "reason"),
    [
        ((200, b""), (200, b'{"ready": false, "reason": "stalled"}'), "says it is not ready: stalled"),
        ((200, b""), (503, b""), "answers 503"),
        ((200, b""), (503, b'{"ready": false, "reason": "loading"}'), "says it is not ready: loading"),
        ((200, b""), (200, b"<html>"), 'answers 200 without {"ready": true}'),
        ((200, b""), (200, b'{"ready": "yes"}'), 'answers 200 without {"ready": true}'),
        ((200, b""), (200, b"[" * 9000), 'answers 200 without {"ready": true}'),
        ((404, b""), (404, b""), "answers 404"),
    ],
)
def test_a_node_that_is_not_ready_says_why(registered, node_server, live, ready, reason):
    node_server.live, node_server.ready = live, ready
    probe()
    assert seen(registered) == ("not_ready", reason)


def test_an_answer_that_comes_in_pieces_is_read_to_its_end(registered, node_server):
    node_server.pieces_apart_s = 0.1
    probe()
    assert seen(registered) == ("ready", "")


def test_liveness_is_in_the_status_even_of_an_answer_without_an_end(agent, node_server, settings):
    settings.REACH_PROBE_TIMEOUT_S = 0.3
    node_server.never_ends_at = {"/reach/live", "/reach/ready"}
    agent.register(address=node_server.address, endpoints={"ready": None})
    probe()
    assert seen(agent) == ("ready", "")
    agent.register(address=node_server.address)
    probe()
    assert seen(agent) == ("not_ready", "lives, but readiness hangs")


def test_what_has_no_words_of_its_own_is_called_by_its_name(agent):
    with socket.create_server(("127.0.0.1", 0)) as hangs_up:
        hang_up = threading.Thread(target=lambda: [hangs_up.accept()[0].close() for _ in range(2)])
        hang_up.start()
        agent.register(address=f"https://127.0.0.1:{hangs_up.getsockname()[1]}")
        probe()
        hang_up.join()
    status, reason = seen(agent)
    assert status == "not_ready"
    assert reason.startswith("unreachable: ") and reason != "unreachable: "


def test_redirects_are_not_followed(registered, node_server):
    node_server.ready, node_server.headers = (302, b""), {"Location": "/reach/live"}
    probe()
    assert seen(registered) == ("not_ready", "answers 302")


def test_a_closed_port_is_connection_refused(agent):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listening
        agent.register(address=f"http://127.0.0.1:{taken.getsockname()[1]}")
        probe()
    assert seen(agent) == ("not_ready", "connection refused")


def test_silence_is_told_apart_by_liveness(registered, node_server, settings):
    settings.REACH_PROBE_TIMEOUT_S = 0.3
    node_server.hangs_at = {"/reach/ready"}
    probe()
    assert seen(registered) == ("not_ready", "lives, but readiness hangs")
    node_server.hangs_at = {"/reach/ready", "/reach/live"}
    probe()
    assert seen(registered) == ("not_ready", "connects, does not answer")


def test_a_name_that_does_not_resolve_yet_is_taken_and_shown(agent):
    assert agent.register(address="http://not-started.invalid:9001").status_code == 201
    probe()
    assert seen(agent) == ("not_ready", "its name does not resolve")


def test_a_name_server_that_does_not_answer_holds_up_nobody_else(agent, node_server, settings, monkeypatch):
    settings.REACH_PROBE_TIMEOUT_S = 1.0
    asked, real = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host, *given, **named):
        if str(host).endswith(".away.invalid") and not named.get("flags", 0) & socket.AI_NUMERICHOST:
            asked.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(host, *given, **named)

    for number in range(40):
        agent.register(f"doc-summarizer/nodes/far{number}", address=f"http://n{number}.away.invalid:9001")
    port = node_server.server_address[1]
    agent.register(address=f"http://localhost:{port}")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    began = time.monotonic()
    probe()
    assert time.monotonic() - began < 5
    assert seen(agent) == ("ready", "")
    others = Node.objects.exclude(node_id="n1").values_list("health", "health_reason")
    assert set(others) == {("not_ready", "its name does not resolve")}
    Node.objects.update(health="ready")
    began = time.monotonic()
    assert knocks.knock_at_ready_nodes() == 0
    assert time.monotonic() - began < 5
    asked.set()


def test_connecting_looks_at_the_address_again(registered, settings, node_server):
    settings.REACH_ALLOWED_ADDRESSES = "10.0.0.0/8"
    probe()
    status, reason = seen(registered)
    assert status == "not_ready"
    assert reason.startswith("not connected: 127.0.0.1 is not among")
    assert node_server.asked == []


def test_without_a_readiness_endpoint_liveness_judges(agent, operator, node_server):
    agent.register(address=node_server.address, endpoints={"ready": None})
    evidence = operator("POST", f"{NODE}/probe").json()
    assert (evidence["status"], evidence["ready"]) == ("ready", None)
    assert "liveness" in evidence["judged_by"]


def test_probe_now_shows_request_answer_and_timing(registered, operator, node_server):
    node_server.ready = (200, b'{"ready": false, "reason": "no model"}')
    answer = operator("POST", f"{NODE}/probe")
    assert answer.status_code == 200
    evidence = answer.json()
    assert evidence["status_reason"] == "says it is not ready: no model"
    assert evidence["live"]["status"] == 200
    assert evidence["ready"]["url"] == f"{node_server.address}/reach/ready"
    assert json.loads(evidence["ready"]["body"])["reason"] == "no model"
    assert evidence["ready"]["duration_ms"] > 0
    assert seen(registered)[0] == "not_ready"


def test_probe_now_needs_an_operator(registered, as_user):
    assert registered("POST", f"{NODE}/probe").status_code == 403
    assert as_user("viewer", name="vic")("POST", f"{NODE}/probe").status_code == 403


def test_only_those_are_probed_whose_turn_has_come(registered, node_server):
    probe()
    probe()  # proven by the first, it has its usual turn after the second
    assert len(node_server.asked) == 4
    tasks.probe_due()
    assert len(node_server.asked) == 4
    due = NodeProbe.objects.get().due_at
    assert timedelta(seconds=7) < due - timezone.now() <= timedelta(seconds=10)


def test_a_ready_node_goes_out_with_the_second_failure_and_is_looked_at_soon_after_the_first(registered, node_server):
    probe()
    node_server.ready = (503, b"")
    probe()
    assert seen(registered) == ("ready", "")
    assert NodeProbe.objects.get().failures == 1
    assert NodeProbe.objects.get().due_at - timezone.now() <= timedelta(seconds=2)
    probe()
    assert seen(registered) == ("not_ready", "answers 503")
    node_server.ready = (200, b'{"ready": true}')
    probe()
    assert seen(registered) == ("ready", "")
    assert NodeProbe.objects.get().failures == 0


def test_the_history_of_a_node_shows_every_change_with_its_evidence(registered, node_server):
    probe()
    node_server.ready = (503, b'{"ready": false, "reason": "no model"}')
    probe()
    probe()
    registered("POST", f"{NODE}/heartbeat", {})
    history = registered("GET", f"{NODE}/history").json()["results"]
    assert [(change["status"], change["reason"]) for change in history] == [
        ("not_ready", "says it is not ready: no model"),
        ("ready", ""),
        ("starting", "registered, not yet proven ready"),
    ]
    assert history[0]["evidence"]["ready"]["status"] == 503
    assert history[-1]["evidence"] is None


@pytest.mark.parametrize("state", ["disabled", "draining"])
def test_the_history_repeats_nothing_of_a_node_that_is_out_for_another_reason(registered, node_server, as_user, state):
    as_user("operator")("PATCH", NODE, {"admin_state": state})
    for status in (503, 200, 503):
        node_server.ready = (status, b'{"ready": true}')
        probe()
    changes = registered("GET", f"{NODE}/history").json()["results"]
    assert [change["status"] for change in changes] == [state, "starting"]


@pytest.mark.django_db(transaction=True)
def test_who_waits_for_nodes_keeps_no_session_of_the_database(agent, node_server, settings):
    settings.REACH_PROBE_TIMEOUT_S = 20
    node_server.hangs_at = {"/reach/ready", "/reach/live"}
    agent.register(address=node_server.address)
    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(lambda: (health.probe_nodes(Node.objects.all()), connection.close())[0])
        wait_until(lambda: len(node_server.asked) == 2 or probing.done(), "the node is asked")
        sessions = connection.pool.get_stats()
        node_server.hang.set()
    assert len(probing.result()) == 1
    assert sessions["pool_size"] - sessions["pool_available"] == 1, "this thread's own"


def test_a_node_shows_its_last_probe(registered, node_server):
    assert registered("GET", NODE).json()["last_probe_at"] is None
    probe()
    shown = registered("GET", NODE).json()
    assert shown["last_probe_at"] is not None
    assert (shown["last_probe"]["passed"], shown["last_probe"]["ready"]["status"]) == (True, 200)


def test_the_last_answer_times_are_kept_the_newest_first(registered, node_server):
    probe()
    node_server.ready = (503, b"")
    for _ in range(35):
        probe()
    recent = NodeProbe.objects.get().recent_ms
    assert len(recent) == 30
    assert set(recent) == {None}


def test_a_silence_that_was_the_reachs_own_counts_for_nothing(registered, node_server):
    probe()
    [before] = health.probe_nodes(Node.objects.all())
    busy = replace(before.evidence, trouble="connects, does not answer", inconclusive=True)
    [after] = health.record([busy])
    assert after.standing == before.standing
    assert seen(registered) == ("ready", "")


def test_two_workers_share_the_turns(registered, node_server):
    """What one worker has claimed, another leaves alone."""
    NodeProbe.objects.update(due_at=timezone.now())
    assert len(health.claim_due()) == 1
    assert health.claim_due() == []


@pytest.mark.parametrize("state", ["disabled", "draining"])
def test_nodes_that_operators_have_taken_out_are_probed_all_the_same(registered, node_server, as_user, state):
    as_user("operator")("PATCH", NODE, {"admin_state": state})
    probe()
    assert len(node_server.asked) == 2


def test_expired_nodes_are_left_alone(registered, node_server):
    NodeLease.objects.update(expired=True)
    probe()
    assert node_server.asked == []


def test_what_was_found_at_an_address_since_left_is_forgotten(registered, node_server, agent):
    [before] = health.probe_nodes(Node.objects.all())
    agent.register(address="http://127.0.0.1:1")
    [after] = health.record([replace(before.evidence, trouble="answers 503")])
    assert after.version is None
    assert seen(agent)[0] == "starting"


def test_a_node_of_an_older_release_gets_its_turn(registered, node_server):
    NodeProbe.objects.all().delete()
    tasks.sweep_nodes()
    tasks.probe_due()
    assert seen(registered) == ("ready", "")


# --- Suspicion and knocks --------------------------------------------------------------------------------------------


def test_a_dispatchers_word_makes_a_ready_node_suspect_and_due(registered, node_server):
    probe()
    version = SnapshotVersion.objects.get().version
    health.suspect([("doc-summarizer", "n1", "connection refused")])
    assert seen(registered) == ("suspect", "connection refused")
    assert SnapshotVersion.objects.get().version == version + 1
    tasks.probe_due()
    assert seen(registered) == ("ready", "")
    statuses = [change["status"] for change in registered("GET", f"{NODE}/history").json()["results"]]
    assert statuses == ["ready", "suspect", "ready", "starting"]


@pytest.mark.parametrize("health_now", ["starting", "not_ready", "suspect"])
def test_suspicion_says_nothing_of_nodes_that_are_not_ready(registered, health_now):
    Node.objects.update(health=health_now, health_reason="as it was")
    version = SnapshotVersion.objects.get().version
    health.suspect([("doc-summarizer", "n1", "connection refused")])
    assert seen(registered) == (health_now, "as it was")
    assert SnapshotVersion.objects.get().version == version


def test_a_confirmed_suspicion_takes_the_node_out_at_once(registered, node_server):
    probe()
    node_server.ready = (503, b"")
    health.suspect([("doc-summarizer", "n1", "something before it answered 502")])
    tasks.probe_due()
    assert seen(registered) == ("not_ready", "answers 503")


# --- Breakers --------------------------------------------------------------------------------------------------------


def tell(statement: str, *columns: list[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, columns)


def eject(until_s: float, attempts: int = 8, errors: int = 6) -> None:
    tell(health.EJECT, ["doc-summarizer"], ["n1"], [until_s], [attempts], [errors])


def test_a_node_behind_an_open_breaker_is_ejected_until_it_closes(registered, operator):
    probe()
    version = SnapshotVersion.objects.get().version
    eject(clock.now_s() + 60)
    assert seen(registered) == ("ejected", "its breaker is open: 6 of 8 attempts failed")
    eject(clock.now_s() + 60, 1, 1)
    assert seen(registered) == ("ejected", "its breaker is open: another try has failed")
    assert list(Node.objects.filter(with_status("ejected"))) == list(Node.objects.all())
    assert not Node.objects.filter(with_status("ready"), lease__expired=False)
    tell(health.READMIT, ["doc-summarizer"], ["n1"])
    assert seen(registered) == ("ready", "")
    statuses = [change["status"] for change in registered("GET", f"{NODE}/history").json()["results"]]
    assert statuses == ["ready", "ejected", "ready", "starting"]
    assert SnapshotVersion.objects.get().version == version, "breakers are the dispatchers' to share"


def test_an_ejection_lapses_by_itself(registered):
    probe()
    eject(clock.now_s() - 0.001)
    assert seen(registered) == ("ready", "")
    assert Node.objects.filter(with_status("ready")).exists()


def test_who_is_out_for_a_stronger_reason_is_shown_so(registered):
    Node.objects.update(health="not_ready", health_reason="answers 503")
    eject(clock.now_s() + 60)
    assert seen(registered) == ("not_ready", "answers 503")


def test_a_knock_finds_who_has_gone(registered, node_server):
    probe()
    tasks.knock()
    assert seen(registered) == ("ready", "")
    node_server.shutdown()
    node_server.server_close()
    tasks.knock()
    assert seen(registered) == ("not_ready", "connection refused")
    history = [change["status"] for change in registered("GET", f"{NODE}/history").json()["results"]]
    assert history[:2] == ["not_ready", "suspect"]


def test_many_that_are_gone_make_one_move_of_the_snapshot(agent, node_server):
    for number in range(4):
        agent.register(f"doc-summarizer/nodes/n{number}", address=node_server.address)
    probe()
    version = SnapshotVersion.objects.get().version
    node_server.shutdown()
    node_server.server_close()
    knocks.knock_at_ready_nodes()
    assert {(node.health, node.health_reason) for node in Node.objects.all()} == {("suspect", "connection refused")}
    assert SnapshotVersion.objects.get().version == version + 1


def test_a_knock_asks_nothing(registered, node_server):
    probe()
    asked = len(node_server.asked)
    tasks.knock()
    assert len(node_server.asked) == asked


def test_nobody_knocks_where_nobody_may_connect(registered, settings):
    Node.objects.update(health="ready", address="http://127.0.0.1:1")
    settings.REACH_ALLOWED_ADDRESSES = "10.0.0.0/8"
    tasks.knock()
    assert seen(registered)[0] == "ready"


def test_old_changes_are_forgotten_and_the_last_one_of_a_node_is_kept(registered, node_server):
    probe()
    later = timezone.now() + timedelta(days=1)
    assert health.forget_old_changes(later) == 1
    assert [change.status for change in StatusChange.objects.all()] == ["ready"]
    assert health.forget_old_changes(later) == 0


def test_a_server_without_any_health_endpoint_is_judged_by_its_connection(agent, operator, node_server):
    agent.register(address=node_server.address, endpoints={"ready": None, "live": None})
    evidence = operator("POST", f"{NODE}/probe").json()
    assert (evidence["status"], evidence["live"]["method"]) == ("ready", "CONNECT")
    assert "connection" in evidence["judged_by"]
    assert node_server.asked == []
    node_server.shutdown()
    node_server.server_close()
    tasks.knock()
    assert seen(agent) == ("not_ready", "connection refused")


def test_two_probes_at_once_have_seen_one_accident(registered, node_server):
    probe()
    node_server.ready = (503, b"")
    [first] = health.probe_nodes(Node.objects.all())
    during = replace(first.evidence, checked_at=first.evidence.checked_at + timedelta(microseconds=1))
    [second] = health.record([during])
    assert (first.standing.failures, second.standing.failures) == (1, 1)
    assert seen(registered) == ("ready", "")
    probe()
    assert seen(registered) == ("not_ready", "answers 503")
