"""Closed, open, half-open: whether a service or a node may be sent anything, by how its last attempts went.

Pure: what was seen goes in, the next value comes out. Time is the reach's clock in seconds, so that processes can share
openings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from receipts.core.journey import Ended, NodeKey, Outcome


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """The rest is over: one attempt is let through to see."""
    TRYING = "trying"
    """That attempt is under way; until it has ended nothing else is sent."""


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens, and for how long."""

    min_calls: int
    window_s: float = 10.0
    error_share: float = 0.5
    open_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """One breaker: attempts and errors of each second in the window, oldest first; since when it is open."""

    seconds: tuple[tuple[int, int, int], ...] = ()
    """(second, attempts, errors)"""
    since_s: float = 0.0
    """What began before tells nothing: it was sent before the breaker opened."""
    opened_at_s: float | None = None
    trial_at_s: float | None = None
    """When the attempt of the half-open breaker was let through."""
    opened_by: tuple[int, int] = (0, 0)
    """The attempts and the errors that opened it."""

    def state(self, rules: BreakerRules, now_s: float) -> State:
        if self.opened_at_s is None:
            return State.CLOSED
        if now_s < self.opened_at_s + rules.open_s:
            return State.OPEN
        trying = self.trial_at_s is not None and now_s < self.trial_at_s + rules.open_s
        return State.TRYING if trying else State.HALF_OPEN

    def turns_at_s(self, rules: BreakerRules, now_s: float) -> float:
        """When its state changes by time alone; now when it is not shut."""
        if self.opened_at_s is None:
            return now_s
        return max(now_s, self.opened_at_s + rules.open_s, (self.trial_at_s or 0.0) + rules.open_s)

    def counts(self, rules: BreakerRules, now_s: float) -> tuple[int, int]:
        """Attempts and errors in the window that ends now."""
        since_s = now_s - rules.window_s
        attempts = errors = 0
        for second, more_attempts, more_errors in self.seconds:
            if second > since_s:
                attempts += more_attempts
                errors += more_errors
        return attempts, errors


FRESH = Breaker()


def after_attempt(breaker: Breaker, rules: BreakerRules, *, failed: bool, began_s: float, now_s: float) -> Breaker:
    """The breaker after an attempt that began at `began_s` has ended.

    Closed: it is counted, and opens the breaker with more than `error_share` errors of at least `min_calls`. The trial
    of a half-open one closes it with nothing remembered, or opens it anew. What was sent before it opened changes
    nothing, however late it ends.
    """
    if began_s < breaker.since_s:
        return breaker
    if breaker.opened_at_s is not None:
        return opened(breaker, rules, (1, 1), now_s) if failed else Breaker(since_s=breaker.since_s)
    return with_more(breaker, rules, 1, int(failed), now_s)


def with_more(breaker: Breaker, rules: BreakerRules, attempts: int, errors: int, now_s: float) -> Breaker:
    """The breaker with so many more attempts and errors; open when these are too many. An open one counts nothing."""
    if breaker.opened_at_s is not None:
        return breaker
    second, seconds = int(now_s), breaker.seconds
    if seconds and seconds[-1][0] == second:
        _, known_attempts, known_errors = seconds[-1]
        seconds = (*seconds[:-1], (second, known_attempts + attempts, known_errors + errors))
    else:
        kept = tuple(one for one in seconds if one[0] > now_s - rules.window_s)
        seconds = (*kept, (second, attempts, errors))
    counted = Breaker(seconds, breaker.since_s)
    if errors:
        counts = counted.counts(rules, now_s)
        if counts[0] >= rules.min_calls and counts[1] > rules.error_share * counts[0]:
            return opened(breaker, rules, counts, now_s)
    return counted


def opened(breaker: Breaker, rules: BreakerRules, by: tuple[int, int], at_s: float) -> Breaker:
    """The breaker as it opens at `at_s`, or opened elsewhere then.

    An opening that is older than its own, or the same as others have seen it, changes nothing.
    """
    if at_s + rules.open_s / 2 < breaker.since_s:
        return breaker
    return Breaker(since_s=at_s + rules.open_s, opened_at_s=at_s, opened_by=by)


def tried(breaker: Breaker, now_s: float) -> Breaker:
    """The half-open breaker whose one attempt is let through now."""
    return replace(breaker, trial_at_s=now_s)


def trial_lost(breaker: Breaker) -> Breaker:
    """The attempt that was let through told nothing (it never left, or its call ended elsewhere): another may try."""
    return replace(breaker, trial_at_s=None)


# --- What a decision sees of them ------------------------------------------------------------------------------------

OF_SERVICE = ""
"""In the place of a node's name: the breaker of the whole service."""
NODE_SHUT = "its breaker is open"
SERVICE_SHUT = "the breaker of its service is open"


@dataclass(frozen=True, slots=True)
class Shut:
    """A breaker through which nothing goes now, and until when (s by the reach's clock; a trial may end sooner)."""

    state: State
    until_s: float
    attempts: int = 0
    errors: int = 0


Shuts = Mapping[NodeKey, Shut]
"""By the node's key; a service's own has `OF_SERVICE` for the node."""


def shut_note(key: NodeKey, shut: Shut, now_s: float) -> str:
    """What a receipt says of a breaker."""
    service_id, node_id = key
    name = f"the breaker of {service_id}/{node_id}" if node_id else f"the breaker of service {service_id}"
    if shut.state is State.OPEN:
        left_s = max(0.0, shut.until_s - now_s)
        by = f" after {shut.errors} errors of {shut.attempts}" if shut.attempts > 1 else ""
        return f"{name} is open{by}: one attempt may try again in {left_s:.1f} s"
    return f"{name} is half-open: whether one attempt succeeds is being tried"


# --- What counts -----------------------------------------------------------------------------------------------------


def is_error(outcome: Outcome, elapsed_s: float, *, least_timeout_s: float) -> bool | None:
    """Whether an attempt speaks against its node; None where it says nothing of it.

    Against it: no connection, a broken one, silence, 5xx (503 too), an answer from something else at its address, a
    failure that it reports as worth repeating. For it: success, 4xx, and 429, with which it shows that it works. An
    answer that the output schema refuses or that is too large is the capability's trouble, not the node's health. A
    deadline that left it less than `least_timeout_s` is its caller's doing; what we have not sent, or are to blame for,
    says nothing.
    """
    if outcome.unsent or outcome.ours:
        return None
    match outcome.ended:
        case Ended.SUCCEEDED | Ended.INVALID_OUTPUT | Ended.TOO_LARGE:
            return False
        case Ended.BROKEN | Ended.SILENT:
            return True
        case Ended.TIMED_OUT:
            return True if elapsed_s >= least_timeout_s else None
        case Ended.NOT_STARTED:
            return outcome.http_status != 429
        case Ended.FAILED if outcome.http_status is None:
            return outcome.retryable is not False
        case Ended.FAILED:
            return outcome.http_status not in range(400, 500)
        case _:
            return None
