"""Call statuses, receipt kinds, and which receipt moves a call where."""

from enum import StrEnum


class CallStatus(StrEnum):
    """Where a call stands; the last five never change."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


TERMINAL = frozenset(
    {CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.TIMED_OUT, CallStatus.CANCELLED, CallStatus.REJECTED}
)

OPEN = frozenset(CallStatus) - TERMINAL


class Kind(StrEnum):
    """What a receipt says."""

    ACCEPTED = "accepted"
    ROUTED = "routed"
    FORWARDED = "forwarded"
    ACKNOWLEDGED = "acknowledged"
    RUNNING = "running"
    ATTEMPT_FAILED = "attempt_failed"
    RETRY_SCHEDULED = "retry_scheduled"
    FALLBACK = "fallback"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    LATE_RESULT = "late_result"
    RECOVERED = "recovered"


def ending(code: str | None, *, attempted: bool) -> CallStatus:
    """The terminal status of a call that ends with problem `code` (None: it succeeded).

    What ends before any attempt is `rejected`; a spent deadline is `timed_out`; a cancel is `cancelled`.
    """
    if code is None:
        return CallStatus.SUCCEEDED
    if code == "cancelled":
        return CallStatus.CANCELLED
    if code == "deadline_exceeded":
        return CallStatus.TIMED_OUT
    return CallStatus.FAILED if attempted else CallStatus.REJECTED
