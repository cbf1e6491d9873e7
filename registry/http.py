"""What every JSON view shares: reading a body, answering, pages, and the async view of the hot endpoints."""

import base64
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import RequestDataTooBig, ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from registry.auth import (
    Key,
    SessionAuthentication,
    bearer_of,
    check_scope,
    fetch_key,
    find_key,
    keyring,
)
from registry.clock import now_millis
from registry.core.strict_json import anything, decode_strict
from registry.errors import InvalidRequest, PayloadTooLarge, Unauthenticated, UnsupportedMediaType

T = TypeVar("T")
encode = msgspec.json.Encoder().encode


def json_response(obj: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """An answer whose bytes are ready; moments with a zone become RFC 3339."""
    return HttpResponse(encode(obj), status=status, content_type="application/json", headers=headers)


class EventStream(StreamingHttpResponse):
    """An answer of Server-Sent Events, made while it is sent; whoever sends it closes `chunks` in the end."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str]):
        super().__init__(chunks, content_type="text/event-stream", headers=headers)
        self.chunks = chunks


# --- Bodies ----------------------------------------------------------------------------------------------------------


def read_body(request: Request | HttpRequest, decoder: msgspec.json.Decoder = anything) -> Any:
    """The request's JSON as the decoder's type; no body at all reads as `{}`.

    Raises PayloadTooLarge, UnsupportedMediaType, or InvalidRequest with the place of the mistake.
    """
    try:
        body = request.body
    except RequestDataTooBig:
        raise too_large() from None
    if len(body) > settings.REACH_MAX_BODY_BYTES:  # Django only looks at Content-Length
        raise too_large()
    if body and not is_json(request.META.get("CONTENT_TYPE", "")):
        raise UnsupportedMediaType("send application/json")
    return decode_strict(
        body or b"{}",
        decoder,
        max_depth=settings.REACH_MAX_JSON_DEPTH,
        max_containers=settings.REACH_MAX_JSON_CONTAINERS,
    )


def too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {settings.REACH_MAX_BODY_BYTES} bytes")


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


# --- Pages -----------------------------------------------------------------------------------------------------------

DEFAULT_LIMIT, MAX_LIMIT = 50, 500
cursor_decoder = msgspec.json.Decoder(list[str | int | float])


def page(queryset: QuerySet, request: Request, key_fields: Sequence[str]) -> tuple[list[Any], str | None]:
    """One page of rows, and the cursor of the next. Raises InvalidRequest for a bad `limit` or `cursor`.

    `key_fields` order the list ("-field" descends); together they must be unique.
    """
    limit, after = page_limit(request.GET.get("limit")), request.GET.get("cursor")
    names = [field.lstrip("-") for field in key_fields]
    try:
        if after:
            queryset = queryset.filter(beyond(key_fields, decode_cursor(after, len(names))))
        rows = list(queryset.order_by(*key_fields)[: limit + 1])
    except (ValidationError, ValueError, TypeError) as exc:
        raise invalid_parameter("cursor", "is not one that this list gave") from exc
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode_cursor([value_at(rows[limit - 1], name) for name in names])


def page_response(rows: Sequence[Any], next_cursor: str | None, shown: Callable[[Any], Any]) -> HttpResponse:
    return json_response({"results": [shown(row) for row in rows], "next_cursor": next_cursor})


def page_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_LIMIT):
        raise invalid_parameter("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
    return int(text)


def beyond(key_fields: Sequence[str], values: Sequence[Any]) -> Q:
    """Rows that come after these values in the order of `key_fields`."""
    condition, same = Q(), Q()
    for field, value in zip(key_fields, values, strict=True):
        name = field.lstrip("-")
        condition |= same & Q(**{f"{name}__{'lt' if field.startswith('-') else 'gt'}": value})
        same &= Q(**{name: value})
    return condition


def encode_cursor(values: Sequence[str | int | float | datetime | UUID]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def decode_cursor(text: str, length: int) -> list[Any]:
    try:
        values = cursor_decoder.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError) as exc:
        raise invalid_parameter("cursor", "is not one that this list gave") from exc
    if len(values) != length or any(isinstance(value, str) and "\x00" in value for value in values):
        raise invalid_parameter("cursor", "is not one that this list gave")
    return values


def value_at(row: Any, name: str) -> Any:
    """`service__name` of a row, as the ORM would read it."""
    for part in name.split("__"):
        row = getattr(row, part)
    return row


def invalid_parameter(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{name} {message}", [{"path": f"/{name}", "message": message}])


# --- The async view --------------------------------------------------------------------------------------------------

renderer = JSONRenderer()


class AsyncAPIView(APIView):
    """A DRF view whose handlers are coroutines, for the hot endpoints.

    On the lean handler (`request.lean`) nothing here leaves the event loop: keys come from memory, or by the key
    ring's own connection. Under stock Django a key that memory lacks and a session cost one hop to a thread.
    Handlers answer with ready bytes, so there is nothing to negotiate and nothing to render.
    """

    scopes: Mapping[str, str | tuple[str, ...]] = {}
    ends_with_client = False
    """Whether a client that goes away takes the request with it. A call that was accepted is carried on."""

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """Django's own also makes `head` of `get`, and so ties the view to itself: it would outlive its answer."""
        self.request, self.args, self.kwargs = request, args, kwargs

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.request = asked = Request(request, parsers=NO_PARSERS, negotiator=NEGOTIATOR)
        asked.parser_context.clear()  # for no parser; it holds the request, which would outlive its answer
        try:
            key = await self.identify(asked)
            asked.auth = key
            check_scope(key, self.scopes, request.method or "GET")
            handler = getattr(self, (request.method or "GET").lower(), None)
            if handler is None or request.method not in self.scopes:
                raise exceptions.MethodNotAllowed(request.method)
            return await handler(asked, *args, **kwargs)
        except Exception as exc:  # as DRF does: its exception handler decides, and raises what is a bug
            return rendered(self.handle_exception(exc))

    async def identify(self, request: Request) -> Key:
        """Who is calling. Raises Unauthenticated or Forbidden."""
        lean = getattr(request._request, "lean", False)
        bearer = bearer_of(request.META.get("HTTP_AUTHORIZATION"))
        if bearer is not None:
            if (key := keyring.find(bearer, now_millis())) is not None:
                return key
            if lean or keyring.fetch:
                return await fetch_key(bearer)
            return await sync_to_async(find_key)(bearer)
        found = None if lean else await sync_to_async(SessionAuthentication().authenticate)(request)
        if found is None:
            raise Unauthenticated("a key is needed: Authorization: Bearer <key>")
        return found[1]


NO_PARSERS: tuple[()] = ()
NEGOTIATOR = DefaultContentNegotiation()


def rendered(response: HttpResponse) -> HttpResponse:
    """A DRF Response made ready here: Django would hop to a thread to render it."""
    if isinstance(response, Response) and not response.is_rendered:
        response.accepted_renderer, response.accepted_media_type = renderer, renderer.media_type
        response.renderer_context = {}
        response.render()
    return response


# --- OpenAPI ---------------------------------------------------------------------------------------------------------


class DescribedKey(OpenApiAuthenticationExtension):
    target_class = "registry.auth.KeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key of a service or an operator."}


class DescribedSession(OpenApiAuthenticationExtension):
    target_class = "registry.auth.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}


def described(kind: Any) -> dict[str, Any]:
    """A msgspec type as one self-contained JSON Schema: the rules that read a body also describe it."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inlined(definitions[value["$ref"].rpartition("/")[2]])
            return {name: inlined(item) for name, item in value.items()}
        return [inlined(item) for item in value] if isinstance(value, list) else value

    return inlined(schema)
