"""The overview's charts as options of ECharts: plain values, drawn by charts.js. Names of colours are CSS variables."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from dashboard.overview import Mark, Point, Traffic

CLOCK = {
    "year": "{yyyy}-{MM}-{dd}", "month": "{MM}-{dd}", "day": "{MM}-{dd}", "hour": "{HH}:{mm}", "minute": "{HH}:{mm}",
    "second": "{HH}:{mm}:{ss}",
}  # fmt: skip
"""ECharts' own has the names of months, in English."""
PERCENTILES = (
    ("p50", 0.5, "--r-accent", "solid"),
    ("p95", 0.95, "--r-busy", "dashed"),
    ("p99", 0.99, "--r-warn", "dotted"),
)
"""Told apart by more than their colours."""
FEW = 20
"""Points that are drawn as such: a line has none where its neighbours are missing."""


def throughput(traffic: Traffic, marks: Sequence[Mark]) -> dict[str, Any]:
    """Calls a second, those that did not succeed on top."""
    well = [
        [millis(point.since), per_second(point, point.counted.calls - point.counted.failures)]
        for point in traffic.points
    ]
    not_well = [[millis(point.since), per_second(point, point.counted.failures)] for point in traffic.points]
    area = {"type": "line", "stack": "calls", "showSymbol": False, "lineStyle": {"width": 1.5}}
    return chart(
        traffic,
        [
            {**area, "name": _("succeeded"), "data": well, **coloured("--r-accent"), "areaStyle": {"opacity": 0.18}},
            {
                **area,
                "name": _("not succeeded"),
                "data": not_well,
                **coloured("--r-bad"),
                "lineStyle": {"width": 0},  # else it would lie on the other line where nothing has failed
                "areaStyle": {"opacity": 0.6},
            },
            *marked(marks),
        ],
    )


def latency(traffic: Traffic, marks: Sequence[Mark]) -> dict[str, Any]:
    """Percentiles of how long calls took; gaps where there were none."""
    few = sum(bool(point.counted.calls) for point in traffic.points) < FEW
    lines = [
        {
            "type": "line",
            "name": name,
            "showSymbol": few,
            "symbolSize": 5,
            "lineStyle": {"width": 1.5, "type": style},
            **coloured(colour),
            "data": [
                [millis(point.since), round(point.counted.percentile_ms(share), 1) if point.counted.calls else None]
                for point in traffic.points
            ],
        }
        for name, share, colour, style in PERCENTILES
    ]
    return chart(traffic, [*lines, *marked(marks)])


def chart(traffic: Traffic, series: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "useUTC": True,
        "grid": {"left": 8, "right": 12, "top": 52, "bottom": 4, "containLabel": True},
        "legend": {
            "type": "scroll",
            "top": 0,
            "left": 0,
            "right": 0,
            "icon": "roundRect",
            "itemWidth": 12,
            "itemHeight": 8,
        },
        "tooltip": {"trigger": "axis"},
        "xAxis": {
            "type": "time",
            "min": millis(traffic.since),
            "max": millis(traffic.until),
            "axisLabel": {"formatter": CLOCK, "hideOverlap": True},
            "splitLine": {"show": False},
        },
        "yAxis": {"type": "value", "min": 0, "splitNumber": 3},
        "series": series,
    }


def marked(marks: Iterable[Mark]) -> list[dict[str, Any]]:
    """Vertical lines where tables were published and services deployed, each kind with a name of its own."""
    revisions = [(mark, f"r{mark.revision}") for mark in marks if mark.revision is not None]
    deployed = [(mark, mark.title) for mark in marks if mark.revision is None]
    kinds = (
        (_("table published"), revisions, "--r-ink", True), (_("deployed"), deployed, "--r-soft", len(deployed) <= 3),
    )  # fmt: skip
    return [
        {
            "type": "line",
            "name": name,
            "data": [],
            **coloured(colour),
            "markLine": {
                "symbol": "none",
                "silent": True,
                "lineStyle": {"type": "dashed", "width": 1.5, "color": colour},
                "label": {
                    "show": named,
                    "formatter": "{b}",
                    "color": colour,
                    "fontSize": 11,
                    "position": "end",
                },
                "data": [{"xAxis": millis(mark.at), "name": text} for mark, text in found],
            },
        }
        for name, found, colour, named in kinds
        if found
    ]


def coloured(colour: str) -> dict[str, Any]:
    return {"itemStyle": {"color": colour}, "color": colour}


def per_second(point: Point, calls: int) -> float:
    return float(f"{calls / point.seconds:.3g}") if point.seconds else 0.0


def millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)
