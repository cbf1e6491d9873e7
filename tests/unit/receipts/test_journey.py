"""What has happened to a call: a value that only ever grows."""

import pytest

from receipts.core.journey import Ended, Outcome
from tests.factories import a_journey, an_attempt


def test_a_new_journey_has_tried_nothing():
    journey = a_journey()
    assert (journey.attempts, journey.last) == (0, None)


def test_attempts_are_counted_by_the_number_of_the_last():
    journey = a_journey().after(an_attempt(Ended.NOT_STARTED, "a/1")).after(an_attempt(Ended.BROKEN, "b/1", number=2))
    assert journey.attempts == 2
    assert journey.last is not None and journey.last.node == ("b", "1")


def test_the_past_does_not_change():
    journey = a_journey()
    journey.after(an_attempt(Ended.NOT_STARTED))
    assert journey.tried == ()


@pytest.mark.parametrize("ended", Ended)
def test_which_outcomes_leave_it_unknown_whether_the_work_was_done(ended):
    assert Outcome(ended).unknown is (ended in (Ended.BROKEN, Ended.SILENT, Ended.TIMED_OUT))
