"""What an open call's receipts say about how far it got, for whoever takes it over."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from receipts.core.lifecycle import Kind


@dataclass(frozen=True, slots=True)
class Seen:
    """The few facts of a receipt that recovery needs."""

    kind: str
    attempt: int | None
    service_id: str | None
    node_id: str | None
    detail: str | None


class Takeover(StrEnum):
    """What to do with a call whose process is gone."""

    EXPIRE = "expire"
    """Its deadline has passed."""
    GO_ON = "go_on"
    """No attempt is open: decide the next step as usual."""
    FOLLOW = "follow"
    """The open attempt still reports, or cannot be repeated: wait for receipts."""
    REPEAT = "repeat"
    """The open attempt's outcome is unknown and the capability is idempotent."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The attempts of a call: those that have ended, and the one still open, if any."""

    failed: tuple[Seen, ...]
    open: Seen | None
    running: bool
    fallbacks: tuple[Seen, ...] = ()
    """The fallback rules that were applied."""


def progress_of(receipts: Sequence[Seen]) -> Progress:
    """Fold receipts, in order, into the attempts' state."""
    failed: list[Seen] = []
    open_attempt: Seen | None = None
    running = False
    fallbacks: list[Seen] = []
    for receipt in receipts:
        if receipt.kind == Kind.FORWARDED:
            open_attempt, running = receipt, False
        elif receipt.kind == Kind.ATTEMPT_FAILED:
            failed.append(receipt)
            if open_attempt is not None and open_attempt.attempt == receipt.attempt:
                open_attempt = None
        elif receipt.kind == Kind.FALLBACK:
            fallbacks.append(receipt)
        elif receipt.kind in (Kind.RUNNING, Kind.ACKNOWLEDGED):
            running = True
    return Progress(tuple(failed), open_attempt, running and open_attempt is not None, tuple(fallbacks))


def takeover(
    progress: Progress, *, idempotent: bool, deadline_millis: int, repeat_until_millis: int, now_millis: int
) -> Takeover:
    """Decide what becomes of an orphaned call (DESIGN §5).

    From `repeat_until_millis` on no further attempt starts: then only its node can tell how the open one ends.
    """
    if now_millis >= deadline_millis:
        return Takeover.EXPIRE
    if progress.open is None:
        return Takeover.GO_ON
    if progress.running or not idempotent or now_millis >= repeat_until_millis:
        return Takeover.FOLLOW
    return Takeover.REPEAT
