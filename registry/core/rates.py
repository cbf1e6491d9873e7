"""Rates as people write them, in calls per second."""

import math
import re

SECONDS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}
RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*([a-z]+)\s*")


def parse_rate(value: int | float | str | None) -> float | None:
    """Calls per second: `10`, `0.5`, "600/min"; None = unlimited. Raises ValueError with a sentence."""
    if value is None:
        return None
    if isinstance(value, str):
        found = RATE.fullmatch(value)
        if found is None or found[2] not in SECONDS:
            raise ValueError(f'must be a number of calls per second or like "600/min" (units {", ".join(SECONDS)})')
        per_second = float(found[1]) / SECONDS[found[2]]
    else:
        per_second = float(value)
    if not (math.isfinite(per_second) and per_second > 0):
        raise ValueError("must be above 0; leave it out for unlimited")
    return per_second
