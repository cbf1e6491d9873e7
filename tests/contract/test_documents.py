"""What the registry shows has the contract's fields."""

import json
from typing import Any

import pytest
from django.test import Client

from tests.factories import SUMMARY_INPUT, SUMMARY_OUTPUT, a_capability

pytestmark = pytest.mark.django_db

NODE = {
    "service_id", "node_id", "address", "weight", "admin_state", "tags", "version", "protocol", "status",
    "status_reason", "status_since", "registered_at", "last_heartbeat_at", "lease_expires_at",
    "in_flight", "capabilities",
}  # fmt: skip
REGISTERED = {
    "service_id", "node_id", "lease_expires_at", "heartbeat_interval_s", "status", "declaration_hash", "signing_secret",
    "advisories",
}  # fmt: skip
PAGE = {"results", "next_cursor"}


class Registry:
    """One registered node, and its service's key to look at it."""

    def __init__(self) -> None:
        from registry import services

        scopes = ("register", "observe", "dispatch")
        self.key = services.create_service_key("doc-summarizer", scopes, by="test").text
        offer = a_capability("file_summary", input=SUMMARY_INPUT, output=SUMMARY_OUTPUT)
        body = {"address": "http://127.0.0.1:1", "tags": ["prod"], "capabilities": [offer]}
        self.registered = self.ask("PUT", "services/doc-summarizer/nodes/n1", body)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {self.key}"}
        data = b"" if body is None else json.dumps(body).encode()
        response = Client().generic(method, f"/api/v1/{path}", data, "application/json", headers=headers)
        assert response.status_code in (200, 201), response.content
        return json.loads(response.content)


@pytest.fixture
def registry(db: None) -> Registry:
    return Registry()


def test_the_answer_to_a_registration(registry: Registry):
    assert registry.registered.keys() >= REGISTERED
    assert registry.registered["signing_secret"].startswith("whsec_")
    assert registry.registered["status"] == "starting"


def test_the_answer_to_a_heartbeat(registry: Registry):
    beat = registry.ask("POST", "services/doc-summarizer/nodes/n1/heartbeat", {"in_flight": 3})
    assert beat.keys() >= {"lease_expires_at", "reregister"}
    assert beat["reregister"] is False


def test_a_node_is_shown_alike_everywhere(registry: Registry):
    alone = registry.ask("GET", "services/doc-summarizer/nodes/n1")
    listed = registry.ask("GET", "nodes")
    service = registry.ask("GET", "services/doc-summarizer")
    services = registry.ask("GET", "services")
    assert alone.keys() >= NODE
    assert listed.keys() == services.keys() == PAGE
    assert alone.pop("last_probe") is None  # the evidence of a probe is for a page of its own
    assert listed["results"] == service["nodes"] == services["results"][0]["nodes"] == [alone]
    assert (alone["capabilities"], alone["tags"], alone["protocol"]) == (["file_summary"], ["prod"], "reach-http")


def test_a_capability_shows_its_providers_and_schemas(registry: Registry):
    capability = registry.ask("GET", "capabilities/file_summary")
    [provider] = capability["providers"]
    assert (provider["service_id"], provider["node_id"]) == ("doc-summarizer", "n1")
    assert (provider["input"], provider["output"]) == (SUMMARY_INPUT, SUMMARY_OUTPUT)
    assert registry.ask("GET", "capabilities?q=summary")["results"] == [capability]
