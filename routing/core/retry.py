"""Whether an attempt may be repeated, when, and whether its service can bear it."""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """Retries of a service: at most this share of its recent calls, and `floor` in any case."""

    share: float = 0.2
    floor: int = 10
    window_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Calls of a service and the retries that their failures made, by second, oldest first."""

    seconds: tuple[tuple[int, int, int], ...] = ()
    """(second, calls, retries)"""

    def counts(self, rules: BudgetRules, now_s: float) -> tuple[int, int]:
        """Calls and retries in the window that ends now."""
        since_s = now_s - rules.window_s
        recent = [(calls, retries) for second, calls, retries in self.seconds if second > since_s]
        return sum(calls for calls, _ in recent), sum(retries for _, retries in recent)

    def left(self, rules: BudgetRules, now_s: float) -> int:
        """How many retries may be made now."""
        calls, retries = self.counts(rules, now_s)
        return max(rules.floor, int(rules.share * calls)) - retries

    def after(self, rules: BudgetRules, now_s: float, *, calls: int = 0, retries: int = 0) -> "Budget":
        """The budget with so many more calls and retries in this second."""
        second, seconds = int(now_s), self.seconds
        if seconds and seconds[-1][0] == second:
            _, known_calls, known_retries = seconds[-1]
            return Budget((*seconds[:-1], (second, known_calls + calls, known_retries + retries)))
        kept = tuple(one for one in seconds if one[0] > now_s - rules.window_s)
        return Budget((*kept, (second, calls, retries)))


def spent_sentence(service_id: str, budget: Budget, rules: BudgetRules, now_s: float) -> str:
    calls, retries = budget.counts(rules, now_s)
    return f"the retry budget of {service_id} is spent: {retries} retries for {calls} calls in {rules.window_s:g} s"
