from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from receipts.models import ProcessLease
from registry import services
from registry.models import AuditEvent, Capability, Node, NodeLease, Service, SnapshotVersion
from tests.integration.registry.conftest import SUMMARY

NODE = "services/doc-summarizer/nodes/n1"

pytestmark = pytest.mark.django_db


def version():
    return SnapshotVersion.objects.get(pk=1).version


def a_process(role):
    """One that lives, as the database knows it."""
    now = timezone.now()
    until = now + timedelta(minutes=1)
    facts = {"owner": uuid4(), "role": role, "host": "here", "pid": 1, "started_at": now, "held_since": now}
    ProcessLease.objects.create(**facts, lease_expires_at=until)


def test_registers_with_the_defaults_of_the_contract(agent):
    answer = agent.register()
    assert answer.status_code == 201
    said = answer.json()
    assert said.keys() == {
        "service_id",
        "node_id",
        "lease_expires_at",
        "heartbeat_interval_s",
        "status",
        "declaration_hash",
        "signing_secret",
        "advisories",
    }
    assert (said["status"], said["heartbeat_interval_s"], said["advisories"]) == ("starting", 15, [])
    assert said["signing_secret"].startswith("whsec_")
    assert said["lease_expires_at"].endswith("Z")
    node = Node.objects.get()
    assert (node.weight, node.protocol, node.lease_ttl_s) == (100, "reach-http", 45)
    assert node.endpoints == {
        "invoke": "/reach/invoke",
        "live": "/reach/live",
        "ready": "/reach/ready",
        "cancel": None,
    }
    declared = node.declarations.get()
    assert (declared.cost_level, declared.timeout_tier, declared.idempotent) == ("medium", "medium", False)


def test_the_article_s_declaration_is_taken_whole(agent):
    rich = SUMMARY | {"cost_level": "low", "rate_limit": "600/min", "timeout_tier": "heavy", "idempotent": True}
    answer = agent.register(
        weight=40,
        tags=["prod", "zone:a"],
        version="1.4.2",
        protocol="reach-http",
        endpoints={"invoke": "/x", "live": "/l", "ready": None, "cancel": "/c"},
        heartbeat_interval_s=1,
        lease_ttl_s=3,
        max_concurrency=32,
        metadata={"region": "eu"},
        requires=["data_query"],
        capabilities=[rich],
        something_newer={"is": "ignored"},
    )
    assert answer.status_code == 201
    shown = agent("GET", NODE).json()
    assert shown["weight"] == 40
    assert shown["tags"] == ["prod", "zone:a"]
    assert shown["endpoints"]["ready"] is None
    assert shown["capabilities"] == ["file_summary"]
    assert Node.objects.get().declarations.get().rate_per_s == 10
    assert [a["code"] for a in answer.json()["advisories"]] == ["requirement_unprovided"]


def test_the_other_names_of_schemas_are_understood(agent):
    other_names = {"input_schema": {"required": ["x"]}, "output_schema": {"type": "string"}}
    agent.register(capabilities=[{"name": "a"} | other_names])
    [provider] = agent("GET", "capabilities/a").json()["providers"]
    assert (provider["input"], provider["output"]) == ({"required": ["x"]}, {"type": "string"})


def test_a_capability_that_accepts_anything_is_advised_against(agent):
    advisories = agent.register(capabilities=[{"name": "text"}]).json()["advisories"]
    assert [(a["code"], a["capability"]) for a in advisories] == [("accepts_anything", "text")]


def test_the_same_declaration_again_only_renews_the_lease(agent):
    first, known = agent.register(), version()
    NodeLease.objects.update(lease_expires_at=timezone.now())
    again = agent.register()
    assert again.status_code == 200
    assert again.json()["declaration_hash"] == first.json()["declaration_hash"]
    assert again.json()["signing_secret"] == first.json()["signing_secret"]
    assert version() == known
    assert NodeLease.objects.get().lease_expires_at > timezone.now() + timedelta(seconds=40)


def test_another_declaration_replaces_the_first_and_is_told_to_dispatchers(agent):
    first, known = agent.register(), version()
    second = agent.register(capabilities=[{"name": "other", "input": {"required": ["x"]}}])
    assert second.status_code == 200
    assert second.json()["declaration_hash"] != first.json()["declaration_hash"]
    assert version() > known
    assert agent("GET", NODE).json()["capabilities"] == ["other"]
    assert Capability.objects.filter(name="file_summary").exists(), "once declared it stays known"


def test_a_changed_address_must_be_proven_anew_a_changed_capability_need_not(agent):
    agent.register()
    Node.objects.update(health="ready", health_reason="")
    assert agent.register(capabilities=[{"name": "other"}]).json()["status"] == "ready"
    assert agent.register(address="http://127.0.0.1:2", capabilities=[{"name": "other"}]).json()["status"] == "starting"


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("address", 5, "/address"),
        ("address", "http://169.254.169.254", "/address"),
        ("address", "ftp://x", "/address"),
        ("weight", -1, "/weight"),
        ("weight", 1001, "/weight"),
        ("weight", "100", "/weight"),
        ("weight", True, "/weight"),
        ("weight", 1.5, "/weight"),
        ("tags", "prod", "/tags"),
        ("tags", ["ok", 5], "/tags/1"),
        ("protocol", "grpc", "/protocol"),
        ("lease_ttl_s", 2, "/lease_ttl_s"),
        ("lease_ttl_s", 3601, "/lease_ttl_s"),
        ("heartbeat_interval_s", 0, "/heartbeat_interval_s"),
        ("heartbeat_interval_s", 1201, "/heartbeat_interval_s"),
        ("max_concurrency", 0, "/max_concurrency"),
        ("metadata", [], "/metadata"),
        ("metadata", {"x": "y" * 20_000}, "/metadata"),
        ("requires", ["Not A Name"], "/requires/0"),
        ("endpoints", {"invoke": "//evil"}, "/endpoints/invoke"),
        ("endpoints", {"invoke": "reach"}, "/endpoints/invoke"),
        ("endpoints", {"live": "/a@b"}, "/endpoints/live"),
        ("endpoints", {"ready": "/a\n"}, "/endpoints/ready"),
        ("endpoints", {"live": None}, "/endpoints/live"),
        ("endpoints", {"cancel": "/a b"}, "/endpoints/cancel"),
        ("capabilities", {}, "/capabilities"),
        ("capabilities", [{}], "/capabilities/0/name"),
        ("capabilities", [{"name": "Upper"}], "/capabilities/0/name"),
        ("capabilities", [{"name": "a\n"}], "/capabilities/0/name"),
        ("capabilities", [{"name": "a" * 64}], "/capabilities/0/name"),
        ("capabilities", [{"name": "a"}, {"name": "a"}], "/capabilities/1/name"),
        ("capabilities", [{"name": "a", "cost_level": "free"}], "/capabilities/0/cost_level"),
        ("capabilities", [{"name": "a", "timeout_tier": "long"}], "/capabilities/0/timeout_tier"),
        ("capabilities", [{"name": "a", "idempotent": "yes"}], "/capabilities/0/idempotent"),
        ("capabilities", [{"name": "a", "rate_limit": "often"}], "/capabilities/0/rate_limit"),
        ("capabilities", [{"name": "a", "rate_limit": 0}], "/capabilities/0/rate_limit"),
        ("capabilities", [{"name": "a", "input": "x"}], "/capabilities/0/input"),
        ("capabilities", [{"name": "a", "input": {"type": "strin"}}], "/capabilities/0/input/type"),
        ("capabilities", [{"name": "a", "output_schema": {"type": 1}}], "/capabilities/0/output_schema/type"),
        ("capabilities", [{"name": "a", "input": {"$ref": "http://x.example/y"}}], "/capabilities/0/input"),
        ("capabilities", [{"name": f"c{i}"} for i in range(201)], "/capabilities"),
    ],
)
def test_each_mistake_is_answered_with_its_place(agent, field, value, place):
    answer = agent.register(**{field: value})
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid_request"
    assert [error["path"] for error in answer.json()["errors"]] == [place]
    assert not Node.objects.exists()


def test_several_mistakes_are_told_at_once(agent):
    capabilities = [{"name": "a", "input": {"type": "x"}}, {"name": "a", "rate_limit": "x"}]
    answer = agent.register(lease_ttl_s=9, heartbeat_interval_s=4, capabilities=capabilities)
    assert [error["path"] for error in answer.json()["errors"]] == [
        "/heartbeat_interval_s",
        "/capabilities/0/input/type",
        "/capabilities/1/name",
        "/capabilities/1/rate_limit",
    ]


@pytest.mark.parametrize("missing", ["address", "capabilities"])
def test_what_is_required_is_named(agent, missing):
    body = {"address": "http://127.0.0.1:1", "capabilities": []}
    del body[missing]
    answer = agent("PUT", NODE, body)
    assert answer.json()["errors"] == [{"path": f"/{missing}", "message": "is required"}]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'{"address": NaN}', 400, "invalid_request"),
        (b'{"address": "\\u0000"}', 400, "invalid_request"),
        (b'{"address": "\\ud800"}', 400, "invalid_request"),
        (b'{"address": "\xff"}', 400, "invalid_request"),
        (b"[" * 10_000 + b"]" * 10_000, 400, "invalid_request"),
        (b" " * 1_048_577, 413, "payload_too_large"),
    ],
)
def test_bodies_that_are_no_declaration(agent, body, status, code):
    answer = agent("PUT", NODE, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer["Content-Type"] == "application/problem+json"


def test_other_media_types_are_refused(agent):
    answer = agent.client.put(f"/api/v1/{NODE}", "a=b", content_type="text/plain", headers=agent.headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", ["services/doc-summarizer/nodes/Bad Node", "services/doc-summarizer/nodes/-x"])
def test_names_in_the_path_are_checked(agent, path):
    answer = agent("PUT", path, {"address": "http://127.0.0.1:1", "capabilities": []})
    assert answer.json()["errors"][0]["path"] == "/node_id"


def test_a_service_registers_itself_only_an_operator_anybody(agent, operator, as_service, as_user):
    path = "other/nodes/n1"
    assert agent.register(path).status_code == 403
    assert as_service("watcher", "observe").register("watcher/nodes/n1").status_code == 403
    assert as_user("viewer", name="vic").register(path).status_code == 403
    assert operator.register(path).status_code == 201
    assert as_service("robot", "operate").register("third/nodes/n1").status_code == 201
    assert AuditEvent.objects.filter(action="register", target="other/n1", actor="user:olga").exists()


# --- Heartbeats and leases -------------------------------------------------------------------------------------------


def test_a_heartbeat_renews_and_tells_dispatchers_nothing(agent):
    registered = agent.register().json()
    known = version()
    beat = agent("POST", f"{NODE}/heartbeat", {"in_flight": 3, "declaration_hash": registered["declaration_hash"]})
    assert beat.status_code == 200
    assert beat.json()["reregister"] is False
    assert datetime.fromisoformat(beat.json()["lease_expires_at"]) > timezone.now() + timedelta(seconds=40)
    assert agent("GET", NODE).json()["in_flight"] == 3
    assert version() == known


def test_a_heartbeat_needs_no_body_and_notices_another_declaration(agent):
    agent.register()
    assert agent("POST", f"{NODE}/heartbeat").json()["reregister"] is False
    assert agent("POST", f"{NODE}/heartbeat", {"declaration_hash": "0" * 64}).json()["reregister"] is True


def test_a_heartbeat_of_a_stranger_means_register_again(agent):
    answer = agent("POST", f"{NODE}/heartbeat", {"in_flight": 0})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"in_flight": -1}, "/in_flight"),
        ({"in_flight": "3"}, "/in_flight"),
        ({"declaration_hash": 1}, "/declaration_hash"),
    ],
)
def test_heartbeats_are_checked(agent, body, place):
    agent.register()
    answer = agent("POST", f"{NODE}/heartbeat", body)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, place)


def test_a_lease_that_ran_out_leaves_the_node_listed_as_expired_until_it_is_heard_again(agent):
    agent.register()
    Node.objects.update(health="ready", health_reason="")
    services.expire_leases(timezone.now())
    NodeLease.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    known = version()
    assert services.expire_leases(timezone.now()) == 1
    assert version() == known + 1
    shown = agent("GET", NODE).json()
    assert (shown["status"], bool(shown["status_reason"])) == ("expired", True)
    assert services.expire_leases(timezone.now()) == 0
    agent("POST", f"{NODE}/heartbeat")
    shown = agent("GET", NODE).json()
    assert (shown["status"], bool(shown["status_reason"])) == ("starting", True)
    assert version() == known + 2


def test_leases_live_on_by_as_long_as_the_reach_was_away(agent):
    agent.register()
    start = timezone.now()
    services.expire_leases(start)
    back = start + timedelta(minutes=10)
    assert services.expire_leases(back) == 0
    assert NodeLease.objects.get().lease_expires_at > back + timedelta(seconds=30)
    assert sum(services.expire_leases(back + timedelta(seconds=s)) for s in range(1, 60)) == 1


def test_leases_do_not_run_while_no_server_is_there_to_hear_heartbeats(agent):
    agent.register()
    start = timezone.now()
    services.expire_leases(start)
    a_process("engine")
    assert sum(services.expire_leases(start + timedelta(seconds=s)) for s in range(1, 60)) == 0
    a_process("dispatcher")
    assert sum(services.expire_leases(start + timedelta(seconds=s)) for s in range(60, 100)) == 0
    assert sum(services.expire_leases(start + timedelta(seconds=s)) for s in range(100, 110)) == 1


# --- Leaving, and what operators decide ------------------------------------------------------------------------------


def test_a_deleted_node_is_gone_and_must_register_again(agent):
    agent.register()
    known = version()
    assert agent("DELETE", NODE).status_code == 204
    assert version() > known
    assert agent("GET", NODE).status_code == 404
    assert agent("GET", "nodes").json()["results"] == []
    assert agent("GET", "services/doc-summarizer").json()["nodes"] == []
    assert agent("POST", f"{NODE}/heartbeat").status_code == 404
    assert agent("DELETE", NODE).status_code == 404
    again = agent.register()
    assert (again.status_code, again.json()["status"]) == (201, "starting")


def test_a_draining_node_takes_no_calls_is_listed_and_then_gone(agent):
    agent.register()
    Node.objects.update(health="ready", health_reason="")
    answer = agent("DELETE", f"{NODE}?drain_s=30")
    assert (answer.status_code, answer.json()["status"]) == (202, "draining")
    assert agent("POST", f"{NODE}/heartbeat").status_code == 404
    assert services.finish_drains(timezone.now()) == 0
    assert agent("DELETE", f"{NODE}?drain_s=30").status_code == 202
    assert services.finish_drains(timezone.now() + timedelta(seconds=31)) == 1
    assert agent("GET", NODE).status_code == 404
    assert agent.register().json()["status"] == "starting"


def test_registering_again_ends_a_farewell(agent):
    agent.register()
    agent("DELETE", f"{NODE}?drain_s=30")
    assert agent.register().status_code == 200
    assert agent("GET", NODE).json()["admin_state"] == "enabled"
    assert services.finish_drains(timezone.now() + timedelta(seconds=31)) == 0


@pytest.mark.parametrize("drain_s", ["x", "-1", "nan", "3601"])
def test_a_senseless_drain_is_refused(agent, drain_s):
    agent.register()
    answer = agent("DELETE", f"{NODE}?drain_s={drain_s}")
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "/drain_s")


def test_an_operator_s_choices_survive_restarts_and_farewells(agent, operator):
    agent.register(weight=100)
    chosen = operator("PATCH", NODE, {"weight": 7, "admin_state": "disabled"})
    assert chosen.status_code == 200
    assert (chosen.json()["weight"], chosen.json()["status"]) == (7, "disabled")
    agent.register(weight=90)
    agent("DELETE", f"{NODE}?drain_s=5")
    agent.register(weight=80)
    shown = agent("GET", NODE).json()
    assert (shown["weight"], shown["admin_state"]) == (7, "disabled")
    operator("PATCH", NODE, {"weight": None, "admin_state": "enabled"})
    shown = agent("GET", NODE).json()
    assert (shown["weight"], shown["admin_state"], shown["status"]) == (80, "enabled", "starting")
    assert AuditEvent.objects.filter(action="change", actor="user:olga").count() == 2


def test_weight_alone_leaves_the_state(agent, operator):
    agent.register()
    operator("PATCH", NODE, {"admin_state": "draining"})
    shown = operator("PATCH", NODE, {"weight": 0}).json()
    assert (shown["weight"], shown["admin_state"], shown["status"]) == (0, "draining", "draining")


@pytest.mark.parametrize(
    ("body", "place"),
    [({}, ""), ({"weight": 1001}, "/weight"), ({"weight": "5"}, "/weight"), ({"admin_state": "off"}, "/admin_state")],
)
def test_an_operator_s_mistakes_are_named(agent, operator, body, place):
    agent.register()
    answer = operator("PATCH", NODE, body)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, place)


def test_only_operators_decide(agent, as_user):
    agent.register()
    assert agent("PATCH", NODE, {"weight": 1}).status_code == 403
    assert as_user("viewer", name="vic")("PATCH", NODE, {"weight": 1}).status_code == 403
    assert as_user("approver", name="ann")("PATCH", NODE, {"weight": 1}).status_code == 403
    assert as_user("admin", name="adam")("PATCH", NODE, {"weight": 1}).status_code == 200


def test_a_leaving_node_cannot_be_changed(agent, operator):
    agent.register()
    agent("DELETE", f"{NODE}?drain_s=30")
    assert operator("PATCH", NODE, {"admin_state": "enabled"}).status_code == 409


def test_nobody_changes_what_is_not_there(operator):
    for method, path in (("GET", NODE), ("PATCH", NODE), ("DELETE", NODE), ("POST", f"{NODE}/probe")):
        assert operator(method, path, {"weight": 1}).status_code == 404


def test_secrets_are_encrypted_at_rest(agent):
    secret = agent.register().json()["signing_secret"]
    assert secret not in Service.objects.get(pk="doc-summarizer").signing_secret
