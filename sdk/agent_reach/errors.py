"""One exception tree: what is refused, what cannot be reached, what is written wrongly, what a handler says."""

from collections.abc import Mapping
from typing import Any, ClassVar


class ReachError(Exception):
    """Root of everything this package raises on purpose. A fact that is not known is None, or empty."""

    code: str = ""
    advice: ClassVar[str] = ""
    """What to do about it; ends the message."""

    def __init__(
        self,
        detail: str = "",
        *,
        code: str | None = None,
        status: int | None = None,
        errors: tuple[Mapping[str, str], ...] = (),
        call_id: str | None = None,
        trace_id: str | None = None,
        retry_after_s: float | None = None,
        outcome_unknown: bool = False,
        upstream: Mapping[str, Any] | None = None,
    ):
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code
        self.status = status
        self.errors = errors
        self.call_id, self.trace_id = call_id, trace_id
        self.retry_after_s = retry_after_s
        self.outcome_unknown = outcome_unknown
        self.upstream = upstream

    def __str__(self) -> str:
        parts = [f"{self.code}: {self.detail}" if self.code else self.detail]
        parts += [
            f"{error.get('path', '')} {error.get('message', '')}".strip()
            for error in self.errors
            if error.get("path", "") not in self.detail
        ]
        parts += [self.advice] if self.advice else []
        parts += [f"call {self.call_id}"] if self.call_id else []
        return "; ".join(parts)


# --- What Agent-Reach answers: one class per problem code -------------------------------------------------------------


class Problem(ReachError):
    """Agent-Reach said no. Its subclasses are its problem codes; a code of a newer version stays a plain Problem."""


class InvalidRequest(Problem):
    """The request itself is malformed; `errors` names the places."""


class Unauthenticated(Problem):
    """No key, or one that Agent-Reach does not know (any more)."""

    advice = (
        "pass api_key=… or set REACH_API_KEY; an operator makes a key with "
        "`manage.py reach_key create --service SERVICE --scopes register,dispatch`"
    )


class Forbidden(Problem):
    """The key is known and may not do this."""

    advice = "use a key of this very service with the scope named here, or have the capability's allow_callers extended"


class NotFound(Problem):
    """There is no such thing."""


class UnknownCapability(Problem):
    """Nobody has ever declared this capability."""

    advice = "check its spelling; `agent-reach services` lists what is offered"


class MethodNotAllowed(Problem):
    """Agent-Reach is older than this client, or something between them changes requests."""


class Conflict(Problem):
    """The thing is not in a state that allows this."""


class IdempotencyConflict(Problem):
    """The same idempotency_key came before with a different request."""

    advice = "use one idempotency_key for one piece of work"


class LoopDetected(Problem):
    """The chain of calls is too deep, or the same task is already open above this one."""


class PayloadTooLarge(Problem):
    """The body is larger than Agent-Reach takes."""

    advice = "send a reference (a path, a URL) instead of the content"


class UnsupportedMediaType(Problem):
    """The body was not sent as JSON."""


class InvalidPayload(Problem):
    """The payload fails the input schema of every candidate; `errors` names the places."""


class RateLimited(Problem):
    """Every able node is at its limit; `retry_after_s` says when to come back."""


class InternalError(Problem):
    """A mistake of Agent-Reach's own; its log has the details."""


class UpstreamError(Problem):
    """The last attempt failed; `upstream` holds the node's own error."""


class InvalidOutput(Problem):
    """The node's answer fails the output schema."""


class NoAvailableNode(Problem):
    """Nothing able and ready."""

    advice = "`agent-reach nodes` shows why each node is out"


class CircuitOpen(Problem):
    """The only able services failed too often just now and are left alone for a moment."""


class Overloaded(Problem):
    """Agent-Reach sheds load; nothing was recorded."""


class Unavailable(Problem):
    """The database of Agent-Reach is away; nothing was accepted."""


class DeadlineExceeded(Problem):
    """The budget is spent; with `outcome_unknown` a node may still be working."""


class Cancelled(Problem):
    """The call was cancelled before it ended."""


PROBLEMS: dict[str, type[Problem]] = {
    "invalid_request": InvalidRequest,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "unknown_capability": UnknownCapability,
    "method_not_allowed": MethodNotAllowed,
    "conflict": Conflict,
    "idempotency_conflict": IdempotencyConflict,
    "loop_detected": LoopDetected,
    "payload_too_large": PayloadTooLarge,
    "unsupported_media_type": UnsupportedMediaType,
    "invalid_payload": InvalidPayload,
    "rate_limited": RateLimited,
    "internal_error": InternalError,
    "upstream_error": UpstreamError,
    "invalid_output": InvalidOutput,
    "no_available_node": NoAvailableNode,
    "circuit_open": CircuitOpen,
    "overloaded": Overloaded,
    "unavailable": Unavailable,
    "deadline_exceeded": DeadlineExceeded,
    "cancelled": Cancelled,
}
for _code, _class in PROBLEMS.items():
    _class.code = _code


# --- What never came to an answer ------------------------------------------------------------------------------------


class Unreachable(ReachError):
    """No answer came. With `outcome_unknown` the request was sent: it may have been carried out."""

    code = "unreachable"


class NotAgentReach(Unreachable):
    """Something answers at that address, but it is not Agent-Reach."""

    code = "not_agent_reach"


# --- What is written wrongly -----------------------------------------------------------------------------------------


class NotSigned(ReachError):
    """What came is not signed by Agent-Reach, or too old."""

    code = "not_signed"


class SetupError(ReachError):
    """The agent cannot start as it is written; the message says what to change."""


class NotJson(ReachError, ValueError):
    """A value that JSON cannot carry."""


# --- What a handler may say ------------------------------------------------------------------------------------------


class TaskFailed(ReachError):
    """Raised by a handler: the task failed, for this reason.

    `retryable=True` lets Agent-Reach try another node, if the capability is declared idempotent.
    """

    def __init__(self, code: str, message: str = "", retryable: bool = False):
        super().__init__(message, code=code)
        self.retryable = retryable


class Refuse(ReachError):
    """Raised by a handler that has not begun: this node cannot take the task now, another one may."""

    def __init__(self, message: str = "this node cannot take the task now", code: str = "refused"):
        super().__init__(message, code=code)
