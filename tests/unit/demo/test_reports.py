"""From a question to the anomalies that are planted in the data."""

import sqlite3

import pytest

from demo import anomalies, sales
from demo.data import generate
from demo.questions import understood
from demo.sales import Query


@pytest.fixture(scope="module")
def table() -> sqlite3.Connection:
    return sales.opened()


def test_the_shipped_data_is_what_the_generator_makes() -> None:
    header, first, *_rest = sales.ORDERS.read_text().splitlines()
    made = list(generate.orders())
    assert header.split(",") == list(generate.Order._fields)
    assert first == ",".join(map(str, made[0]))
    assert len(_rest) + 1 == len(made)


@pytest.mark.parametrize(
    ("question", "query"),
    [
        ("Weekly revenue by region", Query(["revenue"], ["week", "region"])),
        ("每周各地区收入", Query(["revenue"], ["week", "region"])),
        ("top 3 customers by margin in the north", Query(["margin"], ["customer"], {"region": "north"}, 3)),
        ("what is the meaning of life", None),
    ],
)
def test_understood(question: str, query: Query | None) -> None:
    assert understood(question) == query


@pytest.mark.parametrize(
    ("question", "when", "where"),
    [
        ("weekly orders by channel", "2025-W09", "partner"),
        ("weekly quantity by region", "2025-W13", "west"),
        ("weekly revenue by region", "2025-W17", "north"),
        ("weekly revenue by product", "2025-W22", "Label printer"),
    ],
)
def test_what_is_planted_is_found(table: sqlite3.Connection, question: str, when: str, where: str) -> None:
    query = understood(question)
    assert query is not None
    found = anomalies.found(sales.answer(table, query), measure=query.measures[0], by=query.by)
    assert (when, where) in {(one.when, one.where) for one in found}


def test_nothing_can_be_written(table: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        table.execute("DELETE FROM orders")


def test_a_value_is_never_sql(table: sqlite3.Connection) -> None:
    assert sales.answer(table, Query(["orders"], ["region"], {"region": "north' OR '1'='1"})) == []
    with pytest.raises(KeyError):
        sales.answer(table, Query(["orders"], ["region; DROP TABLE orders"]))
