"""Calls as they lie in the database after a day of traffic."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from receipts.partitions import lowest_id
from registry import clock

OWNER = UUID(int=7)
COLUMNS = (
    "id", "trace_id", "depth", "caller", "origin_caller", "capability", "status", "route_id", "table_revision",
    "service_id", "node_id", "attempts", "seq", "accepted_at", "ended_at", "deadline", "idempotent", "request",
    "request_digest", "payload_digest", "owner", "epoch", "step", "labels", "mirror_of", "error",
)  # fmt: skip


def stored(count: int = 1, **facts: Any) -> list[UUID]:
    """So many calls, alike but for their ids, spread over the last hour unless `at` says otherwise."""
    return stored_all([facts] * count)


def stored_all(calls: Iterable[dict[str, Any]]) -> list[UUID]:
    """One call for each of these facts; what they do not name has a default."""
    given = list(calls)
    start = clock.now() - timedelta(hours=1)
    rows = [row_of(start + timedelta(hours=1) * n / (len(given) + 1), facts) for n, facts in enumerate(given)]
    with connection.cursor() as cursor:
        holders = ", ".join(["%s"] * len(COLUMNS))
        cursor.executemany(f"INSERT INTO calls ({', '.join(COLUMNS)}) VALUES ({holders})", rows)
    return [row[0] for row in rows]


numbers = iter(range(1, 1 << 60))


def row_of(at: datetime, facts: dict[str, Any]) -> list[Any]:
    at = facts.get("at", at)
    asked = {"payload": facts.get("payload", {}), "tags": facts.get("tags", []), "urgency": "normal", "context": {}}
    asked |= dict.fromkeys(("timeout_ms", "max_retries", "retry_base_delay_ms", "parent_span", "intent"))
    row = {
        "id": UUID(int=lowest_id(at).int | 7 << 76 | 2 << 62 | next(numbers)),
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "depth": 0,
        "caller": "scheduler",
        "origin_caller": "scheduler",
        "capability": "file_summary",
        "status": "succeeded",
        "route_id": "auto",
        "table_revision": 0,
        "service_id": "one",
        "node_id": "n1",
        "attempts": 1,
        "seq": 0,
        "accepted_at": at,
        "ended_at": at + timedelta(milliseconds=facts.get("took_ms", 50)),
        "deadline": at + timedelta(seconds=60),
        "idempotent": False,
        "request": json.dumps(asked),
        "request_digest": "d",
        "payload_digest": "d",
        "owner": OWNER,
        "epoch": 1,
        "step": 1,
        "labels": json.dumps(facts["labels"]) if "labels" in facts else None,
        "mirror_of": None,
        "error": None,
    }
    row |= {key: value for key, value in facts.items() if key in row and key != "labels"}
    return [row[column] for column in COLUMNS]
