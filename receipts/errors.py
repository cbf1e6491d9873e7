"""What can go wrong with calls. Kinds carry facts; `reach_project.problems` turns them into HTTP."""

from uuid import UUID

from receipts.core.ending import Ending
from registry.errors import ReachError


class ReceiptsError(ReachError):
    """Root of this app's errors."""


class CallNotFound(ReceiptsError):
    """No such call, or one that this key may not see."""


class UnknownParent(ReceiptsError):
    """`parent_call_id` names no call of this caller's."""


class IdempotencyConflict(ReceiptsError):
    """The caller has used this key for another request."""

    def __init__(self, key: str, call_id: UUID):
        super().__init__(f"idempotency key {key!r} was used for another request")
        self.key, self.call_id = key, call_id


class ReceiptRefused(ReceiptsError):
    """The receipt contradicts what is known of the call; nothing but a `late_result` was kept."""

    def __init__(self, detail: str, call_id: UUID):
        super().__init__(detail)
        self.call_id = call_id


class CallEnded(ReceiptsError):
    """The call has ended; there is nothing left to cancel."""

    def __init__(self, detail: str, call_id: UUID):
        super().__init__(detail)
        self.call_id = call_id


class NotAgain(ReceiptsError):
    """The call is not one to be done again: it has not ended, it succeeded, it is a copy, or is being done again."""

    def __init__(self, detail: str, call_id: UUID):
        super().__init__(detail)
        self.call_id = call_id


class CallFailed(ReceiptsError):
    """The call ended in vain: how, and which call it was."""

    def __init__(self, ending: Ending, call_id: UUID, trace_id: str, *, replayed: bool):
        super().__init__(ending.detail)
        self.ending, self.call_id, self.trace_id, self.replayed = ending, call_id, trace_id, replayed
