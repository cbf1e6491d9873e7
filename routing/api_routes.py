"""The route table and its review by REST (CONTRACT §7). Ordinary views: read a body, call a verb, show the result."""

from collections.abc import Callable
from typing import Any

import msgspec
from django.contrib.auth.models import User
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from registry import changes as snapshot_changes
from registry.auth import OBSERVE
from registry.errors import Forbidden, NotFound
from registry.http import described, invalid_parameter, json_response, page, page_response, read_body
from routing import impact, review
from routing.core.review import Status
from routing.models import RouteChange, TableRevision
from routing.querysets import changes, live_number, revisions, table_of
from routing.serializers import (
    ApprovalBody,
    ChangeDocument,
    ChangeSummary,
    EditBody,
    ImpactDocument,
    MoveBody,
    ProposalBody,
    PublishBody,
    RebaseBody,
    RevisionDocument,
    RevisionSummary,
    TableDocument,
    change_document,
    change_summary,
    impact_document,
    revision_document,
    revision_summary,
)

proposal_decoder = msgspec.json.Decoder(ProposalBody)
edit_decoder = msgspec.json.Decoder(EditBody)
move_decoder = msgspec.json.Decoder(MoveBody)
approval_decoder = msgspec.json.Decoder(ApprovalBody)
rebase_decoder = msgspec.json.Decoder(RebaseBody)
publish_decoder = msgspec.json.Decoder(PublishBody)

PAGE = [
    OpenApiParameter("limit", int, description="1 to 500, default 50"),
    OpenApiParameter("cursor", str, description="`next_cursor` of the page before"),
]


def listed(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of one page of `kind`."""
    return {
        "type": "object",
        "properties": {
            "results": {"type": "array", "items": described(kind)},
            "next_cursor": {"type": ["string", "null"]},
        },
        "required": ["results", "next_cursor"],
    }


def acting_user(request: Request) -> User:
    """The person behind the request. Raises Forbidden for a service's key: reviews are between people."""
    if request.auth.user_id is None:
        raise Forbidden("route changes are made by people: use an operator's key or session")
    return request.user


class RoutesView(APIView):
    """The live table."""

    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="routes_read", responses={200: described(TableDocument)})
    def get(self, request: Request) -> HttpResponse:
        live = live_number()
        return json_response(TableDocument(live, **table_of(live)))


class RevisionsView(APIView):
    """Every table that was ever live."""

    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="route_revisions_list", parameters=PAGE, responses={200: listed(RevisionSummary)})
    def get(self, request: Request) -> HttpResponse:
        return page_response(*page(revisions(), request, ["-number"]), revision_summary)


class RevisionView(APIView):
    """One revision with its table."""

    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="route_revisions_read", responses={200: described(RevisionDocument)})
    def get(self, request: Request, number: int) -> HttpResponse:
        try:
            return json_response(revision_document(revisions().get(pk=number)))
        except TableRevision.DoesNotExist as exc:
            raise NotFound(f"no revision {number}") from exc


class ChangesView(APIView):
    """Route changes: list them, newest first; propose one."""

    scopes = {"GET": OBSERVE, "POST": "operate"}

    @extend_schema(
        operation_id="route_changes_list",
        parameters=[*PAGE, OpenApiParameter("status", str, enum=[status.value for status in Status])],
        responses={200: listed(ChangeSummary)},
    )
    def get(self, request: Request) -> HttpResponse:
        listed_ones = changes()
        if (status := request.GET.get("status")) is not None:
            if status not in list(Status):
                raise invalid_parameter("status", f"must be one of {', '.join(Status)}")
            listed_ones = listed_ones.filter(status=status)
        return page_response(*page(listed_ones, request, ["-id"]), change_summary)

    @extend_schema(
        operation_id="route_changes_propose",
        request={"application/json": described(ProposalBody)},
        responses={201: described(ChangeDocument)},
    )
    def post(self, request: Request) -> HttpResponse:
        author = acting_user(request)
        body = read_body(request, proposal_decoder)
        return created(review.propose(author=author, **msgspec.structs.asdict(body)))


class ChangeView(APIView):
    """One route change: read it with its diff; edit it."""

    scopes = {"GET": OBSERVE, "PATCH": "operate"}

    @extend_schema(operation_id="route_changes_read", responses={200: described(ChangeDocument)})
    def get(self, request: Request, change_id: int) -> HttpResponse:
        return shown(change_id)

    @extend_schema(
        operation_id="route_changes_edit",
        request={"application/json": described(EditBody)},
        responses={200: described(ChangeDocument)},
    )
    def patch(self, request: Request, change_id: int) -> HttpResponse:
        by = acting_user(request)
        body = read_body(request, edit_decoder)
        review.edit(change_id, by=by, **msgspec.structs.asdict(body))
        return shown(change_id)


class MoveView(APIView):
    """Submit, reject, withdraw or comment on a route change."""

    scopes = {"POST": "operate"}
    verb: Callable[..., RouteChange] = staticmethod(review.submit)
    """Of `routing.review`; set where the URL is."""

    @extend_schema(request={"application/json": described(MoveBody)}, responses={200: described(ChangeDocument)})
    def post(self, request: Request, change_id: int) -> HttpResponse:
        by = acting_user(request)
        self.verb(change_id, by=by, comment=read_body(request, move_decoder).comment)
        return shown(change_id)


class ApproveView(APIView):
    """Say yes to somebody else's change, once its impact is known."""

    scopes = {"POST": "operate"}

    @extend_schema(
        operation_id="route_changes_approve",
        request={"application/json": described(ApprovalBody)},
        responses={200: described(ChangeDocument)},
    )
    def post(self, request: Request, change_id: int) -> HttpResponse:
        by = acting_user(request)
        review.approve(change_id, by=by, **msgspec.structs.asdict(read_body(request, approval_decoder)))
        return shown(change_id)


class RebaseView(APIView):
    """Bring a change onto the live table."""

    scopes = {"POST": "operate"}

    @extend_schema(
        operation_id="route_changes_rebase",
        request={"application/json": described(RebaseBody)},
        responses={200: described(ChangeDocument)},
    )
    def post(self, request: Request, change_id: int) -> HttpResponse:
        by = acting_user(request)
        review.rebase(change_id, by=by, **msgspec.structs.asdict(read_body(request, rebase_decoder)))
        return shown(change_id)


class ImpactView(APIView):
    """What a change would do, worked out by a replay of recent calls."""

    scopes = {"GET": OBSERVE}

    @extend_schema(operation_id="route_changes_impact", responses={200: described(ImpactDocument)})
    def get(self, request: Request, change_id: int) -> HttpResponse:
        change = found(change_id)
        return json_response(impact_document(change, impact.latest(change)))


class PublishView(APIView):
    """Make an approved change the live table; answered when this process uses it."""

    scopes = {"POST": "operate"}

    @extend_schema(
        operation_id="route_changes_publish",
        request={"application/json": described(PublishBody)},
        responses={200: described(ChangeDocument)},
    )
    def post(self, request: Request, change_id: int) -> HttpResponse:
        by = acting_user(request)
        asked = read_body(request, publish_decoder)
        if asked.break_glass:
            published = review.break_glass(change_id, by=by, reason=asked.reason or asked.comment)
        else:
            published = review.publish(change_id, by=by, comment=asked.comment)
        snapshot_changes.wait_until_followed(published.version)
        return shown(change_id)


class RevertView(APIView):
    """Draft a new change that undoes a published one."""

    scopes = {"POST": "operate"}

    @extend_schema(
        operation_id="route_changes_revert",
        request={"application/json": described(MoveBody)},
        responses={201: described(ChangeDocument)},
    )
    def post(self, request: Request, change_id: int) -> HttpResponse:
        by = acting_user(request)
        return created(review.revert(change_id, by=by, comment=read_body(request, move_decoder).comment))


def found(change_id: int) -> RouteChange:
    """The change as it now stands. Raises NotFound."""
    change = changes().filter(pk=change_id).first()
    if change is None:
        raise NotFound(f"no route change {change_id}")
    return change


def shown(change_id: int) -> HttpResponse:
    return json_response(change_document(found(change_id)))


def created(change: RouteChange) -> HttpResponse:
    headers = {"Location": f"/api/v1/route-changes/{change.pk}"}
    return json_response(change_document(change), status=201, headers=headers)
