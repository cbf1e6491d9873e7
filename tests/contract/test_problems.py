"""The table of problem codes is the contract's."""

import json

import pytest

from reach_project.problems import CODE_OF, STATUS_OF, problem_response

CONTRACT = {
    "invalid_request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_capability": 404,
    "method_not_allowed": 405,
    "unsupported_media_type": 415,
    "conflict": 409,
    "idempotency_conflict": 409,
    "loop_detected": 409,
    "payload_too_large": 413,
    "invalid_payload": 422,
    "rate_limited": 429,
    "upstream_error": 502,
    "invalid_output": 502,
    "no_available_node": 503,
    "circuit_open": 503,
    "overloaded": 503,
    "unavailable": 503,
    "deadline_exceeded": 504,
    "cancelled": 409,
}
"""Section 2 of the wire contract, v1: added to freely, never changed."""


@pytest.mark.parametrize(("code", "status"), CONTRACT.items())
def test_every_code_has_the_status_of_the_contract(code: str, status: int):
    assert STATUS_OF[code] == status


def test_no_error_of_ours_has_a_code_without_a_status():
    assert set(CODE_OF.values()) <= set(STATUS_OF)


@pytest.mark.parametrize("code", STATUS_OF)
def test_a_problem_document(code: str):
    response = problem_response(code, detail="why", call_id="c", trace_id="t")
    document = json.loads(response.content)
    assert response["Content-Type"] == "application/problem+json"
    assert (response.status_code, document["status"], document["code"]) == (STATUS_OF[code], STATUS_OF[code], code)
    assert document["type"] and document["title"]
    assert (document["detail"], document["call_id"], document["trace_id"]) == ("why", "c", "t")
    assert ("Retry-After" in response) is (STATUS_OF[code] in (429, 503))


@pytest.mark.parametrize(
    ("wait_ms", "seconds"), [(0, "0"), (1, "1"), (500, "1"), (1000, "1"), (1001, "2"), (30_000, "30")]
)
def test_retry_after_is_whole_seconds_rounded_up(wait_ms: int, seconds: str):
    response = problem_response("no_available_node", detail="", retry_after_ms=wait_ms)
    assert response["Retry-After"] == seconds
    assert json.loads(response.content)["retry_after_ms"] == wait_ms
