"""Values with sensible defaults: capabilities as they are declared, nodes as the snapshot holds them, journeys."""

from collections.abc import Container, Iterable, Sequence
from itertools import cycle
from typing import Any
from uuid import UUID

from receipts.core.envelope import CallEnvelope
from receipts.core.journey import Ended, Journey, Outcome, Tried
from registry.core.node import Node, Offer
from registry.schemas import compile_schema
from routing.core.balancing import Chance, RateKey
from routing.core.breaker import Shut, Shuts
from routing.core.limits import burst
from routing.core.matching import EMPTY_TABLE, RouteTable
from routing.core.pool import Candidate
from routing.core.tables import Tables

NOW = 1_790_000_000_000
CALL_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")

SUMMARY_INPUT = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string"},
        "content_type": {"type": "string", "enum": ["report", "email", "code"]},
    },
    "required": ["content_type"],
}
SUMMARY_OUTPUT = {
    "type": "object",
    "properties": {"summary": {"type": "string"}, "keywords": {"type": "array", "items": {"type": "string"}}},
}


def a_capability(name: str = "file_summary", **more: Any) -> dict[str, Any]:
    """A capability as a node declares it; it takes and gives anything unless told otherwise."""
    return {"name": name, "description": f"Does {name}", "input": {}, "output": {}, **more}


def an_envelope(**facts: Any) -> CallEnvelope:
    return CallEnvelope(
        **{
            "capability": "file_summary",
            "payload": {"content_type": "report"},
            "caller": "report-agent",
            "received_at_millis": NOW,
            **facts,
        }
    )


def an_offer(capability: str = "file_summary", *, input: Any = None, output: Any = None, **more: Any) -> Offer:
    return Offer(capability, compile_schema(input), compile_schema(output), **more)


def a_node(name: str = "summarizer/n1", *offers: Offer, **more: Any) -> Node:
    """`a_node("service/node")`; it offers `file_summary` unless told otherwise."""
    service_id, _slash, node_id = name.partition("/")
    given = offers or (an_offer(),)
    address = f"http://{service_id}.test"
    return Node(service_id, node_id or "n1", address, offers={o.capability: o for o in given}, **more)


def a_candidate(
    name: str = "summarizer/n1", *offers: Offer, refusal: str | None = None, suspect: bool = False, **more: Any
) -> Candidate:
    node = a_node(name, *offers, **more)
    return Candidate(node, node.offers["file_summary"], refusal, suspect)


def tables(*nodes: Node, routes: RouteTable = EMPTY_TABLE, known: Iterable[str] = ("file_summary",)) -> Tables:
    offered = {name for node in nodes for name in node.offers}
    return Tables(1, nodes, frozenset(known) | offered, routes)


def a_journey(envelope: CallEnvelope | None = None, *tried: Tried, **facts: Any) -> Journey:
    """A call under way; with attempts behind it, it has a deadline and a first forward."""
    asked = envelope or an_envelope()
    begun = {"deadline_millis": NOW + 60_000, "first_forwarded_at_millis": NOW} if tried else {}
    return Journey(asked, CALL_ID, "a" * 32, asked.caller, tried=tried, **{**begun, **facts})


def an_attempt(
    ended: Ended, name: str = "summarizer/n1", *, number: int = 1, route_id: str = "auto", **facts: Any
) -> Tried:
    """An attempt that has ended so."""
    service_id, _slash, node_id = name.partition("/")
    return Tried(number, (service_id, node_id or "n1"), route_id, Outcome(ended, **facts))


class KnownLoad:
    """What a process knows of its nodes, as a test says."""

    def __init__(
        self,
        flying: dict[str, int] | None = None,
        latency_s: dict[str, float] | None = None,
        suspected: Iterable[str] = (),
        shut: dict[str, Shut] | None = None,
        spent: str | None = None,
        tokens: dict[str, float] | None = None,
    ):
        self._spent, self._tokens = spent, tokens or {}
        self._flying, self._latency_s = flying or {}, latency_s or {}
        self._shut = {split(name): known for name, known in (shut or {}).items()}
        self._suspected = {tuple(name.split("/")) for name in suspected}

    def in_flight(self, key: tuple[str, str]) -> int:
        return self._flying.get("/".join(key), 0)

    def latency_s(self, key: tuple[str, str]) -> float:
        return self._latency_s.get("/".join(key), 0.0)

    def suspects(self) -> Container[tuple[str, ...]]:
        return self._suspected

    def shut(self) -> Shuts:
        return self._shut

    def tokens(self, key: RateKey, rate_per_s: float) -> float:
        return self._tokens.get("/".join(key[:2]), burst(rate_per_s))

    def next_token_s(self, key: RateKey, rate_per_s: float) -> float:
        return max(0.0, 1 - self.tokens(key, rate_per_s)) / rate_per_s

    def retry_refusal(self, service_id: str) -> str | None:
        return self._spent


def split(name: str) -> tuple[str, str]:
    service_id, _slash, node_id = name.partition("/")
    return service_id, node_id


def chances(values: Sequence[float]) -> Chance:
    """Chance that draws these numbers, over and over."""
    drawn = cycle(values)
    return lambda: next(drawn)
