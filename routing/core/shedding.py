"""When a dispatcher has too much to do, and whose calls it refuses first. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from receipts.core.envelope import Urgency

SHED_AT: Final[Mapping[str, float]] = {Urgency.BULK: 0.8, Urgency.NORMAL: 0.95, Urgency.INTERACTIVE: 1.0}
"""Of a bound: so much of it, and calls of this urgency are refused. What can wait yields first."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one process takes on (settings of the same names)."""

    max_in_flight: int
    max_waiting_rows: int
    max_bytes_in_flight: int


def overload(urgency: str, bounds: Bounds, *, in_flight: int, waiting_rows: int, bytes_in_flight: int) -> str | None:
    """Why a new call of this urgency is refused; None: there is room for it."""
    share = SHED_AT[urgency]
    for count, what, most in (
        (in_flight, "calls are in flight", bounds.max_in_flight),
        (waiting_rows, "rows wait to be written", bounds.max_waiting_rows),
        (bytes_in_flight, "bytes of calls are in flight", bounds.max_bytes_in_flight),
    ):
        if count >= share * most:
            return f"{count} {what} here; {urgency} calls are taken up to {share * 100:g} % of {most}"
    return None
