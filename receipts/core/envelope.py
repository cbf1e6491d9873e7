"""The envelope: what a caller asks for, parsed once, frozen."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec

from receipts.core.trace_context import ParentSpan, parent_span_of, valid_trace_id
from registry.core.strict_json import MAX_CONTAINERS, decode_strict
from registry.errors import InvalidRequest


class Urgency(StrEnum):
    """How soon the caller needs the answer."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BULK = "bulk"


ASYNC_RANKS: Final[Mapping[str, int]] = {Urgency.INTERACTIVE: 0, Urgency.NORMAL: 1, Urgency.BULK: 2}
"""The order in which asynchronous calls that wait are placed."""
UNREAD = "?"
"""What stands for the capability of an intent that has not been read, or fits none; no capability can be named so."""


@dataclass(frozen=True, slots=True, eq=False)
class CallEnvelope:
    """What was asked. Moments are epoch milliseconds by the reach's clock, spans are milliseconds.

    An `intent` in place of a capability is read once, when the call is accepted; until then, and where it fits none,
    the capability is `UNREAD`.
    """

    capability: str
    payload: Any
    caller: str
    received_at_millis: int
    tags: frozenset[str] = frozenset()
    urgency: str = "normal"
    timeout_ms: int | None = None
    idempotency_key: str | None = None
    trace_id: str | None = None
    parent_call_id: UUID | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    session_id: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    max_retries: int | None = None
    retry_base_delay_ms: int | None = None
    intent: str | None = None
    parent_span: ParentSpan | None = None
    """The span of the call's trace that this call hangs below."""
    is_async: bool = False
    """Nobody waits for it: it is placed as soon as a node can take it."""
    callback_url: str | None = None
    """Where its end is told."""

    @property
    def payload_digest(self) -> str:
        """SHA-256 of the canonical payload."""
        return digest_of(self.payload)

    @property
    def request_digest(self) -> str:
        """What makes two requests under one idempotency key "the same": capability or intent, payload, tags, labels."""
        wanted = self.capability if self.intent is None else {"intent": self.intent}
        return digest_of([wanted, self.payload, sorted(self.tags), self.labels])


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON value in canonical form: sorted keys, no spaces."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}\Z")]
ShortText = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]


class EnvelopeBody(msgspec.Struct, frozen=True, gc=False):
    """The wire form (CONTRACT §4). Unknown fields are ignored, so that callers may be newer than the reach."""

    payload: Any
    capability: Name | None = None
    intent: ShortText | None = None
    tags: Annotated[list[ShortText], msgspec.Meta(max_length=32)] = []
    urgency: Literal["interactive", "normal", "bulk"] = "normal"
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] | None = None
    idempotency_key: ShortText | None = None
    mode: Literal["sync", "async"] = "sync"
    callback_url: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
    trace_id: str | None = None
    parent_call_id: UUID | None = None
    labels: Annotated[dict[ShortText, Text], msgspec.Meta(max_length=32)] | None = None
    session_id: ShortText | None = None
    context: dict[str, Any] | None = None
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    retry_base_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] | None = None


body_decoder = msgspec.json.Decoder(EnvelopeBody)


def parse_envelope(
    body: bytes,
    *,
    caller: str,
    received_at_millis: int,
    max_depth: int,
    max_context_bytes: int,
    max_containers: int = MAX_CONTAINERS,
    traceparent: str | None = None,
    idempotency_key: str | None = None,
    prefer: str = "",
) -> CallEnvelope:
    """JSON → CallEnvelope. `traceparent`, `idempotency_key` and `prefer` are the headers that may stand in for fields.

    Raises InvalidRequest naming the field.
    """
    asked = decode_strict(body, body_decoder, max_depth=max_depth, max_containers=max_containers)
    if asked.capability is None and asked.intent is None:
        raise InvalidRequest(
            "capability is required, or an intent", [{"path": "/capability", "message": "is required, or an intent"}]
        )
    if asked.capability is not None and asked.intent is not None:
        raise InvalidRequest(
            "give a capability or an intent, not both", [{"path": "/intent", "message": "not beside a capability"}]
        )
    if asked.intent is not None and not asked.intent.strip():
        raise InvalidRequest("intent is blank", [{"path": "/intent", "message": "is blank"}])
    is_async = asked.mode == "async" or (prefer != "" and prefers_async(prefer))
    if asked.callback_url is not None and not is_async:
        raise InvalidRequest(
            "callback_url goes with mode async: the caller of a sync call has the answer",
            [{"path": "/callback_url", "message": "only with mode async"}],
        )
    if asked.trace_id is not None and not valid_trace_id(asked.trace_id):
        raise InvalidRequest(
            "trace_id must be 32 lower-case hex digits, not all zero", [{"path": "/trace_id", "message": "not 32 hex"}]
        )
    if asked.context and len(msgspec.json.encode(asked.context)) > max_context_bytes:
        raise InvalidRequest(
            f"context is larger than {max_context_bytes} bytes",
            [{"path": "/context", "message": f"over {max_context_bytes} bytes"}],
        )
    if asked.idempotency_key is None and idempotency_key is not None and not 1 <= len(idempotency_key) <= 256:
        raise InvalidRequest(
            "Idempotency-Key must have 1 to 256 characters",
            [{"path": "/idempotency_key", "message": "must have 1 to 256 characters"}],
        )
    parent = parent_span_of(traceparent)
    trace_id = asked.trace_id or (parent.trace_id if parent else None)
    return CallEnvelope(
        capability=asked.capability or UNREAD,
        intent=asked.intent,
        payload=asked.payload,
        caller=caller,
        received_at_millis=received_at_millis,
        tags=frozenset(asked.tags),
        urgency=asked.urgency,
        timeout_ms=asked.timeout_ms,
        idempotency_key=asked.idempotency_key or idempotency_key,
        trace_id=trace_id,
        parent_call_id=asked.parent_call_id,
        labels=asked.labels or {},
        session_id=asked.session_id,
        context=asked.context or {},
        max_retries=asked.max_retries,
        retry_base_delay_ms=asked.retry_base_delay_ms,
        parent_span=parent if parent and parent.trace_id == trace_id else None,
        is_async=is_async,
        callback_url=asked.callback_url,
    )


def prefers_async(prefer: str) -> bool:
    """Whether a `Prefer` header asks for `respond-async` (RFC 7240)."""
    return any(one.partition(";")[0].strip().lower() == "respond-async" for one in prefer.split(","))
