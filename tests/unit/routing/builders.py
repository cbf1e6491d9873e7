"""Routes and envelopes with sensible defaults, by the same reader that production uses."""

from typing import Any

from receipts.core.envelope import CallEnvelope
from routing.core.matching import Route, RouteTable
from routing.rules import build_table, parse_document


def an_envelope(**facts: Any) -> CallEnvelope:
    return CallEnvelope(
        **{
            "capability": "file_summary",
            "payload": {"content_type": "report"},
            "caller": "report-agent",
            "received_at_millis": 1_790_000_000_000,
            "tags": frozenset(),
            **facts,
        }
    )


def a_rule(route_id: str, match: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A route as it is written."""
    wanted = {"capability": "file_summary"} if match is None else match
    return {"id": route_id, "match": wanted, "strategy": {"type": "least_loaded"}, **more}


def routes(*rules: dict[str, Any]) -> tuple[Route, ...]:
    return parse_document({"routes": list(rules)}, max_routes=5000)[0]


def a_table(*rules: dict[str, Any], known: dict[str, str] | None = None) -> RouteTable:
    return build_table(1, routes(*rules), {"file_summary": ""} if known is None else known)
