"""From a question in English or Chinese to a query: words that name a measure, a dimension, a value or a number."""

import re

from demo.sales import Query

MEASURES = {
    "revenue": ("revenue", "sales", "turnover", "收入", "销售额"),
    "orders": ("orders", "订单"),
    "quantity": ("quantity", "units", "数量", "销量"),
    "margin": ("margin", "profit", "毛利", "利润"),
    "discount": ("discount", "折扣"),
}
DIMENSIONS = {
    "week": ("weekly", "week", "周"),
    "month": ("monthly", "month", "月"),
    "region": ("region", "regions", "地区", "区域"),
    "product": ("product", "products", "产品", "商品"),
    "category": ("category", "categories", "类别"),
    "channel": ("channel", "channels", "渠道"),
    "customer": ("customer", "customers", "客户"),
    "customer_email": ("email", "emails", "邮箱"),
}
VALUES = {
    "region": {"north": "北", "south": "南", "east": "东", "west": "西"},
    "channel": {"web": "网店", "phone": "电话", "partner": "伙伴"},
}
TOP = re.compile(r"top (\d+)|前(\d+)")


def understood(question: str) -> Query | None:
    """The query that answers it; None when it names nothing that can be measured."""
    words = set(re.findall(r"[a-z]+", question.lower()))

    def says(*names: str) -> bool:
        return any(name in words if name.isascii() else name in question for name in names)

    measures = [measure for measure, names in MEASURES.items() if says(*names)]
    if not measures:
        return None
    top = TOP.search(question.lower())
    return Query(
        measures=measures,
        by=[dimension for dimension, names in DIMENSIONS.items() if says(*names)],
        where={column: value for column, known in VALUES.items() for value, zh in known.items() if says(value, zh)},
        top=int(top[1] or top[2]) if top else None,
    )
