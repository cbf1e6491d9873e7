"""Requests that were refused and left no call, counted by key, problem code and minute.

Counting is a dictionary in memory, because floods are when it matters; whoever owns the process stores it from time
to time.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

counted: Counter[tuple[str, str, int]] = Counter()
by_code: Counter[str] = Counter()
"""All of this process, never taken away: what `/metrics` shows."""


def count(key_id: str, code: str, now_s: float) -> None:
    """One more refusal; `key_id` is empty where nobody was recognised."""
    counted[key_id, code, int(now_s) // 60 * 60] += 1
    by_code[code] += 1


def taken() -> list[tuple[str, str, datetime, int]]:
    """What has been counted since the last time, as rows; counting starts anew."""
    rows = []
    for key in list(counted):
        key_id, code, minute = key
        rows.append((key_id, code, datetime.fromtimestamp(minute, UTC), counted.pop(key)))
    return rows


store_sql = """
    INSERT INTO registry_refusalcount (key_id, code, minute, count)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::timestamptz[], %s::bigint[])
    ON CONFLICT (key_id, code, minute) DO UPDATE SET count = registry_refusalcount.count + excluded.count"""
"""Adds rows to what is stored; takes `columns(rows)`."""


def columns(rows: Sequence[tuple[str, str, datetime, int]]) -> list[list]:
    """Rows as the parameters of `store_sql`, in one order everywhere so that writers do not deadlock."""
    return [list(column) for column in zip(*sorted(rows), strict=True)]
