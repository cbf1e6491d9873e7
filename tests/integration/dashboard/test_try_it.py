"""The form of a capability sends a real call, as the person who has filled it in."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from receipts.core.lifecycle import CallStatus
from receipts.models import Call, ProcessLease, Receipt, WaitingCall
from registry.models import AuditEvent
from routing.engine import envelope_of
from tests.integration.dashboard.sample import OWNER, SUMMARY, a_node

pytestmark = pytest.mark.django_db
URL = "/admin/try/file_summary/"
SCHEMA = {
    "type": "object",
    "required": ["file_path"],
    "properties": {"file_path": {"type": "string", "minLength": 3}, "pages": {"type": "integer", "maximum": 9}},
}
GOOD = {"field:/file_path": "/a.pdf", "field:/pages": "4"}


@pytest.fixture
def offered() -> None:
    a_node(capabilities=[SUMMARY | {"input": SCHEMA, "examples": [{"file_path": "/sample.pdf"}], "rate_limit": None}])


@pytest.fixture
def engine(db: None) -> None:
    soon = timezone.now() + timedelta(minutes=1)
    ProcessLease.objects.create(
        owner=OWNER, role="engine", host="h", pid=1, started_at=soon, held_since=soon, lease_expires_at=soon
    )


def test_the_form_begins_with_the_example(operator: Client, offered: None, engine: None) -> None:
    page = operator.get(URL).content.decode()
    assert 'name="field:/file_path" value="/sample.pdf"' in page and 'type="number"' in page
    assert "No process is alive" not in page
    assert URL in operator.get("/admin/registry/capability/file_summary/change/").content.decode()


def test_a_call_is_accepted_as_everybody_s(operator: Client, offered: None) -> None:
    answer = operator.post(URL, GOOD | {"urgency": "interactive", "timeout_s": "20", "tags": "prod, eu"})
    call = Call.objects.get()
    assert answer["Location"] == f"/admin/traces/{call.trace_id}/?call={call.pk}"
    assert (call.caller, call.status, call.capability, call.async_rank) == ("user:olga", "accepted", "file_summary", 0)
    assert (call.deadline - call.accepted_at) == timedelta(seconds=20)
    envelope = envelope_of(Call.objects.values().get())
    assert envelope.payload == {"file_path": "/a.pdf", "pages": 4}
    assert (envelope.urgency, envelope.tags, envelope.is_async) == ("interactive", {"prod", "eu"}, True)
    assert WaitingCall.objects.get().call_id == call.pk
    receipt = Receipt.objects.get()
    assert receipt.kind == "accepted" and msgspec.json.decode(receipt.detail or "{}")["by"] == "user:olga"
    assert AuditEvent.objects.get(action="try call").target == str(call.pk)
    assert operator.get(answer["Location"]).status_code == 200


def test_it_takes_as_long_as_its_tier_lets_it(operator: Client, offered: None, settings: Any) -> None:
    settings.REACH_TIER_MEDIUM_S = 33
    operator.post(URL, GOOD)
    call = Call.objects.get()
    assert (call.deadline - call.accepted_at) == timedelta(seconds=33)


def test_json_is_the_other_way_in(operator: Client, offered: None) -> None:
    operator.post(URL, {"raw": "1", "json": json.dumps({"file_path": "文件.pdf"}), "field:/file_path": "ignored"})
    assert msgspec.json.decode(Call.objects.get().request)["payload"] == {"file_path": "文件.pdf"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({}, "It is required.", id="missing"),
        pytest.param({"field:/file_path": "/a.pdf", "field:/pages": "four"}, "Not a whole number.", id="no number"),
        pytest.param({"field:/file_path": "x"}, "shorter than", id="the schema says so"),
        pytest.param(GOOD | {"field:/pages": "10"}, "greater than the maximum", id="over the limit"),
        pytest.param({"raw": "1", "json": "{"}, "Not JSON.", id="no JSON"),
        pytest.param({"raw": "1", "json": '{"pages": 1}'}, "is required", id="JSON that does not fit"),
        pytest.param(GOOD | {"timeout_s": "601"}, "Seconds from 1 to 600.", id="too long"),
        pytest.param(GOOD | {"tags": "x" * 300}, "tags", id="a tag too long"),
    ],
)
def test_nothing_is_sent_that_does_not_fit(operator: Client, offered: None, given: Any, told: str) -> None:
    answer = operator.post(URL, given)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert told in page and "Nothing was sent" in page
    if "field:/file_path" in given:
        assert f'value="{given["field:/file_path"]}"' in page, "what was typed is kept"
    assert not Call.objects.exists()


def test_a_payload_that_fits_any_provider_is_sent(operator: Client, offered: None) -> None:
    other = {"type": "object", "required": ["url"], "properties": {"url": {"type": "string"}}}
    a_node("llm", "b", capabilities=[SUMMARY | {"input": other, "version": "2"}])
    page = operator.get(URL, {"variant": "1"}).content.decode()
    assert "Its providers declare different schemas" in page and 'name="field:/url"' in page
    operator.post(URL, {"variant": "1", "field:/url": "u"})
    assert Call.objects.get().status == CallStatus.ACCEPTED


def test_what_keeps_a_call_waiting_is_said_before(operator: Client, offered: None) -> None:
    assert "No process is alive that carries calls" in operator.get(URL).content.decode()


def test_without_providers_there_is_no_form(operator: Client) -> None:
    from registry.models import Capability

    Capability.objects.create(name="file_summary")
    assert "Nobody offers it now" in operator.get(URL).content.decode()
    assert operator.get("/admin/try/unheard_of/").status_code == 404


@pytest.mark.parametrize("group", ["viewer", "approver"])
def test_others_see_no_form_and_send_nothing(as_person: Any, offered: None, group: str) -> None:
    client = as_person(group)
    assert URL not in client.get("/admin/registry/capability/file_summary/change/").content.decode()
    assert client.get(URL).status_code == 403
    assert client.post(URL, GOOD).status_code == 403
    assert not Call.objects.exists()
