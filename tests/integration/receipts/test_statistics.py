"""Calls counted by the minute say the same as the calls themselves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from receipts import statistics
from receipts.core.counting import HOUR, MINUTE
from receipts.models import CallCount, CountedMinute
from receipts.statistics import CAUSE, PAIR, USE, Counted, Told, counted, over_time, roll_up, told

pytestmark = pytest.mark.django_db
NOON = datetime(2020, 2, 3, 12, 0, tzinfo=UTC)  # nobody else's calls lie there
NOW = NOON + 3 * HOUR
Store = Callable[..., Any]


def plain(found: dict[Any, Counted]) -> dict[Any, tuple[int, int, dict[int, int]]]:
    return {key: (each.calls, each.failures, dict(each.buckets)) for key, each in found.items()}


def a_history(stored_call: Store) -> None:
    for minute in range(0, 180, 7):
        for number in range(minute % 5 + 1):
            stored_call(
                at=NOON + timedelta(minutes=minute, seconds=number * 11),
                ms=2.0 ** (number + 1) + 0.5,
                capability=f"task_{number % 3}",
                service_id=None if number == 4 else f"service-{number % 2}",
                status="failed" if number == 3 else "succeeded",
            )


def test_what_is_counted_is_what_the_calls_say(stored_call: Store):
    a_history(stored_call)
    span = (NOON - 13 * MINUTE, NOW - timedelta(seconds=21))
    asked = [(name, *span, NOW) for name in (*statistics.DIMENSIONS, statistics.NODE, statistics.ALL)]
    parts = [told(name, *span, NOW) for name in (PAIR, USE, CAUSE)]
    node_course = over_time(*span, NOW, HOUR, dimension="node", key="service-1/n1")
    by_calls = [plain(counted(*one)) for one in asked]
    steps = [plain(over_time(*span, NOW, step)) for step in (MINUTE, HOUR)]
    assert roll_up(NOW) >= 170
    assert [plain(counted(*one)) for one in asked] == by_calls
    assert [plain(over_time(*span, NOW, step)) for step in (MINUTE, HOUR)] == steps
    assert [counts(told(name, *span, NOW)) for name in (PAIR, USE, CAUSE)] == [counts(part) for part in parts]
    assert plain(over_time(*span, NOW, HOUR, dimension="node", key="service-1/n1")) == plain(node_course)
    assert [len(step) for step in steps] == [26, 3]
    assert sum(calls for calls, _failures, _buckets in by_calls[0].values()) > 50
    assert None in by_calls[0], "a call that nobody took"


def test_a_long_span_reads_few_calls(stored_call: Store):
    a_history(stored_call)
    roll_up(NOW)
    with CaptureQueriesContext(connection) as asked:
        counted("capability", NOON, NOW - 5 * MINUTE, NOW)
    assert not [query["sql"] for query in asked if "FROM calls" in query["sql"]]


def test_counting_twice_counts_once(stored_call: Store):
    a_history(stored_call)
    roll_up(NOW)
    rows = CallCount.objects.order_by("pk").values_list("span_s", "dimension", "since", "key", "counts")
    before = list(rows)
    assert roll_up(NOW) == 0
    assert list(rows.all()) == before


def test_a_minute_is_counted_again_when_its_open_calls_have_ended(stored_call: Store):
    call = stored_call(at=NOON, status="running", ended_at=None)
    roll_up(NOW)
    assert CountedMinute.objects.get(minute=NOON).open == 1
    assert counted("caller", NOON, NOW, NOW) == {}
    type(call).objects.filter(pk=call.pk).update(status="timed_out", ended_at=NOON + 2 * MINUTE)
    assert roll_up(NOW) == 1
    assert CountedMinute.objects.get(minute=NOON).open == 0
    [found] = counted("caller", NOON, NOW, NOW).values()
    assert (found.calls, found.failures) == (1, 1)
    assert CallCount.objects.filter(span_s=3600, dimension="").count() == 1, "the hour is told anew, too"


def test_a_minute_is_not_counted_before_it_is_over(stored_call: Store):
    stored_call(at=NOON)
    roll_up(NOON + timedelta(seconds=65))
    assert CallCount.objects.count() == 0
    assert [each.calls for each in counted("caller", NOON, NOON + MINUTE, NOW).values()] == [1]


def test_a_long_history_is_counted_by_and_by(stored_call: Store):
    stored_call(at=NOON)
    assert roll_up(NOW, run_s=0.0) <= 60
    done = CountedMinute.objects.count()
    assert roll_up(NOW, run_s=0.0) > 0
    assert CountedMinute.objects.count() > done


def test_old_counts_go(stored_call: Store, settings: Any):
    from receipts import retention

    a_history(stored_call)
    roll_up(NOW)
    settings.REACH_MINUTE_STATISTICS_DAYS = 3
    assert retention.forget(NOW + timedelta(days=4)).deleted["minute_statistics"] > 100
    assert set(CallCount.objects.values_list("span_s", flat=True)) == {3600}
    gone = retention.forget(NOW + timedelta(days=31)).deleted
    assert gone["statistics"] and gone["counted_minutes"]
    assert (CallCount.objects.count(), CountedMinute.objects.count()) == (0, 0)


def test_groups_that_are_asked_for_are_told_alone(stored_call: Store):
    a_history(stored_call)
    everybody = counted("capability", NOON, NOW, NOW)
    assert plain(counted("capability", NOON, NOW, NOW, keys=["task_1", "nobody"])) == {
        "task_1": plain(everybody)["task_1"]
    }
    roll_up(NOW)
    assert plain(counted("capability", NOON, NOW, NOW, keys=["task_1"]))["task_1"] == plain(everybody)["task_1"]


@pytest.mark.parametrize("is_counted", [False, True])
def test_it_is_told_who_called_what_of_whom_and_why_it_failed(stored_call: Store, is_counted: bool):
    error = '{"code": "upstream_error", "detail": "d"}'
    for second in (1, 2, 3):
        stored_call(at=NOON + timedelta(seconds=second), caller="a", capability="x", service_id="s")
    stored_call(at=NOON + MINUTE, caller="a", capability="x", service_id="s", status="failed", error=error)
    stored_call(at=NOON + 2 * MINUTE, caller="user:olga", capability="y", service_id=None, status="rejected")
    if is_counted:
        roll_up(NOON + 10 * MINUTE)
    span = (NOON, NOON + 10 * MINUTE, NOON + 10 * MINUTE)
    assert counts(told(PAIR, *span)) == {("s", "a"): (4, 1), ("", "user:olga"): (1, 1)}
    assert counts(told(USE, *span)) == {("x", "a"): (4, 1), ("y", "user:olga"): (1, 1)}
    causes = told(CAUSE, *span)
    assert counts(causes) == {("upstream_error", "x", "s"): (1, 1), ("rejected", "y", ""): (1, 1)}
    assert counts(told(PAIR, *span, first="s")) == {("s", "a"): (4, 1)}
    assert NOON + MINUTE <= causes["upstream_error", "x", "s"].newest <= NOON + 2 * MINUTE


def counts(found: dict[tuple[str, ...], Told]) -> dict[tuple[str, ...], tuple[int, int]]:
    return {group: (each.calls, each.failures) for group, each in found.items()}
