"""How many may wait at one process, and of one key."""

from contextlib import ExitStack

import pytest

from routing.errors import Overloaded, TooManyWaiting
from routing.waiting import Waiting


def waiting() -> Waiting:
    return Waiting(most=5, most_of_key=3, retry_after_ms=700)


def test_a_key_has_its_share_and_others_have_theirs() -> None:
    here = waiting()
    with ExitStack() as open_ones:
        for kind in ("wait", "events", "events"):
            open_ones.enter_context(here.admitted("mine", kind))
        with (
            pytest.raises(TooManyWaiting, match="3 waits and streams open") as refused,
            here.admitted("mine", "wait"),
        ):
            pass
        assert refused.value.retry_after_ms == 700
        for _ in range(2):
            open_ones.enter_context(here.admitted("yours", "wait"))
        with (
            pytest.raises(Overloaded, match="5 waits and streams are open") as full,
            here.admitted("hers", "wait"),
        ):
            pass
        assert full.value.retry_after_ms == 700
        assert here.of_kind == {"wait": 3, "events": 2}


def test_who_leaves_makes_room_and_leaves_nothing_behind() -> None:
    here = waiting()
    for number in range(1000):
        with pytest.raises(ZeroDivisionError), here.admitted(f"key {number}", "events"):
            raise ZeroDivisionError
    assert here.of_key == {} and here.of_kind.total() == 0


def test_a_refusal_counts_for_nothing() -> None:
    here = Waiting(most=1, most_of_key=1, retry_after_ms=0)
    with here.admitted("a", "wait"):
        for key in "ab":
            with pytest.raises((TooManyWaiting, Overloaded)), here.admitted(key, "wait"):
                pass
    assert here.of_key == {}
    with here.admitted("b", "wait"):
        pass
