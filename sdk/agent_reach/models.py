"""Frozen values: what an agent offers, what it is asked, what came of a call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

JSONSchema = Mapping[str, Any]
Urgency = Literal["interactive", "normal", "bulk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing that an agent can do. `examples` are payloads; they must fit the input schema."""

    name: str
    input_schema: JSONSchema = field(default_factory=dict)
    output_schema: JSONSchema = field(default_factory=dict)
    description: str = ""
    version: str = ""
    cost_level: Literal["low", "medium", "high"] = "medium"
    rate_limit: float | str | None = None
    """Calls per second and node, or a text like "600/min"."""
    timeout_tier: Literal["light", "medium", "heavy"] = "medium"
    """How long a call may take when its caller names no time: 10, 60 or 600 s."""
    idempotent: bool = False
    """Whether running it twice does no harm: only then is it tried again after an unknown outcome."""
    tags: Sequence[str] = ()
    allow_callers: Sequence[str] = ()
    examples: Sequence[Any] = ()


class CallOptions(TypedDict, total=False):
    """What may be said about a call besides capability and payload."""

    intent: str | None
    tags: Sequence[str]
    urgency: Urgency
    timeout_ms: int | None
    idempotency_key: str | None
    callback_url: str | None
    trace_id: str | None
    parent_call_id: str | None
    labels: Mapping[str, str]
    session_id: str | None
    context: Mapping[str, Any]
    max_retries: int | None
    retry_base_delay_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a call. From `wait` it may also be one that failed (`error`), or has not ended yet."""

    call_id: str
    trace_id: str
    status: str
    output: Any = None
    error: Mapping[str, Any] | None = None
    service_id: str | None = None
    node_id: str | None = None
    route_id: str | None = None
    table_revision: int | None = None
    attempts: int = 0
    duration_ms: int | None = None
    replayed: bool = False

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"

    @property
    def ended(self) -> bool:
        return self.status not in ("accepted", "running")


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """A task as a node receives it. `deadline_s` is a moment of this process's monotonic clock."""

    call_id: str
    trace_id: str
    attempt: int
    capability: str
    payload: Any
    deadline_millis: int
    deadline_s: float
    budget_s: float
    parent_call_id: str | None = None
    caller: str = ""
    origin_caller: str = ""
    idempotency_key: str | None = None
    urgency: str = "normal"
    labels: Mapping[str, str] = field(default_factory=dict)
    session_id: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    traceparent: str | None = None
    """As the header said, unchecked."""


class Registration(NamedTuple):
    """What Agent-Reach answers to a declaration, as far as a node needs it."""

    signing_secret: bytes
    declaration_hash: str | None
    advisories: tuple[Mapping[str, Any], ...]


class NodeError(TypedDict):
    """Why an attempt failed, as a node says it."""

    code: str
    message: str
    retryable: bool
    errors: NotRequired[list[Mapping[str, str]]]
