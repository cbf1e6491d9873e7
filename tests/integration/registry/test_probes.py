import json
import socket

import pytest
from standardwebhooks import Webhook

from registry import tasks
from registry.models import Node
from tests.integration.registry.conftest import Api

pytestmark = pytest.mark.django_db

NODE = "services/doc-summarizer/nodes/n1"


@pytest.fixture
def registered(agent: Api, node_server) -> Api:
    agent.register(address=node_server.address)
    return agent


def seen(api):
    shown = api("GET", NODE).json()
    return shown["status"], shown["status_reason"]


def test_one_success_makes_a_node_ready(registered, node_server):
    tasks.probe_node(Node.objects.get().pk)
    assert seen(registered) == ("ready", "")
    assert {(method, path) for method, path, _headers, _body in node_server.asked} == {
        ("GET", "/reach/live"),
        ("POST", "/reach/ready"),
    }


def test_registration_asks_for_a_probe_at_once(agent, node_server, settings, django_capture_on_commit_callbacks):
    from celery import current_app

    current_app.conf.task_always_eager = True
    try:
        with django_capture_on_commit_callbacks(execute=True):
            agent.register(address=node_server.address)
    finally:
        current_app.conf.task_always_eager = False
    assert seen(agent) == ("ready", "")


def test_probes_are_marked_and_signed_with_the_service_s_secret(agent, node_server):
    secret = agent.register(address=node_server.address).json()["signing_secret"]
    tasks.probe_node(Node.objects.get().pk)
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
    tasks.probe_node(Node.objects.get().pk)
    assert seen(registered) == ("not_ready", reason)


def test_redirects_are_not_followed(registered, node_server):
    node_server.ready, node_server.headers = (302, b""), {"Location": "/reach/live"}
    tasks.probe_node(Node.objects.get().pk)
    assert seen(registered) == ("not_ready", "answers 302")


def test_a_closed_port_is_connection_refused(agent):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listening
        agent.register(address=f"http://127.0.0.1:{taken.getsockname()[1]}")
        tasks.probe_node(Node.objects.get().pk)
    assert seen(agent) == ("not_ready", "connection refused")


def test_silence_is_told_apart_by_liveness(registered, node_server, settings):
    settings.REACH_PROBE_TIMEOUT_S = 0.3
    node_server.hangs_at = {"/reach/ready"}
    tasks.probe_node(Node.objects.get().pk)
    assert seen(registered) == ("not_ready", "lives, but readiness hangs")
    node_server.hangs_at = {"/reach/ready", "/reach/live"}
    tasks.probe_node(Node.objects.get().pk)
    assert seen(registered) == ("not_ready", "connects, does not answer")


def test_a_name_that_does_not_resolve_yet_is_taken_and_shown(agent):
    assert agent.register(address="http://not-started.invalid:9001").status_code == 201
    tasks.probe_node(Node.objects.get().pk)
    assert seen(agent) == ("not_ready", "its name does not resolve")


def test_connecting_looks_at_the_address_again(registered, settings, node_server):
    settings.REACH_ALLOWED_ADDRESSES = "10.0.0.0/8"
    tasks.probe_node(Node.objects.get().pk)
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


def test_the_sweep_looks_at_nodes_that_are_out_and_leaves_the_others(registered, node_server):
    registered.register("doc-summarizer/nodes/n2", address=node_server.address)
    Node.objects.filter(node_id="n1").update(health="suspect", health_reason="a connection failed")
    Node.objects.filter(node_id="n2").update(health="ready", health_reason="")
    tasks.probe_waiting()
    assert seen(registered) == ("ready", "")
    assert len(node_server.asked) == 2
    tasks.probe_waiting()
    assert len(node_server.asked) == 2


def test_what_was_found_at_an_address_since_left_is_forgotten(registered, node_server, agent):
    from registry import services
    from registry.addresses import allowed_addresses
    from registry.probes import Target, probe

    node = Node.objects.get()
    target = Target(node.pk, node.address, "/reach/live", "/reach/ready", "whsec_AAAA")
    [evidence] = probe([target], timeout_s=2, allowed=allowed_addresses())
    agent.register(address="http://127.0.0.1:1")
    assert services.record_probe(evidence) is None
    assert seen(agent)[0] == "starting"
