"""What the journal writes: one struct a table, encoded to JSON by msgspec and unpacked by PostgreSQL in one statement.

Moments are epoch milliseconds here; the statements turn them into timestamps.
"""

from typing import Any

import msgspec


class CallRow(msgspec.Struct, omit_defaults=True, gc=False):
    """A new call."""

    id: str
    trace_id: str
    caller: str
    origin_caller: str
    capability: str
    status: str
    table_revision: int
    accepted_ms: int
    deadline_ms: int
    request: str
    request_digest: str
    payload_digest: str
    owner: str
    parent_call_id: str | None = None
    depth: int = 0
    route_id: str | None = None
    service_id: str | None = None
    node_id: str | None = None
    attempts: int = 0
    seq: int = 0
    first_forwarded_ms: int | None = None
    ended_ms: int | None = None
    idempotent: bool = False
    error: str | None = None
    labels: dict[str, str] | None = None
    idempotency_key: str | None = None
    keyed: bool = False
    """Whether the idempotency key is taken with this call (a refusal before any attempt leaves it free)."""
    session_id: str | None = None
    mirror_of: str | None = None
    """The call that this one is a copy of."""
    async_rank: int | None = None
    """Its place by urgency among the calls that wait for an engine; None: somebody waits for this one."""
    callback_url: str | None = None
    redispatch_of: str | None = None
    """The call that this one does again."""


class KeyRow(msgspec.Struct, gc=False):
    """A caller's idempotency key, taken by a call."""

    caller: str
    key: str
    call_id: str
    request_digest: str
    expires_ms: int


class ReceiptRow(msgspec.Struct, omit_defaults=True, gc=False):
    """One receipt; `n` counts from 1 within what is written together, the database adds what came before."""

    call_id: str
    n: int
    kind: str
    at_ms: int
    attempt: int | None = None
    service_id: str | None = None
    node_id: str | None = None
    detail: str | None = None


class MoveRow(msgspec.Struct, omit_defaults=True, gc=False):
    """A change of an open call. Without `owner` it is a node's own receipt, fenced by `fence_attempt` instead, and by
    `fence_seq` where it was judged by the receipts up to that one."""

    id: str
    count: int
    owner: str | None = None
    epoch: int | None = None
    step: int | None = None
    fence_attempt: int | None = None
    fence_seq: int | None = None
    status: str | None = None
    ended_ms: int | None = None
    capability: str | None = None
    """Where a fallback rule has handed the call to another one."""
    route_id: str | None = None
    table_revision: int | None = None
    service_id: str | None = None
    node_id: str | None = None
    attempts: int | None = None
    idempotent: bool | None = None
    first_forwarded_ms: int | None = None
    output: str | None = None
    error: str | None = None
    due_ms: int | None = None
    tell_owner: bool = False


def columns(struct: type[msgspec.Struct]) -> str:
    """The column definition list of `json_to_recordset` for a struct."""
    sql = {"dict": "jsonb", "str": "text", "int": "bigint", "bool": "boolean"}
    named = []
    for name, kind in struct.__annotations__.items():
        plain = next(word for word in sql if word in str(kind))
        named.append(f"{name} {'uuid' if name in UUIDS else sql[plain]}")
    return ", ".join(named)


UUIDS = frozenset({"id", "call_id", "parent_call_id", "mirror_of", "redispatch_of", "owner"})
json_of: Any = msgspec.json.Encoder().encode
