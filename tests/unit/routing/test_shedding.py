"""Whose calls are refused when there is too much to do: what can wait yields first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.shedding import SHED_AT, Bounds, overload

BOUNDS = Bounds(max_in_flight=100, max_waiting_rows=1000, max_bytes_in_flight=10_000)
IDLE = {"in_flight": 0, "waiting_rows": 0, "bytes_in_flight": 0}


@pytest.mark.parametrize(("urgency", "taken"), [("bulk", 80), ("normal", 95), ("interactive", 100)])
def test_each_urgency_has_its_share_of_the_calls_in_flight(urgency: str, taken: int) -> None:
    assert overload(urgency, BOUNDS, **IDLE | {"in_flight": taken - 1}) is None
    assert overload(urgency, BOUNDS, **IDLE | {"in_flight": taken}) == (
        f"{taken} calls are in flight here; {urgency} calls are taken up to {taken} % of 100"
    )


@pytest.mark.parametrize(("urgency", "taken"), [("bulk", 800), ("normal", 950), ("interactive", 1000)])
def test_and_of_the_rows_that_wait(urgency: str, taken: int) -> None:
    assert overload(urgency, BOUNDS, **IDLE | {"waiting_rows": taken - 1}) is None
    assert "rows wait to be written" in str(overload(urgency, BOUNDS, **IDLE | {"waiting_rows": taken}))


@pytest.mark.parametrize(("urgency", "taken"), [("bulk", 8000), ("normal", 9500), ("interactive", 10_000)])
def test_and_of_the_bytes_in_flight(urgency: str, taken: int) -> None:
    assert overload(urgency, BOUNDS, **IDLE | {"bytes_in_flight": taken - 1}) is None
    assert "bytes of calls are in flight" in str(overload(urgency, BOUNDS, **IDLE | {"bytes_in_flight": taken}))


@given(st.integers(0, 200), st.integers(0, 2000), st.integers(0, 20_000))
def test_who_can_wait_is_never_taken_before_who_cannot(in_flight: int, waiting_rows: int, size: int) -> None:
    counts = {"in_flight": in_flight, "waiting_rows": waiting_rows, "bytes_in_flight": size}
    refused = [bool(overload(u, BOUNDS, **counts)) for u in SHED_AT]
    assert list(SHED_AT) == ["bulk", "normal", "interactive"]
    assert refused == sorted(refused, reverse=True)


@given(st.sampled_from(sorted(SHED_AT)), st.integers(0, 10), st.integers(0, 10))
def test_no_more_than_the_bound_is_ever_in_flight(urgency: str, most: int, in_flight: int) -> None:
    if overload(urgency, Bounds(most, 1, 1), **IDLE | {"in_flight": in_flight}) is None:
        assert in_flight + 1 <= most
