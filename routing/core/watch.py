"""Do the calls that a published change moves fare worse than before? Counts in, verdict with its sentence out. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Z = 3.29
"""Standard deviations: a share counts from where it lies with 99.95 % certainty. It is looked at again and again."""


class WatchStatus(StrEnum):
    """How the watch of a published change stands."""

    WATCHING = "watching"
    FINE = "fine"
    """It ended, and nothing was worse."""
    UNTRIED = "untried"
    """It ended, and too few calls had come to say anything."""
    WORSE = "worse"
    """The calls fare worse: the alert stands on the change."""
    REVERTED = "reverted"
    """They did, and the change was taken back."""
    SUPERSEDED = "superseded"
    """Another revision was published meanwhile, whose own watch goes on."""


@dataclass(frozen=True, slots=True)
class Fared:
    """Ended calls, and how they fared. `troubled`: they failed, or needed more than one attempt."""

    calls: int = 0
    troubled: int = 0
    median_ms: float | None = None
    """Of those that succeeded."""

    @property
    def share(self) -> float:
        return self.troubled / self.calls if self.calls else 0.0


NONE = Fared()


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on calls fare worse (settings of these names, REACH_WATCH_…)."""

    min_calls: int = 20
    worse_by: float = 0.05
    """So much more of the calls are troubled (0 to 1)…"""
    slower_by: float = 2.0
    """…or the median takes so many times as long…"""
    slower_ms: float = 200.0
    """…and at least so much longer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`enough`: there were calls enough to say something. `why`: what is worse, empty where nothing is."""

    enough: bool
    why: str = ""


def judge(
    before: Fared,
    after: Fared,
    thresholds: Thresholds,
    *,
    services_before: Mapping[str, Fared],
    services_after: Mapping[str, Fared],
) -> Verdict:
    """Compare all calls of the change, then those of each service: one in trouble may have a small part of the calls.

    A service is held against itself where it had such calls before, else against all of them. A quarter of `min_calls`
    will do for it: after five failures in a row its breaker lets no more through.
    """
    groups = [("calls on the changed routes", before, after)]
    for service, fared in sorted(services_after.items()):
        own = services_before.get(service, NONE)
        groups.append((f"calls at {service}", own if own.calls >= thresholds.min_calls else before, fared))
    enough = after.calls >= thresholds.min_calls
    for who, old, new in groups:
        needed = thresholds.min_calls if who == groups[0][0] else thresholds.min_calls / 4
        if new.calls < needed:
            continue
        enough = True
        if low_bound(new.troubled, new.calls) > old.share + thresholds.worse_by:
            return Verdict(True, f"{new.share:.0%} of {new.calls} {who} fail or need a retry, before {old.share:.0%}")
        slow, quick = new.median_ms, old.median_ms
        if slow is None or quick is None or min(new.calls, old.calls) < thresholds.min_calls:
            continue
        if slow > thresholds.slower_by * quick and slow - quick > thresholds.slower_ms:
            return Verdict(True, f"{who} take {slow:.0f} ms in the median, before {quick:.0f} ms")
    return Verdict(enough)


def low_bound(hits: int, count: int) -> float:
    """The least share that so many hits are compatible with.

    Source: E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22, 1927.
    """
    if not count:
        return 0.0
    share = hits / count
    middle = share + Z * Z / (2 * count)
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return max(0.0, (middle - spread) / (1 + Z * Z / count))
