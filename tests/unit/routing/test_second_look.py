"""What is looked at once more when an attempt is on disk, before its envelope leaves."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from registry.core.node import Health, Node
from routing.core.plan import Attempt, Policy, Why
from routing.core.pool import Candidate
from routing.core.tables import Tables
from routing.dispatch import second_look
from routing.health import NodeLoad
from tests.factories import NOW, a_journey, a_node, an_envelope, tables

NODE = a_node()
FIRST = a_journey(an_envelope(), deadline_millis=NOW + 60_000, first_forwarded_at_millis=NOW)


@dataclass
class Parts:
    """What the look goes by, of a process's parts."""

    tables: Tables = field(default_factory=lambda: tables(NODE))
    load: NodeLoad = field(default_factory=lambda: NodeLoad(decay_s=10))
    policy: Policy = field(default_factory=Policy)


def look(parts: Any, *, at: int = NOW, node: Node = NODE) -> str | None:
    attempt = Attempt(Candidate(node, node.offers["file_summary"]), NOW + 60_000, Why("auto", 1, "least_loaded"))
    return second_look(FIRST, attempt, parts, now_millis=at)


def test_nothing_has_changed():
    assert look(Parts()) is None
    assert look(Parts(), at=NOW + 30_000) is None


@pytest.mark.parametrize(
    ("node", "why"),
    [(None, "no longer registered"), (a_node(health=Health.NOT_READY), "not ready"), (a_node(), None)],
    ids=["gone", "out", "declared anew"],
)
def test_the_tables_have_moved(node, why):
    refusal = look(Parts(tables(*[node] if node else [])))
    assert refusal is None if why is None else refusal is not None and why in refusal


def test_the_write_took_longer_than_the_time_there_was():
    """A database that was away: the attempt is on disk, and its time is over."""
    refusal = look(Parts(), at=NOW + 30_001)
    assert refusal is not None and "time" in refusal
    refusal = look(Parts(policy=Policy(retry_total_ms=120_000)), at=NOW + 60_000)
    assert refusal is not None and "time" in refusal


def test_the_breaker_has_opened():
    parts = Parts()
    for _ in range(6):
        parts.load.judge(NODE.key, failed=True, began_s=parts.load.clock())
    refusal = look(parts)
    assert refusal is not None and "breaker" in refusal
