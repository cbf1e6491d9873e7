"""Requests, answers, envelopes and signatures, without a network."""

import base64
import dataclasses
import hashlib
import hmac
import json
import math

import pytest
from fakes import an_envelope

from agent_reach import (
    Capability,
    NotAgentReach,
    NotJson,
    Problem,
    RateLimited,
    SetupError,
    _wire,
)
from agent_reach.errors import PROBLEMS


def body_of(request: _wire.Request) -> dict:
    assert request.body is not None
    return json.loads(request.body)


def test_a_call_says_only_what_was_given():
    request = _wire.dispatch("work", {"a": 1}, {"tags": ("prod",), "timeout_ms": 2000, "session_id": None})
    assert (request.method, request.path) == ("POST", "/api/v1/dispatch")
    assert body_of(request) == {"capability": "work", "payload": {"a": 1}, "tags": ["prod"], "timeout_ms": 2000}
    assert request.timeout_s > 2


def test_an_intent_needs_no_capability():
    body = body_of(_wire.dispatch(None, {}, {"intent": "summarise a report"}))
    assert body == {"payload": {}, "intent": "summarise a report"}


def test_submitting_asks_for_mode_async():
    assert body_of(_wire.dispatch("work", {}, {}, mode="async"))["mode"] == "async"


def test_an_option_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match=r"no option timeout; it has .*timeout_ms"):
        _wire.dispatch("work", {}, {"timeout": 3})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, {1, 2}, object(), "\ud800"], ids=["nan", "inf", "set", "object", "surrogate"]
)
def test_what_json_cannot_carry_is_refused(value):
    with pytest.raises(NotJson, match="the payload is not JSON"):
        _wire.encode({"a": value}, "the payload")


def test_dataclasses_and_models_become_objects():
    @dataclasses.dataclass
    class Point:
        x: int

    class Model:
        def model_dump(self, mode):
            return {"mode": mode}

    assert _wire.encode([Point(1), Model()]) == b'[{"x":1},{"mode":"json"}]'


def test_cancel_is_a_post_to_the_call():
    request = _wire.cancel("abc")
    assert (request.method, request.path) == ("POST", "/api/v1/calls/abc/cancel")


def test_ids_cannot_leave_their_place_in_the_path():
    assert _wire.call("../keys").path == "/api/v1/calls/..%2Fkeys"


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "", "ftp://x", "http://"])
def test_an_address_that_is_no_url_is_refused(text):
    with pytest.raises(SetupError, match="must be a URL like"):
        _wire.reach_address(text)


def test_a_capability_is_declared_with_its_defaults():
    document = _wire.capability_document(Capability(name="work", rate_limit="600/min"))
    assert document["rate_limit"] == "600/min"
    assert document["idempotent"] is False
    assert "rate_limit" not in _wire.capability_document(Capability(name="work"))


@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_each_problem_code_is_an_exception_class_of_its_own(code):
    document = {
        "code": code,
        "detail": "so it is",
        "errors": [{"path": "/payload/a", "message": "is wrong"}],
        "call_id": "c-1",
        "trace_id": "t-1",
        "retry_after_ms": 1500,
        "outcome_unknown": True,
    }
    with pytest.raises(PROBLEMS[code]) as caught:
        _wire.read(400, {}, json.dumps(document).encode(), address="http://reach")
    exc = caught.value
    assert type(exc) is PROBLEMS[code]
    assert (exc.code, exc.status, exc.call_id, exc.trace_id) == (code, 400, "c-1", "t-1")
    assert (exc.retry_after_s, exc.outcome_unknown) == (1.5, True)
    assert exc.errors[0]["path"] == "/payload/a"
    assert "so it is" in str(exc) and "/payload/a is wrong" in str(exc)


def test_a_code_of_a_newer_version_is_a_plain_problem():
    with pytest.raises(Problem) as caught:
        _wire.read(418, {}, b'{"code": "teapot"}', address="http://reach")
    assert type(caught.value) is Problem and caught.value.code == "teapot"


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>"), (404, b"<html>"), (404, b'{"error": 1}'), (301, b"")], ids=str
)
def test_an_answer_in_another_language_names_the_address(status, body):
    with pytest.raises(NotAgentReach, match=r"http://reach is not Agent-Reach .*check reach_addr"):
        _wire.read(status, {"Content-Type": "text/html"}, body, address="http://reach")


def test_a_proxy_without_a_reach_behind_it_is_told_apart():
    with pytest.raises(NotAgentReach, match="http://reach answers 502 and does not say why"):
        _wire.read(502, {}, b"<html>", address="http://reach")


def test_a_call_document_is_a_result():
    document = {
        "call_id": "c",
        "trace_id": "t",
        "status": "failed",
        "error": {"code": "upstream_error", "detail": "boom", "upstream": {"code": "x"}},
        "accepted_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:00:01.500000Z",
        "attempts": 2,
        "labels": {},
    }
    result = _wire.result(document)
    assert (result.duration_ms, result.attempts, result.ended, result.succeeded) == (1500, 2, True, False)


def test_rate_limited_tells_when_to_come_back():
    exc = _wire.problem(429, {"code": "rate_limited", "retry_after_ms": 250})
    assert isinstance(exc, RateLimited) and exc.retry_after_s == 0.25


# --- Envelopes -------------------------------------------------------------------------------------------------------


def test_the_budget_is_counted_on_our_own_clock():
    envelope = _wire.envelope(json.dumps(an_envelope(budget_ms=1500)).encode(), received_s=100.0)
    assert (envelope.budget_s, envelope.deadline_s) == (1.5, 101.5)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{}", b"\xff", json.dumps(an_envelope() | {"attempt": "1"}).encode()],
    ids=["nothing", "list", "null", "empty", "not utf-8", "attempt is text"],
)
def test_what_is_no_envelope_is_refused(body):
    with pytest.raises(_wire.BadEnvelope):
        _wire.envelope(body, received_s=0.0)


def test_a_mirrored_copy_counts_for_no_idempotency_key():
    said = an_envelope(idempotency_key="k", mirror=True)
    assert _wire.envelope(json.dumps(said).encode(), received_s=0.0).idempotency_key is None


# --- Signatures ------------------------------------------------------------------------------------------------------


def test_signatures_are_those_of_standard_webhooks():
    secret = base64.b64encode(b"k" * 24).decode()
    wanted = base64.b64encode(hmac.new(b"k" * 24, b"id.1700000000.{}", hashlib.sha256).digest()).decode()
    headers = {"webhook-id": "id", "webhook-timestamp": "1700000000", "webhook-signature": f"v1,old v1,{wanted}"}
    key = _wire.secret_bytes(f"whsec_{secret}")
    assert _wire.is_signed(key, headers, b"{}")
    assert not _wire.is_signed(key, headers, b"{ }")
    assert not _wire.is_signed(key, headers | {"webhook-id": "other"}, b"{}")
    assert not _wire.is_signed(b"other", headers, b"{}")
    assert not _wire.is_signed(key, {}, b"{}")


# --- Endings ---------------------------------------------------------------------------------------------------------


def test_an_ending_is_answer_and_receipt_alike():
    good = _wire.success({"a": 1})
    assert (good.status, json.loads(good.body)) == (200, {"output": {"a": 1}})
    assert json.loads(good.receipt(2)) == {"attempt": 2, "kind": "succeeded", "output": {"a": 1}}
    bad = _wire.failure(500, "broken", "it is", retryable=True)
    error = {"code": "broken", "message": "it is", "retryable": True}
    assert json.loads(bad.receipt(1)) == {"attempt": 1, "kind": "failed", "error": error}


def test_a_heartbeat_is_a_bare_running():
    assert json.loads(_wire.running_receipt(3)) == {"attempt": 3, "kind": "running"}


def test_other_systems_get_a_traceparent():
    headers = _wire.trace_headers("a" * 32, "01890000-0000-7000-8000-0123456789ab", 2)
    assert headers["traceparent"] == f"00-{'a' * 32}-0123456789ab0002-01"
    told = f"00-{'a' * 32}-{'c' * 16}-00"
    assert _wire.trace_headers("a" * 32, "c-1", 1, told)["traceparent"] == told
    for stranger in (f"00-{'b' * 32}-{'c' * 16}-01", "nonsense", None):
        assert "c" * 16 not in _wire.trace_headers("a" * 32, "c-1", 1, stranger)["traceparent"]
