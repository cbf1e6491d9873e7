"""Calls and receipts lie in partitions by the time that is in their ids."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from receipts.models import Call, Receipt
from receipts.partitions import (
    drop_partitions,
    ensure_partitions,
    index_concurrently,
    lowest_id,
    moment_of,
    partition_bounds,
)

pytestmark = pytest.mark.django_db
LONG_AGO = datetime(2001, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)


def partition_of(table: str, key: str, call_id: UUID) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT DISTINCT tableoid::regclass::text FROM {table} WHERE {key} = %s", [call_id])
        return cursor.fetchone()[0]


def test_an_id_tells_its_moment():
    assert moment_of(lowest_id(LONG_AGO)) == LONG_AGO
    assert lowest_id(LONG_AGO) < lowest_id(LONG_AGO + timedelta(milliseconds=1))


def test_partitions_stand_ready_for_the_days_to_come():
    now = datetime.now(UTC)
    for table in ("calls", "receipts"):
        bounds = partition_bounds(table)
        assert any(low <= now < high for _name, low, high in bounds)
        assert any(low <= now + timedelta(days=6) < high for _name, low, high in bounds)
        assert all(high == low for (_, _, high), (_, low, _) in pairwise(bounds))


def test_making_them_again_makes_nothing():
    made = ensure_partitions(LONG_AGO, hours=24, ahead=2)
    assert made == [f"{table}_p200105{day:02}00" for table in ("calls", "receipts") for day in (6, 7, 8)]
    assert ensure_partitions(LONG_AGO, hours=24, ahead=2) == []


def test_another_span_leaves_what_is_there_alone():
    ensure_partitions(LONG_AGO, hours=24, ahead=0)
    assert ensure_partitions(LONG_AGO, hours=12, ahead=0) == []
    assert ensure_partitions(LONG_AGO + timedelta(days=1), hours=12, ahead=0) != []


def test_what_fell_into_the_default_partition_moves_into_its_own(stored_call: Callable[..., Any]):
    call = stored_call(at=LONG_AGO)
    assert partition_of("calls", "id", call.id) == "calls_default"
    assert partition_of("receipts", "call_id", call.id) == "receipts_default"
    ensure_partitions(LONG_AGO, hours=24, ahead=0)
    assert partition_of("calls", "id", call.id) == "calls_p2001050600"
    assert partition_of("receipts", "call_id", call.id) == "receipts_p2001050600"
    assert Call.objects.get(pk=call.id).accepted_at == LONG_AGO


def test_retention_drops_whole_partitions_that_are_past_it(stored_call: Callable[..., Any]):
    ensure_partitions(LONG_AGO, hours=24, ahead=1)
    old, newer = stored_call(at=LONG_AGO), stored_call(at=LONG_AGO + timedelta(days=1))
    assert drop_partitions(LONG_AGO + timedelta(days=1)) == ["calls_p2001050600", "receipts_p2001050600"]
    assert list(Call.objects.filter(pk__in=[old.pk, newer.pk])) == [newer]
    assert not Receipt.objects.filter(call_id=old.pk).exists()
    assert Receipt.objects.filter(call_id=newer.pk).count() == 2


def parts_of(index: str) -> dict[str, bool]:
    """The partitions that have their part of an index, and whether it is whole."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT x.indrelid::regclass::text, x.indisvalid FROM pg_inherits i"
            " JOIN pg_index x ON x.indexrelid = i.inhrelid WHERE i.inhparent = %s::regclass",
            [index],
        )
        return dict(cursor.fetchall())


@pytest.mark.django_db(transaction=True)
def test_an_index_is_built_on_all_partitions_without_stopping_the_writers():
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX calls_default_a_test ON calls_default (depth)")  # what a broken try has left
        index_concurrently("calls", "a_test", "(depth, id)")
        try:
            built = parts_of("a_test")
            assert built.keys() == {name for name, _low, _high in partition_bounds("calls")} | {"calls_default"}
            assert set(built.values()) == {True}
            cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'a_test'::regclass")
            assert cursor.fetchone() == (True,)
            index_concurrently("calls", "a_test", "(depth, id)")
            [new] = [name for name in ensure_partitions(LONG_AGO, hours=24, ahead=0) if name.startswith("calls")]
            assert new in parts_of("a_test")
        finally:
            cursor.execute("DROP INDEX a_test")
            drop_partitions(LONG_AGO + timedelta(days=2))
