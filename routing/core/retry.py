"""Whether an attempt may be repeated, and when."""

from receipts.core.journey import Ended, Outcome


def may_repeat(outcome: Outcome, *, idempotent: bool) -> bool:
    """Whether a further attempt cannot do harm (DESIGN §7).

    What has not started may always be tried again; what may have worked only if the capability is idempotent;
    a node's `retryable: false` always wins. A refused or oversized output will not get better.
    """
    if outcome.retryable is False:
        return False
    match outcome.ended:
        case Ended.NOT_STARTED:
            return True
        case Ended.BROKEN | Ended.SILENT:
            return idempotent
        case Ended.FAILED:
            return idempotent and bool(outcome.retryable)
        case _:
            return False


def backoff_ms(retry: int, *, base_ms: int, chance: float) -> int:
    """Milliseconds before retry number `retry` (the first is 1): base · 2^(retry-1) · [0.5, 1.5).

    `chance` is uniform in [0, 1), drawn by the caller. Raises ValueError when `retry` is below 1.
    Source: the article's fix of its retry storm: a base delay times a random factor.
    """
    if retry < 1:
        raise ValueError(f"retry {retry} is below 1")
    return round(base_ms * 2 ** (retry - 1) * (0.5 + chance))
