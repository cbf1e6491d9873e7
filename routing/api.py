"""The hot endpoints: dispatch, explain, and the receipts of a call. Those that wait for one are in `events`."""

from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from receipts.api import READ, receipt_documents, visible_call
from receipts.core.envelope import CallEnvelope, EnvelopeBody, parse_envelope
from receipts.core.lifecycle import CallStatus
from receipts.errors import CallFailed
from registry.addresses import allowed_addresses
from registry.auth import Key
from registry.clock import now_millis
from registry.connecting import check_url
from registry.errors import UnsupportedMediaType
from registry.http import AsyncAPIView, described, is_json, json_response
from routing.accepting import Accepted, accept_async
from routing.core.plan import Attempt, Stop, Wait, matching_ids
from routing.core.reports import PostedReceipt, parse_receipt
from routing.dispatch import Result, begin, decide, fallback_document, submit, why_document
from routing.live import parts
from routing.mirroring import mirror
from routing.node_receipts import take_receipt


class ResultBody(msgspec.Struct, gc=False):
    """A sync call's success (CONTRACT §4)."""

    call_id: str
    trace_id: str
    status: str
    output: Any
    service_id: str | None
    node_id: str | None
    route_id: str | None
    table_revision: int
    attempts: int
    duration_ms: int
    replayed: bool


class AcceptedBody(msgspec.Struct, gc=False):
    """What an asynchronous call's caller is told (CONTRACT §4)."""

    call_id: str
    trace_id: str
    status: str
    replayed: bool


ENVELOPE = {"application/json": described(EnvelopeBody)}
RESULT = {"application/json": described(ResultBody)}
ACCEPTED = {"application/json": described(AcceptedBody)}


class DispatchView(AsyncAPIView):
    """A task in, its result out: who is calling; hand the envelope on; show the result."""

    scopes = {"POST": ("dispatch", "operate")}

    @extend_schema(request=ENVELOPE, responses={200: RESULT, 202: ACCEPTED})
    async def post(self, request: Request) -> HttpResponse:
        key: Key = request.auth
        envelope = envelope_of(request, key)
        live, any_parent = parts(), "operate" in key.scopes
        if envelope.callback_url is not None:
            await check_callback(envelope.callback_url)
        size = len(request.body)
        live.admit(envelope.urgency, size)
        try:
            if envelope.is_async:
                return accepted_response(await accept_async(envelope, live, any_parent=any_parent))
            result = await submit(envelope, live, any_parent=any_parent, begun=mirror)
        finally:
            live.dismiss(size)
        return result_response(result)


class ExplainView(AsyncAPIView):
    """Where would this call go, and why: the same decision, nothing sent."""

    scopes = {"POST": ("dispatch", "observe", "operate")}

    @extend_schema(operation_id="dispatch_explain", request=ENVELOPE, responses=OpenApiTypes.OBJECT)
    async def post(self, request: Request) -> HttpResponse:
        key: Key = request.auth
        envelope = envelope_of(request, key)
        live = parts()
        journey = await begin(envelope, live, any_parent="operate" in key.scopes)
        step = decide(journey, live)
        assert step.why is not None, "a call that has not been tried has no backoff"
        chosen = step.chosen.node.key if isinstance(step, Attempt) else None
        body = {
            **why_document(step.why, chosen),
            "capability": journey.envelope.capability,
            "matched_routes": matching_ids(journey.envelope, live.tables),
            "fallbacks": [fallback_document(fallback) for fallback in step.why.fallbacks],
        }
        if isinstance(step, Wait):
            body["wait_ms"] = step.wait_ms
        if isinstance(step, Stop):
            body["problem"] = step.ending.document()
        return json_response(body)


class ReceiptsView(AsyncAPIView):
    """What happened to a call (GET); what its node has to say (POST)."""

    scopes = {"GET": READ, "POST": ("register", "operate")}

    @extend_schema(operation_id="receipts_list", responses=OpenApiTypes.OBJECT)
    async def get(self, request: Request, call_id: UUID) -> HttpResponse:
        journal = parts().journal
        await visible_call(journal, call_id, request.auth)
        return json_response({"results": await receipt_documents(journal, call_id), "next_cursor": None})

    @extend_schema(
        operation_id="receipts_post",
        request={"application/json": described(PostedReceipt)},
        responses=OpenApiTypes.OBJECT,
    )
    async def post(self, request: Request, call_id: UUID) -> HttpResponse:
        check_json(request)
        posted = parse_receipt(
            request.body,
            max_depth=settings.REACH_MAX_JSON_DEPTH,
            max_containers=settings.REACH_MAX_JSON_CONTAINERS,
        )
        status = await take_receipt(call_id, posted, request.auth, parts())
        return json_response({"call_id": str(call_id), "status": status})


def envelope_of(request: Request, key: Key) -> CallEnvelope:
    """The request's envelope. Raises UnsupportedMediaType, InvalidRequest."""
    check_json(request)
    headers = request.META
    return parse_envelope(
        request.body,
        caller=key.caller,
        received_at_millis=now_millis(),
        max_depth=settings.REACH_MAX_JSON_DEPTH,
        max_containers=settings.REACH_MAX_JSON_CONTAINERS,
        max_context_bytes=settings.REACH_MAX_CONTEXT_BYTES,
        traceparent=headers.get("HTTP_TRACEPARENT"),
        idempotency_key=headers.get("HTTP_IDEMPOTENCY_KEY"),
        prefer=headers.get("HTTP_PREFER", ""),
    )


async def check_callback(url: str) -> None:
    """Raises InvalidRequest where no callback is sent; a host's name costs a look-up in a thread."""
    await check_url(url, allowed=allowed_addresses(), timeout_s=settings.REACH_CONNECT_TIMEOUT_S, place="/callback_url")


def check_json(request: Request) -> None:
    content_type = request.META.get("CONTENT_TYPE", "")
    if content_type != "application/json" and not is_json(content_type):
        raise UnsupportedMediaType("send application/json")


def accepted_response(accepted: Accepted) -> HttpResponse:
    """202, and where the call is found."""
    call_id = str(accepted.call_id)
    body = AcceptedBody(call_id, accepted.trace_id, CallStatus.ACCEPTED, accepted.replayed)
    return json_response(body, status=202, headers={"Location": f"/api/v1/calls/{call_id}"})


def result_response(result: Result) -> HttpResponse:
    """200 with the output, or CallFailed, which becomes a problem document."""
    if result.ending.code is not None:
        raise CallFailed(result.ending, result.call_id, result.trace_id, replayed=result.replayed)
    return json_response(
        ResultBody(
            str(result.call_id),
            result.trace_id,
            "succeeded",
            result.ending.output,
            result.service_id,
            result.node_id,
            result.route_id,
            result.table_revision,
            result.attempts,
            result.duration_ms,
            result.replayed,
        )
    )
