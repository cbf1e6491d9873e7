"""Reading calls, traces and statistics by REST."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.db.models import QuerySet
from django.http import HttpResponse
from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from receipts.callbacks import callback_document, callbacks_of, read_callback
from receipts.cancelling import cancel_call
from receipts.core.lifecycle import OPEN, CallStatus
from receipts.core.trace_context import valid_trace_id
from receipts.errors import CallNotFound
from receipts.journal import Journal
from receipts.models import Call, Receipt
from receipts.partitions import lowest_id
from receipts.reading import RECEIPT_SHOWN, SHOWN
from receipts.redispatching import redispatch_call
from receipts.statistics import DIMENSIONS, counted
from registry import clock
from registry.auth import OBSERVE, Key, check_may
from registry.errors import Forbidden, InvalidRequest, NotFound
from registry.http import invalid_parameter, json_response, page

TRACE_CALLS_SHOWN = 1000
READ = ("observe", "operate", "dispatch")


def may_see_all(key: Key) -> bool:
    return not key.scopes.isdisjoint(OBSERVE)


async def visible_call(journal: Journal, call_id: UUID, key: Key) -> dict[str, Any]:
    """One call's row for the hot endpoints. Raises CallNotFound, Forbidden, Unavailable."""
    rows = await journal.read(f"SELECT {', '.join(SHOWN)} FROM calls WHERE id = %s", call_id)
    return seen_by(key, rows[0] if rows else None, call_id)


async def shown_call(journal: Journal, call_id: UUID) -> dict[str, Any]:
    """A call's document, as callbacks carry it. Raises CallNotFound, Unavailable."""
    rows = await journal.read(f"SELECT {', '.join(SHOWN)} FROM calls WHERE id = %s", call_id)
    if not rows:
        raise CallNotFound(f"no call {call_id}")
    return call_document(rows[0])


def seen_by(key: Key, row: dict[str, Any] | None, call_id: UUID) -> dict[str, Any]:
    """The row, if there is one and the key may read it. Raises CallNotFound, Forbidden."""
    if row is None:
        raise CallNotFound(f"no call {call_id}")
    if not may_see_all(key) and row["caller"] != key.caller:
        raise Forbidden("this call belongs to another caller; reading it needs the scope observe")
    return row


def call_document(row: dict[str, Any]) -> dict[str, Any]:
    """A call as CONTRACT §5 shows it."""
    document = dict(row)
    document["call_id"] = document.pop("id")
    document["mode"] = "sync" if document.pop("async_rank") is None else "async"
    del document["callback_url"]
    for name in ("output", "error"):
        document[name] = None if row[name] is None else msgspec.Raw(row[name].encode())
    document["labels"] = row["labels"] or {}
    return document


async def receipt_documents(journal: Journal, call_id: UUID) -> list[dict[str, Any]]:
    rows = await journal.read(
        f"SELECT {', '.join(RECEIPT_SHOWN)} FROM receipts WHERE call_id = %s ORDER BY seq", call_id
    )
    return [receipt_document(row) for row in rows]


def receipt_document(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"detail": None if row["detail"] is None else msgspec.Raw(row["detail"].encode())}


# --- Lists -----------------------------------------------------------------------------------------------------------

FILTERS = ("status", "capability", "service_id", "caller", "trace_id", "idempotency_key", "session_id")
QUERY = [OpenApiParameter(name, str) for name in (*FILTERS, "label", "since", "until", "cursor", "limit")]


LAST_OF_ALL = datetime(9000, 1, 1, tzinfo=UTC)
LATE = timedelta(hours=1)
"""So much later than its call's acceptance an id may say it was made, by the clock of another host."""


class CallsView(APIView):
    """Calls, newest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="calls_list", parameters=QUERY, responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> HttpResponse:
        calls = filtered(Call.objects.all(), request)
        if not may_see_all(request.auth):
            calls = calls.filter(caller=request.auth.caller)
        rows, next_cursor = page(calls, request, ["-id"])
        results = with_callbacks([row_of(call) for call in rows])
        return json_response({"results": results, "next_cursor": next_cursor})


def with_callbacks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls' documents with what became of their callbacks."""
    known = callbacks_of(row["id"] for row in rows if row["callback_url"])
    return [call_document(row) | callback_of(row, known.get(row["id"])) for row in rows]


def callback_of(row: dict[str, Any], known: dict[str, Any] | None) -> dict[str, Any]:
    url = row["callback_url"]
    return {"callback": None if url is None else callback_document(url, known)}


async def with_callback(journal: Journal, row: dict[str, Any]) -> dict[str, Any]:
    """`with_callbacks` of one call, for the hot endpoints. Raises Unavailable."""
    known = await read_callback(journal, row["id"]) if row["callback_url"] else None
    return call_document(row) | callback_of(row, known)


def row_of(call: Call) -> dict[str, Any]:
    return {name: getattr(call, name) for name in SHOWN}


def filtered(calls: QuerySet[Call], request: Request) -> QuerySet[Call]:
    """The calls that the query parameters ask for. Raises InvalidRequest naming the parameter."""
    for name in FILTERS:
        if (value := request.GET.get(name)) is not None:
            calls = calls.filter(**{name: clean(name, value)})
    if (status := request.GET.get("status")) is not None and status not in set(CallStatus):
        raise invalid_parameter("status", f"must be one of {', '.join(CallStatus)}")
    if status is not None and status in OPEN:
        calls = calls.filter(ended_at=None)  # an index knows the open ones
    if (label := request.GET.get("label")) is not None:
        name, colon, value = clean("label", label).partition(":")
        if not colon:
            raise invalid_parameter("label", "must be name:value")
        calls = calls.filter(labels__contains={name: value})
    if since := moment_parameter(request, "since"):
        calls = calls.filter(id__gte=lowest_id(since), accepted_at__gte=since)
    if until := moment_parameter(request, "until"):
        calls = calls.filter(id__lt=lowest_id(min(until, LAST_OF_ALL) + LATE), accepted_at__lt=until)
    return calls


def clean(name: str, value: str) -> str:
    if "\x00" in value:
        raise invalid_parameter(name, "holds U+0000")
    return value


def moment_parameter(request: Request, name: str) -> datetime | None:
    """An RFC 3339 query parameter. Raises InvalidRequest."""
    text = request.GET.get(name)
    if text is None:
        return None
    try:
        moment = parse_datetime(text.replace(" ", "+"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise invalid_parameter(name, "must be an RFC 3339 moment with a zone, like 2026-01-31T12:00:00Z")
    return moment


class CallView(APIView):
    """One call."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="calls_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, call_id: UUID) -> HttpResponse:
        row = Call.objects.filter(pk=call_id).values(*SHOWN).first()
        return json_response(with_callbacks([seen_by(request.auth, row, call_id)])[0])


class CancelView(APIView):
    """The result is not wanted any more: by its own caller, or by an operator."""

    scopes = {"POST": ("dispatch", "operate")}

    @extend_schema(operation_id="calls_cancel", request=None, responses={202: OpenApiTypes.OBJECT})
    def post(self, request: Request, call_id: UUID) -> HttpResponse:
        key: Key = request.auth
        caller = Call.objects.filter(pk=call_id).values_list("caller", flat=True).first()
        if caller is None:
            raise CallNotFound(f"no call {call_id}")
        is_own = caller == key.caller
        if not is_own and "operate" not in key.scopes:
            raise Forbidden("this call belongs to another caller; cancelling it needs the scope operate")
        if not is_own:
            check_may(key, "receipts.change_call")
        cancel_call(call_id, by=key.caller, audited=not is_own)
        return json_response({"call_id": str(call_id), "status": CallStatus.CANCELLED}, status=202)


class RedispatchView(APIView):
    """An ended, failed call again, as a new one."""

    scopes = {"POST": "operate"}

    @extend_schema(operation_id="calls_redispatch", request=None, responses={202: OpenApiTypes.OBJECT})
    def post(self, request: Request, call_id: UUID) -> HttpResponse:
        key: Key = request.auth
        check_may(key, "receipts.change_call")
        again = redispatch_call(call_id, by=key.caller)
        body = {
            "call_id": str(again.pk),
            "trace_id": again.trace_id,
            "status": again.status,
            "redispatch_of": str(call_id),
        }
        return json_response(body, status=202, headers={"Location": f"/api/v1/calls/{again.pk}"})


class TraceView(APIView):
    """All calls of one trace, as trees, with their receipts."""

    scopes = {"GET": READ}

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, trace_id: str) -> HttpResponse:
        if not valid_trace_id(trace_id):
            raise InvalidRequest("trace_id must be 32 lower-case hex digits")
        calls = Call.objects.filter(trace_id=trace_id).order_by("id").values(*SHOWN)
        if not may_see_all(request.auth):
            calls = calls.filter(caller=request.auth.caller)
        rows = list(calls[:TRACE_CALLS_SHOWN])
        if not rows:
            raise NotFound(f"no trace {trace_id}")
        return json_response({"trace_id": trace_id, "calls": trees(rows)})


def trees(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls as trees by parent; one whose parent is not among them is a root."""
    documents = with_callbacks(rows)
    nodes = {
        row["id"]: document | {"receipts": [], "children": []} for row, document in zip(rows, documents, strict=True)
    }
    told = Receipt.objects.filter(call_id__in=list(nodes)).order_by("call_id", "seq")
    for receipt in told:
        row = {name: getattr(receipt, name) for name in RECEIPT_SHOWN}
        nodes[receipt.call_id]["receipts"].append(receipt_document(row))
    roots: list[dict[str, Any]] = []
    for row in rows:
        parent = nodes.get(row["parent_call_id"])
        (parent["children"] if parent is not None else roots).append(nodes[row["id"]])
    return roots


# --- Statistics ------------------------------------------------------------------------------------------------------

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class StatsView(APIView):
    """Ended calls of a span of time, grouped: how many, how many failed, how long they took. Default: the last hour.

    Percentiles are exact to 9 %. Mirrored copies do not count.
    """

    scopes = {"GET": OBSERVE}

    @extend_schema(
        parameters=[OpenApiParameter(name, str) for name in ("group_by", "since", "until")],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request) -> HttpResponse:
        group = request.GET.get("group_by", "service_id")
        if group not in DIMENSIONS:
            raise invalid_parameter("group_by", f"must be one of {', '.join(DIMENSIONS)}")
        now = clock.now()
        until = moment_parameter(request, "until") or now
        since = moment_parameter(request, "since") or until - timedelta(hours=1)
        found = counted(group, since, until, now)
        total = sum(each.calls for each in found.values())
        results = [
            {
                group: key,
                "calls": each.calls,
                "failures": each.failures,
                "share": round(each.calls / total, 4),
                "latency_ms": {name: round(each.percentile_ms(share), 1) for name, share in PERCENTILES.items()},
            }
            for key, each in found.items()
        ]
        return json_response(
            {"group_by": group, "since": since, "until": until, "results": results, "next_cursor": None}
        )
