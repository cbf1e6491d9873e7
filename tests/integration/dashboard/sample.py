"""A reach in use: nodes of every kind, keys, routes, and calls with every kind of receipt."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.contrib.auth.models import Group, User
from django.db import connection

from receipts.models import Call
from receipts.partitions import lowest_id
from registry import services
from registry.auth import Key
from registry.core.node import AdminState, Health
from registry.models import Node, NodeLease
from registry.serializers import NodeBody
from routing import replay, review
from routing.core.advisories import Kind
from routing.core.pool import WHY_SPARED
from routing.core.tables import Tables
from routing.models import Advisory

SUMMARY = {
    "name": "file_summary",
    "version": "1.0.0",
    "description": "summarises",
    "input": {"type": "object", "required": ["file_path"]},
    "output": {"type": "object"},
    "rate_limit": 10,
    "tags": ["docs"],
    "allow_callers": ["scheduler"],
    "examples": [{"file_path": "/a"}],
}
OWNER = UUID(int=7)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def a_person(name: str, *groups: str, superuser: bool = False) -> User:
    services.ensure_groups()
    user = User.objects.create(username=name, is_staff=True, is_superuser=superuser)
    user.groups.set(Group.objects.filter(name__in=groups))
    return user


def a_node(service_id: str = "doc-summarizer", node_id: str = "a", **body: Any) -> Node:
    declared = {"address": "http://127.0.0.1:1", "capabilities": [SUMMARY]} | body
    key = Key("k", service_id, None, None, frozenset({"register"}))
    return services.register_node(service_id, node_id, msgspec.convert(declared, NodeBody), by=key).node


def nodes_of_every_kind() -> None:
    ready = a_node("doc-summarizer", "a", tags=["prod"], version="1.4", metadata={"gpu": True}, max_concurrency=8)
    Node.objects.filter(pk=ready.pk).update(health=Health.READY, health_reason="", operator_weight=20)
    sick = a_node("doc-summarizer", "b", requires=["data_query"])
    reason = "says it is not ready: gpu"
    Node.objects.filter(pk=sick.pk).update(health=Health.NOT_READY, health_reason=reason)
    Node.objects.filter(pk=a_node("llm", "c").pk).update(admin_state=AdminState.DRAINING)
    Node.objects.filter(pk=a_node("llm", "d").pk).update(admin_state=AdminState.DISABLED)
    NodeLease.objects.filter(node=a_node("llm", "e", endpoints={"ready": None})).update(expired=True)
    a_node("llm", "f", capabilities=[SUMMARY | {"version": "2", "rate_limit": None}])


def a_revision(author: User, approver: User) -> None:
    """Two revisions, and a change that waits for review."""
    matches: list[dict[str, Any]] = [
        {"capability": "file_summary", "tags": ["prod"], "input.kind": ["x", "y"], "input.n": {"gte": 1, "lt": 9}},
        {
            "capability": "file_*",
            "caller": "scheduler",
            "labels.l": ["x", "z"],
            "input.ne": {"ne": "z", "exists": True},
        },
        {"capability": {"fuzzy": "summary", "min_score": 0.5}, "input.p": {"prefix": "q"}, "input.r": {"pattern": "s"}},
        {"input.gone": {"exists": False}, "input.m": {"gt": 1, "lte": 2}, "input.one": {"in": [1, 2]}},
        {},
        {"caller": "scheduler"},
        {"urgency": "normal"},
        {"input.p": "q"},
    ]
    strategies: list[dict[str, Any]] = [
        {"type": "latency_aware", "services": ["doc-summarizer"]},
        {"type": "weighted_random", "weights": {"doc-summarizer": 40, "llm": 60}},
        {"type": "exact", "service": "llm"},
        {"type": "least_loaded"},
        {"type": "weighted_random"},
        {"type": "sticky", "key": "labels.l"},
        {"type": "cost_aware"},
        {"type": "fuzzy", "services": ["llm"]},
    ]
    extras: list[dict[str, Any]] = [
        {"node_tags": ["prod"], "node_version": ">=1", "timeout_ms": 500, "retry": {"max_retries": 1}},
        {"fallback_rules": [{"condition": c, "action": "return_503", "wait_before_retry_ms": 50} for c in CONDITIONS]},
        {"fallback_rules": [{"condition": "error", "action": "next_route"}], "allow_callers": ["scheduler"]},
        {"enabled": False, "description": "for later"},
        {},
        {"canary": {"service": "llm", "percent": 2.5, "sticky_by": "caller"}},
        {"fallback_rules": [{"condition": "error", "action": "retry", "wait_before_retry_ms": 50}]},
        {"fallback_rules": [{"condition": "error", "action": "route_to", "service": "llm"}]},
    ]
    rules = [
        {"id": f"r{n}", "match": match, "strategy": strategy, **extra}
        for n, (match, strategy, extra) in enumerate(zip(matches, strategies, extras, strict=True))
    ]
    publish(author, approver, title="first", base_revision=0, routes=rules)
    operations = [{"op": "put", **rules[0], "priority": 5}, {"op": "delete", "id": "r4"}]
    publish(author, approver, title="second", base_revision=1, operations=operations)
    waiting = review.propose(author=author, title="third", base_revision=1, routes=rules[:1], description="why")
    review.submit(waiting.pk, by=author)


CONDITIONS = ("no_available_node", "circuit_open", "rate_limited", "timeout", "error")


def publish(author: User, approver: User, **proposal: Any) -> None:
    change = review.propose(author=author, **proposal)
    review.submit(change.pk, by=author)
    replay.analyse(change, Tables(1, [], frozenset()))
    review.approve(change.pk, by=approver, comment="fine")
    review.publish(change.pk, by=author)


def advisories_of_every_kind() -> None:
    """The last one is resolved."""
    now = datetime.now(UTC)
    names = {"capability": "file_summary", "service": "llm", "first": "doc-summarizer", "second": "llm"}
    counts = {"percent": 91, "services": 3, "calls": 40, "of": 50, "changes": 12, "most": 10}
    facts = names | counts | {"path": "/payload/file_path", "error": "is required"}
    for kind in Kind:
        Advisory.objects.create(
            kind=kind,
            subject="file_summary llm",
            facts=facts,
            first_seen_at=now - timedelta(hours=1),
            last_seen_at=now,
            resolved_at=now if kind is Kind.MANY_CHANGES else None,
        )


# --- Calls -----------------------------------------------------------------------------------------------------------


def a_call(
    number: int = 1, *, receipts: list[tuple[str, Any]] | None = None, at: datetime | None = None, **fields: Any
) -> Call:
    """A call of a moment ago, as the journal would have left it, with its receipts."""
    at = at or datetime.now(UTC) - timedelta(seconds=60)
    given = {
        "id": UUID(int=lowest_id(at).int | 7 << 76 | 2 << 62 | number),
        "trace_id": TRACE,
        "depth": 0,
        "caller": "scheduler",
        "origin_caller": "scheduler",
        "capability": "file_summary",
        "status": "succeeded",
        "route_id": "auto",
        "table_revision": 0,
        "service_id": "doc-summarizer",
        "node_id": "a",
        "attempts": 1,
        "seq": len(receipts or []),
        "accepted_at": at,
        "ended_at": at + timedelta(milliseconds=250),
        "deadline": at + timedelta(seconds=60),
        "idempotent": True,
        "request": json.dumps({"payload": {"file_path": "/a"}, "urgency": "normal", "tags": ["prod"]}),
        "request_digest": "d",
        "payload_digest": "d",
        "owner": OWNER,
        "epoch": 1,
        "step": 1,
    } | fields
    names = ", ".join(given)
    holders = ", ".join(["%s"] * len(given))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO calls ({names}) VALUES ({holders})", list(given.values()))
        for seq, (kind, detail) in enumerate(receipts or [], start=1):
            text = None if detail is None else json.dumps(detail)
            cursor.execute(
                "INSERT INTO receipts (call_id, seq, kind, attempt, service_id, node_id, at, detail)"
                " VALUES (%s, %s, %s, 1, 'doc-summarizer', 'a', %s, %s)",
                [given["id"], seq, kind, at + timedelta(milliseconds=seq), text],
            )
    return Call.objects.get(pk=given["id"])


ROUTED = {
    "table_revision": 2,
    "route_id": "r1",
    "strategy": "weighted_random",
    "candidates": [
        {"service_id": "doc-summarizer", "node_id": "a", "eligible": True, "reasons": [], "share": 0.4},
        {"service_id": "llm", "node_id": "e", "eligible": False, "reasons": ["lease expired"], "share": 0.0},
    ],
    "left_out": {"lease expired": 1},
    "chosen": {"service_id": "doc-summarizer", "node_id": "a"},
}
PREFERRED = {
    "strategy": "fuzzy",
    "notes": [
        "canary: 2.5 % to llm, by caller",
        "sticks to nothing: the call has no caller; the least loaded was chosen",
    ],
    "intent": {"text": "报告", "capability": "report", "scores": [{"capability": "report", "score": 0.97}]},
    "candidates": [
        {"service_id": "llm", "node_id": "a", "eligible": True, "reasons": [reason], "share": 0.0, "likeness": 0.7}
        for reason in WHY_SPARED
    ],
}
RECEIPTS: list[tuple[str, Any]] = [
    ("accepted", {"caller": "scheduler"}),
    ("routed", ROUTED),
    ("forwarded", {"address": "http://127.0.0.1:1"}),
    ("acknowledged", None),
    ("running", {"progress": 0.4, "message": "page 2"}),
    ("attempt_failed", {"ended": "refused", "reason": "connection refused", "upstream": {"code": "x"}}),
    ("retry_scheduled", {"wait_ms": 120}),
    ("routed", ROUTED | {"route_id": "auto", "candidates": [], "chosen": None}),
    ("fallback", {"route_id": "r1", "condition": "error", "action": "next_route"}),
    ("fallback", {"route_id": "r1", "condition": "error", "action": "retry", "rule": 1, "wait_ms": 50}),
    ("routed", ROUTED | PREFERRED),
    ("recovered", {"action": "retry", "epoch": 2}),
    ("late_result", {"kind": "succeeded"}),
    ("failed", {"code": "upstream_error", "detail": "d"}),
]


def calls_of_every_kind() -> None:
    error = {"code": "upstream_error", "detail": "d", "outcome_unknown": True, "upstream": {"code": "x"}}
    parent = a_call(1, receipts=RECEIPTS, status="failed", error=json.dumps(error), labels=json.dumps({"t": "e"}))
    refused = {"code": "no_available_node", "detail": "d", "retry_after_ms": 1500, "errors": []}
    a_call(2, parent_call_id=parent.pk, depth=1, status="rejected", error=json.dumps(refused), node_id=None)
    a_call(3, parent_call_id=parent.pk, depth=1, output='{"summary": "s"}', session_id="s1", idempotency_key="i1")
    a_call(4, status="running", ended_at=None, trace_id="1" * 32)
    for number, status in enumerate(("accepted", "timed_out", "cancelled"), start=5):
        ended = {"ended_at": None} if status == "accepted" else {}
        a_call(number, status=status, trace_id="2" * 32, **ended)
