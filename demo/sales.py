"""The orders as a read-only SQL table, and the questions it takes: names out of fixed lists, values as parameters."""

import csv
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

ORDERS = Path(__file__).parent / "data" / "orders.csv"
MEASURES = {
    "revenue": "ROUND(SUM(revenue), 2)",
    "orders": "COUNT(*)",
    "quantity": "SUM(quantity)",
    "margin": "ROUND(SUM(margin), 2)",
    "discount": "ROUND(AVG(discount), 3)",
}
DIMENSIONS = ("week", "month", "region", "product", "category", "channel", "customer", "customer_email")


@dataclass(frozen=True)
class Query:
    """Measures, grouped by dimensions, of the rows where every named column has its value."""

    measures: list[str]
    by: list[str] = field(default_factory=list)
    where: Mapping[str, str] = field(default_factory=dict)
    top: int | None = None
    """Only so many groups, the largest first measure first."""

    @property
    def fields(self) -> list[str]:
        """Every column it touches."""
        return sorted({*self.measures, *self.by, *self.where})


def opened(orders: Path = ORDERS) -> sqlite3.Connection:
    """The table in memory; nothing can be written into it any more."""
    table = sqlite3.connect(":memory:", check_same_thread=False)
    with orders.open(newline="") as file:
        rows = csv.reader(file)
        names = next(rows)
        table.execute(
            f"CREATE TABLE orders ({', '.join(names)}, week TEXT, month TEXT)"  # the file's own header
        )
        day = names.index("ordered_on")
        marks = ", ".join("?" * (len(names) + 2))
        table.executemany(
            f"INSERT INTO orders VALUES ({marks})", ([*map(number, row), *spans(row[day])] for row in rows)
        )
    table.commit()
    table.execute("PRAGMA query_only = ON")
    return table


def number(text: str) -> str | float:
    """The value of a field: a whole number, a number, or what is written."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def spans(day: str) -> tuple[str, str]:
    """ISO week and month of a day."""
    year, week, _weekday = date.fromisoformat(day).isocalendar()
    return f"{year}-W{week:02}", day[:7]


def sql(query: Query) -> tuple[str, list[Any]]:
    """The statement and its parameters. Raises KeyError for a name that is not on the lists."""
    unknown = {*query.by, *query.where} - set(DIMENSIONS)
    if unknown:
        raise KeyError(min(unknown))
    columns = [*query.by, *(f"{MEASURES[name]} AS {name}" for name in query.measures)]
    text = f"SELECT {', '.join(columns)} FROM orders"
    if query.where:
        text += " WHERE " + " AND ".join(f"{name} = ?" for name in query.where)
    if query.by:
        text += f" GROUP BY {', '.join(query.by)}"
        text += f" ORDER BY {query.measures[0]} DESC" if query.top else f" ORDER BY {', '.join(query.by)}"
    parameters: list[Any] = list(query.where.values())
    if query.top:
        text += " LIMIT ?"
        parameters.append(query.top)
    return text, parameters


def answer(table: sqlite3.Connection, query: Query) -> list[dict[str, Any]]:
    """The rows, in order. Raises KeyError."""
    found = table.execute(*sql(query))
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]
