"""What filled a call's time, and where a failure began."""

from uuid import UUID

import pytest

from receipts.core.lifecycle import Kind
from receipts.core.waterfall import Filled, Hop, Moved, failed_root, in_tree, pieces_of, where_it_began


def moved(*told: tuple[str, float], **more) -> list[Moved]:
    return [Moved(kind, at, **more) for kind, at in told]


@pytest.mark.parametrize(
    ("receipts", "expected"),
    [
        pytest.param([], [], id="nothing yet"),
        pytest.param(
            [("accepted", 0), ("routed", 1), ("forwarded", 2), ("succeeded", 9)],
            [("attempt", 2, 9, "succeeded")],
            id="one attempt",
        ),
        pytest.param([("forwarded", 2), ("running", 5)], [("attempt", 2, 100, "open")], id="at work"),
        pytest.param(
            [("forwarded", 1), ("attempt_failed", 4), ("retry_scheduled", 4), ("forwarded", 8), ("failed", 9)],
            [("attempt", 1, 4, "attempt_failed"), ("wait", 4, 8, "waited"), ("attempt", 8, 9, "failed")],
            id="a retry",
        ),
        pytest.param(
            [("forwarded", 1), ("attempt_failed", 4), ("failed", 4)],
            [("attempt", 1, 4, "attempt_failed")],
            id="no retry",
        ),
        pytest.param(
            [("retry_scheduled", 1), ("routed", 5), ("retry_scheduled", 5), ("failed", 30)],
            [("wait", 1, 30, "waited")],
            id="it waited for a node in vain",
        ),
        pytest.param(
            [("forwarded", 1), ("recovered", 5), ("forwarded", 6), ("succeeded", 7)],
            [("attempt", 1, 6, "attempt_failed"), ("attempt", 6, 7, "succeeded")],
            id="its process was killed",
        ),
        pytest.param([("accepted", 0), ("rejected", 1)], [], id="refused before any attempt"),
        pytest.param(
            [("forwarded", 1), ("succeeded", 2), ("late_result", 3)], [("attempt", 1, 2, "succeeded")], id="late"
        ),
    ],
)
def test_pieces(receipts, expected):
    found = pieces_of(moved(*receipts), until_ms=100)
    assert [(p.filled, p.since_ms, p.until_ms, p.went) for p in found] == expected


def test_an_attempt_keeps_node_and_reason():
    told = [Moved("forwarded", 1, 2, "a/b"), Moved("attempt_failed", 3, 2, "a/b", "connection refused")]
    (piece,) = pieces_of(told, until_ms=9)
    assert (piece.filled, piece.attempt, piece.node, piece.reason) == (Filled.ATTEMPT, 2, "a/b", "connection refused")


def a_hop(number: int, parent: int | None, status: str = "failed", *, ends: float | None = 50, **more) -> Hop:
    above = None if parent is None else UUID(int=parent)
    return Hop(UUID(int=number), above, status, float(number), ends, **more)


def test_calls_stand_below_the_one_that_made_them():
    hops = [a_hop(1, None), a_hop(2, 1), a_hop(3, 1), a_hop(4, 2), a_hop(5, 99)]
    assert [(hop.id.int, depth) for hop, depth in in_tree(hops)] == [(1, 0), (2, 1), (4, 2), (3, 1), (5, 0)]


@pytest.mark.parametrize(
    ("hops", "began"),
    [
        pytest.param([a_hop(1, None)], 1, id="alone"),
        pytest.param([a_hop(1, None), a_hop(2, 1, ends=40), a_hop(3, 2, ends=30)], 3, id="two below"),
        pytest.param([a_hop(1, None), a_hop(2, 1, "succeeded", ends=40), a_hop(3, 2, ends=30)], 1, id="survived below"),
        pytest.param([a_hop(1, None), a_hop(2, 1, ends=20), a_hop(3, 1, ends=40)], 3, id="the last of several"),
        pytest.param([a_hop(1, None), a_hop(2, 1, ends=60)], 1, id="it failed afterwards"),
        pytest.param([a_hop(1, None), a_hop(2, 1, "timed_out", ends=50)], 2, id="both at once"),
        pytest.param([a_hop(1, None), a_hop(2, 1, ends=40, is_copy=True)], 1, id="a copy is no cause"),
        pytest.param([a_hop(1, None), a_hop(2, 1, "running", ends=None)], 1, id="still at work below"),
    ],
)
def test_where_a_failure_began(hops, began):
    assert where_it_began(hops, hops[0]).id.int == began


def test_the_failure_that_is_told_of_is_the_outermost():
    hops = [a_hop(1, None, "succeeded"), a_hop(2, 1), a_hop(3, 2), a_hop(4, None, "cancelled")]
    root = failed_root(hops)
    assert root is not None and root.id.int == 2
    assert failed_root([a_hop(1, None, Kind.SUCCEEDED)]) is None
