"""What has happened to a call since it was asked: the second of the two frozen values that travel the hot path."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from receipts.core.envelope import CallEnvelope

NodeKey = tuple[str, str]


class Ended(StrEnum):
    """How one attempt went."""

    SUCCEEDED = "succeeded"
    NOT_STARTED = "not_started"
    """DNS, connect or TLS failed, or the node said 429 or 503: it has not begun."""
    FAILED = "failed"
    """The node said so itself."""
    BROKEN = "broken"
    """The connection broke, or something in between answered: the node may have worked."""
    SILENT = "silent"
    """It reported progress once and then no more."""
    TIMED_OUT = "timed_out"
    """The call's deadline came first."""
    INVALID_OUTPUT = "invalid_output"
    TOO_LARGE = "too_large"
    ACKNOWLEDGED = "acknowledged"
    """202: it works on, receipts follow."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt's end. `error` is the node's own error document, `reason` our sentence about it."""

    ended: Ended
    reason: str = ""
    output: Any = None
    error: dict[str, Any] | None = None
    retryable: bool | None = None
    http_status: int | None = None
    errors: tuple[dict[str, str], ...] = ()
    recorded: bool = False
    """Its `attempt_failed` receipt is already in the database (the node posted it)."""
    unreached: bool = False
    """The way to the node failed (no connection, a broken one, a stranger's 502 or 504): it may be gone."""

    ours: bool = False
    """The reach itself has failed, not the node."""

    @property
    def costs_budget(self) -> bool:
        """Whether a further attempt is charged to the service of this one: it was sent, and it was the node's turn."""
        return not (self.ours or self.unsent)

    @property
    def unsent(self) -> bool:
        """Whether no envelope has left: we saw before that it would be in vain."""
        return self.ended is Ended.NOT_STARTED and not self.unreached and self.http_status is None

    @property
    def unknown(self) -> bool:
        """Whether the node may have done the work, or may still be doing it."""
        return self.ended in (Ended.BROKEN, Ended.SILENT, Ended.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt that has ended."""

    number: int
    node: NodeKey
    route_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A call above this one that is still open."""

    call_id: UUID
    service_id: str | None
    capability: str
    payload_digest: str


@dataclass(frozen=True, slots=True)
class Journey:
    """A call under way. Moments are epoch milliseconds by the reach's clock."""

    envelope: CallEnvelope
    call_id: UUID
    trace_id: str
    origin_caller: str
    deadline_millis: int | None = None
    """Set by the first decision, which knows the capability's tier."""
    parent_deadline_millis: int | None = None
    depth: int = 0
    ancestors: tuple[Ancestor, ...] = ()
    tried: tuple[Tried, ...] = ()
    routes_left: int = 0
    """How many of the matching routes have been given up by `next_route`."""
    used_fallbacks: frozenset[tuple[str, int]] = frozenset()
    """Route and place of each fallback rule that has been applied: none is applied twice."""
    handed_to: str | None = None
    """The service that a fallback rule has handed the call to; it replaces those of the route."""
    first_forwarded_at_millis: int | None = None
    waited: int = 0
    """The number of the last attempt after which the backoff has been waited for."""
    reading: Mapping[str, Any] | None = None
    """How the envelope's intent was read, as `routed` shows it."""
    mirror_of: UUID | None = None
    """The call that this one is a copy of: nobody waits for it, and nothing is learnt from it."""
    idempotent: bool = False
    """Whether the last attempt's node declared the capability so."""

    @property
    def attempts(self) -> int:
        return self.tried[-1].number if self.tried else 0

    @property
    def last(self) -> Tried | None:
        return self.tried[-1] if self.tried else None

    def after(self, tried: Tried) -> "Journey":
        """The journey with one more attempt behind it."""
        return replace(self, tried=(*self.tried, tried))
