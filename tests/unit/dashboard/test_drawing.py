"""Strips and sparklines."""

from datetime import UTC, datetime, timedelta

from dashboard.core.drawing import polylines, shares, stretches

NOON = datetime(2026, 2, 3, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_strip_begins_with_the_status_that_held_before():
    changes = [(NOON - 5 * HOUR, "ready"), (NOON + HOUR, "not_ready"), (NOON + 3 * HOUR, "ready")]
    found = stretches(changes, NOON, NOON + 4 * HOUR)
    assert [(one.status, one.percent) for one in found] == [("ready", 25), ("not_ready", 50), ("ready", 25)]
    assert shares(found) == {"ready": 50, "not_ready": 50}


def test_what_is_not_known_is_said_and_equal_neighbours_are_one():
    changes = [(NOON + HOUR, "ready"), (NOON + 2 * HOUR, "ready")]
    found = stretches(changes, NOON, NOON + 4 * HOUR)
    assert [(one.status, one.percent) for one in found] == [("unknown", 25), ("ready", 75)]


def test_a_change_of_this_very_moment_takes_no_room():
    assert [one.status for one in stretches([(NOON + HOUR, "ready")], NOON, NOON + HOUR)] == ["unknown"]


def test_a_sparkline_breaks_where_nothing_is_known():
    assert polylines([1.0, 2.0, None, 4.0], width=40, height=10) == ["5.0,7.5 15.0,5.0", "31.7,0.0 38.3,0.0"]
    assert polylines([None, None], width=30, height=10) == []
    assert polylines([0.0, 0.0], width=10, height=10) == ["2.5,10.0 7.5,10.0"]


def test_a_node_that_flaps_shows_the_worst_of_each_step():
    statuses = ["ready", "suspect", "ready", "not_ready"]
    changes = [(NOON + n * HOUR / 100, statuses[n % 4]) for n in range(400)]
    found = stretches(changes, NOON, NOON + 4 * HOUR, most=8)
    assert [(one.status, one.percent) for one in found] == [("not_ready", 100)]
    changes = [(NOON + n * HOUR / 100, statuses[n % 2]) for n in range(200)]
    found = stretches([*changes, (NOON + 2 * HOUR, "ready")], NOON, NOON + 4 * HOUR, most=4)
    assert [(one.status, one.percent) for one in found] == [("suspect", 50), ("ready", 50)]
