"""The figures as pictures: SVG files that need nothing but themselves."""

from collections.abc import Sequence
from pathlib import Path

import pygal
from pygal.style import Style

from bench.plan import MANY
from bench.report import LOAD, NODE, PARTS, SMALL, Cell

COLOURS = ("#9aa0a6", "#34a853", "#fbbc04", "#a142f4", "#1a73e8", "#24c1e0")
STYLE = Style(
    background="#ffffff", plot_background="#ffffff", font_family="sans-serif", title_font_size=18, colors=COLOURS
)
ABOVE_OF = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms"}


def draw(results: Sequence[Cell], folder: Path) -> list[str]:
    """Write the charts that these results allow; their file names."""
    small = [cell for cell in results if cell.payload == SMALL and cell.processes == 1]
    names = list(dict.fromkeys(cell.target for cell in small))
    concurrencies = sorted({cell.concurrency for cell in small})
    drawn = []
    for file, title, figure in (
        ("throughput.svg", "Calls a second, one process each", "calls_per_s"),
        ("p99.svg", "p99 in ms, one process each", "p99_ms"),
    ):
        chart = pygal.Bar(**look(title), logarithmic=figure == "p99_ms")
        chart.x_labels = [f"c={concurrency}" for concurrency in concurrencies]
        for name in names:
            chart.add(name, [value_of(small, name, concurrency, figure) for concurrency in concurrencies])
        drawn.append(save(chart, folder, file))
    most = [cell for cell in small if cell.concurrency == (MANY if MANY in concurrencies else concurrencies[-1])]
    chart = pygal.StackedBar(**look(f"CPU per call in µs, c={most[0].concurrency}, by part"))
    chart.x_labels = [cell.target for cell in most]
    for part in PARTS:
        if part not in (NODE, LOAD):
            chart.add(part, [round(cell.cpu_us.get(part, 0.0), 1) for cell in most])
    drawn.append(save(chart, folder, "cpu.svg"))
    chart = pygal.Bar(**look(f"Latency in ms, c={most[0].concurrency}"), logarithmic=True)
    chart.x_labels = [cell.target for cell in most]
    for name, figure in ABOVE_OF.items():
        chart.add(name, [round(getattr(cell, figure), 2) or None for cell in most])
    drawn.append(save(chart, folder, "latency.svg"))
    return drawn


def look(title: str) -> dict[str, object]:
    # without `js` the file would load a script from elsewhere
    return {"title": title, "js": (), "style": STYLE, "width": 900, "height": 420, "legend_at_bottom": True}


def value_of(cells: Sequence[Cell], name: str, concurrency: int, figure: str) -> float | None:
    for cell in cells:
        if (cell.target, cell.concurrency) == (name, concurrency):
            return round(float(getattr(cell, figure)), 2) or None
    return None


def save(chart: pygal.graph.graph.Graph, folder: Path, name: str) -> str:
    chart.render_to_file(str(folder / name))
    return name
