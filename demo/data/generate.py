"""Makes `orders.csv`, always the same: `python -m demo.data.generate`. What is wrong in it is meant; see README.md."""

import csv
import random
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("orders.csv")
SEED = 20250106
FIRST_DAY = date(2024, 12, 30)  # the Monday of 2025-W01
WEEKS = 26
ORDERS_PER_WEEK = {"north": 34, "south": 28, "east": 24, "west": 20}
PRODUCTS = {  # name: category, list price, cost
    "Barcode scanner": ("devices", 189.0, 121.0),
    "Label printer": ("devices", 329.0, 214.0),
    "Shipping labels": ("supplies", 24.5, 9.8),
    "Packing tape": ("supplies", 7.9, 3.1),
    "Pallet wrap": ("supplies", 31.0, 17.5),
    "Stock service": ("services", 99.0, 38.0),
}
CHANNELS = {"web": 55, "phone": 25, "partner": 20}
CUSTOMERS = ["Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Ivy", "Juniper", "Larch", "Maple", "Oak", "Pine"]


class Order(NamedTuple):
    order_id: int
    ordered_on: str
    region: str
    product: str
    category: str
    channel: str
    customer: str
    customer_email: str
    quantity: int
    unit_price: float
    discount: float
    revenue: float
    margin: float


def orders() -> Iterator[Order]:
    chance = random.Random(SEED)
    number = 100_000
    for week in range(1, WEEKS + 1):
        made: list[Order] = []
        for region, usual in ORDERS_PER_WEEK.items():
            count = round(usual * chance.uniform(0.92, 1.08) * (1 + 0.004 * week))
            if (week, region) == (17, "north"):
                count //= 6  # the web shop of the north was down
            for _ in range(count):
                number += 1
                made.append(order(chance, number, week, region))
        if week == 9:  # the partners' file was loaded twice
            made += [one._replace(order_id=one.order_id + 500_000) for one in made if one.channel == "partner"]
        yield from sorted(made, key=lambda one: (one.ordered_on, one.order_id))


def order(chance: random.Random, number: int, week: int, region: str) -> Order:
    product = chance.choice(list(PRODUCTS))
    category, price, cost = PRODUCTS[product]
    customer = chance.choice(CUSTOMERS)
    quantity = chance.randint(4, 12)
    discount = chance.choice((0.0, 0.0, 0.05, 0.1))
    if (week, product) == (22, "Label printer") and chance.random() < 0.4:
        price *= 10  # a price keyed with one zero too many
    if (week, region) == (13, "west") and chance.random() < 0.45:
        quantity = -quantity  # a recall came back
    revenue = round(quantity * price * (1 - discount), 2)
    return Order(
        order_id=number,
        ordered_on=(FIRST_DAY + timedelta(weeks=week - 1, days=chance.randint(0, 6))).isoformat(),
        region=region,
        product=product,
        category=category,
        channel=chance.choices(list(CHANNELS), list(CHANNELS.values()))[0],
        customer=f"{customer} Ltd",
        customer_email=f"orders@{customer.lower()}.example",
        quantity=quantity,
        unit_price=price,
        discount=discount,
        revenue=revenue,
        margin=round(revenue - quantity * cost, 2),
    )


def main() -> None:
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Order._fields)
        writer.writerows(orders())


if __name__ == "__main__":
    main()
