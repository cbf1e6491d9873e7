"""Domain error → RFC 9457 problem: one table, for every view.

Problem codes and their statuses are CONTRACT §2; an error's own class decides its code.
"""

import logging
import math
from time import time
from typing import Any

import msgspec
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpResponse
from psycopg_pool import PoolTimeout
from rest_framework import exceptions as drf

from receipts.errors import (
    CallEnded,
    CallFailed,
    CallNotFound,
    IdempotencyConflict,
    NotAgain,
    ReceiptRefused,
    UnknownParent,
)
from registry import errors, refusals
from routing.errors import Overloaded, TooManyWaiting

log = logging.getLogger(__name__)

STATUS_OF = {
    "invalid_request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_capability": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "idempotency_conflict": 409,
    "loop_detected": 409,
    "cancelled": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "invalid_payload": 422,
    "rate_limited": 429,
    "internal_error": 500,
    "upstream_error": 502,
    "invalid_output": 502,
    "no_available_node": 503,
    "circuit_open": 503,
    "overloaded": 503,
    "unavailable": 503,
    "deadline_exceeded": 504,
}

CODE_OF: dict[type[Exception], str] = {
    errors.InvalidRequest: "invalid_request",
    UnknownParent: "invalid_request",
    drf.ParseError: "invalid_request",
    drf.ValidationError: "invalid_request",
    drf.NotAcceptable: "invalid_request",
    SuspiciousOperation: "invalid_request",
    errors.Unauthenticated: "unauthenticated",
    drf.NotAuthenticated: "unauthenticated",
    drf.AuthenticationFailed: "unauthenticated",
    errors.Forbidden: "forbidden",
    drf.PermissionDenied: "forbidden",
    PermissionDenied: "forbidden",
    errors.NotFound: "not_found",
    CallNotFound: "not_found",
    drf.NotFound: "not_found",
    Http404: "not_found",
    drf.MethodNotAllowed: "method_not_allowed",
    errors.Conflict: "conflict",
    ReceiptRefused: "conflict",
    CallEnded: "conflict",
    NotAgain: "conflict",
    IdempotencyConflict: "idempotency_conflict",
    errors.PayloadTooLarge: "payload_too_large",
    errors.UnsupportedMediaType: "unsupported_media_type",
    drf.UnsupportedMediaType: "unsupported_media_type",
    errors.Unavailable: "unavailable",
    Overloaded: "overloaded",
    TooManyWaiting: "rate_limited",
    OperationalError: "unavailable",
    InterfaceError: "unavailable",
    PoolTimeout: "unavailable",
}
DATABASE_ERRORS = (OperationalError, InterfaceError, PoolTimeout)
DEFAULT_RETRY_AFTER_MS = 1000


def code_of(exc: Exception) -> str | None:
    """The problem code of an error, by the nearest class in the table; None: a bug, which is left to rise."""
    return next((CODE_OF[kind] for kind in type(exc).__mro__ if kind in CODE_OF), None)


def problem_response(code_or_status: int | str, code: str = "", detail: str = "", **facts: Any) -> HttpResponse:
    """A problem document. `problem_response("not_found", detail=…)`, or with an explicit status first."""
    status, code = (
        (STATUS_OF[code_or_status], code_or_status) if isinstance(code_or_status, str) else (code_or_status, code)
    )
    if status in (429, 503):
        facts.setdefault("retry_after_ms", DEFAULT_RETRY_AFTER_MS)
    body = {
        "type": f"urn:agent-reach:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
        **facts,
    }
    response = HttpResponse(msgspec.json.encode(body), status=status, content_type="application/problem+json")
    if status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="agent-reach"'
    if "retry_after_ms" in facts:
        response["Retry-After"] = str(math.ceil(facts["retry_after_ms"] / 1000))
    return response


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """What a DRF view answers when it raises; None (a bug) lets the exception rise to the outermost handler."""
    if isinstance(exc, CallFailed):
        return call_problem(exc)
    code = code_of(exc)
    if code is None:
        return None
    count_refusal(code, context)
    if isinstance(exc, DATABASE_ERRORS):
        log.warning("a request found the database away: %s", str(exc).splitlines()[0])
        return problem_response(code, detail="the reach's database is away")
    response = problem_response(code, detail=detail_of(exc), **facts_of(exc))
    if isinstance(exc, drf.MethodNotAllowed) and (view := context.get("view")) is not None:
        response["Allow"] = ", ".join(m for m in view.allowed_methods if m not in ("HEAD", "OPTIONS", "TRACE"))
    return response


def call_problem(exc: CallFailed) -> HttpResponse:
    facts = exc.ending.document()
    code, detail = facts.pop("code"), facts.pop("detail")
    if exc.replayed:
        facts["replayed"] = True
    return problem_response(code, detail=detail, call_id=str(exc.call_id), trace_id=exc.trace_id, **facts)


def detail_of(exc: Exception) -> str:
    if isinstance(exc, drf.APIException):
        return str(exc.detail) if isinstance(exc.detail, str) else "the request is not valid"
    return str(exc)


def facts_of(exc: Exception) -> dict[str, Any]:
    """The facts an error carries, as members of its problem document."""
    facts: dict[str, Any] = {}
    if isinstance(exc, errors.InvalidRequest) and exc.errors:
        facts["errors"] = exc.errors
    if isinstance(exc, drf.ValidationError):
        facts["errors"] = flattened(exc.detail, "")
    if call_id := getattr(exc, "call_id", None):
        facts["call_id"] = str(call_id)
    if conflicts := getattr(exc, "conflicts", None):
        facts["conflicts"] = list(conflicts)
    for name in ("three_way", "shadowed_routes"):  # what a refused move of a route change has to be looked at
        if (value := getattr(exc, name, None)) is not None:
            facts[name] = value
    if isinstance(exc, errors.Unavailable | Overloaded | TooManyWaiting):
        facts["retry_after_ms"] = exc.retry_after_ms
    return facts


def flattened(detail: Any, path: str) -> list[dict[str, str]]:
    """DRF's nested messages as a list of places."""
    if isinstance(detail, dict):
        return [error for key, value in detail.items() for error in flattened(value, f"{path}/{key}")]
    if isinstance(detail, list) and any(isinstance(item, dict | list) for item in detail):
        return [error for index, value in enumerate(detail) for error in flattened(value, f"{path}/{index}")]
    return [{"path": path, "message": str(message)} for message in (detail if isinstance(detail, list) else [detail])]


def count_refusal(code: str, context: dict[str, Any]) -> None:
    """Refusals that leave no call are counted by key, code and minute."""
    key = getattr(context.get("request"), "_auth", None)
    refusals.count(key.key_id if key is not None else "", code, time())
