"""A change and its impact as lines of text, for terminals: in English, as everything that scripts read."""

import difflib
from collections.abc import Iterator
from typing import Any

from routing.core.edits import RULES, Document, difference
from routing.route_text import yaml_of

ROWS = 20


def diff_lines(before: Document, after: Document) -> Iterator[str]:
    """What differs between two tables, route by route."""
    edit = difference(before, after)
    changes = [(f"+ route {route['id']}", None, route) for route in edit["added"]]
    changes += [(f"~ route {one['id']}", one["before"], one["after"]) for one in edit["changed"]]
    changes += [(f"- route {route['id']}", route, None) for route in edit["removed"]]
    if rules := edit.get(RULES):
        changes.append(("~ fallback_rules", rules["before"], rules["after"]))
    for title, old, new in changes:
        yield title
        was, will = (yaml_of(side).splitlines() if side is not None else [] for side in (old, new))
        yield from (f"    {line}" for line in difflib.ndiff(was, will) if not line.startswith("?"))


def impact_lines(report: dict[str, Any]) -> Iterator[str]:
    """What a change would do, in numbers."""
    sampled, moved = report["sampled_calls"], report["moved"]
    each = f", each for {report['stands_for']:g}" if report["stands_for"] > 1 else ""
    yield f"impact: {moved['total']:g} of {sampled} sampled calls of the last day would move{each}"
    yield from table("by route", moved["by_route"], lambda row: f"{row['from']} -> {row['to']}: {row['calls']:g}")
    yield from table("by service", moved["by_service"], service_move)
    for row in report["shadowed_routes"]:
        part = "all" if row["whole"] else "some"
        yield f"  SHADOWED: {row['route']} loses {part} of its calls to {row['by']}: {row['calls']:g}"
    for name in report["unprovided_capabilities"]:
        yield f"  UNPROVIDED: {name} would be left without a provider"
    for row in report["lost_calls"]:
        yield f"  LOST: {row['calls']:g} calls of {row['capability']} would end with {row['code']}"
    for row in report["dominant_services"]:
        shares = f"{row['share_after']:.0%} of {row['capability']}, before {row['share_before']:.0%}"
        yield f"  DOMINANT: {row['service']} would take {shares}"
    for row in report["rate_limit_risks"]:
        rates = f"{row['after_per_s']:g} a second where {row['limit_per_s']:g} are allowed"
        yield f"  RATE: {row['service']} would get {row['capability']} at {rates}"
    if (unknown := report["unknown"])["calls"]:
        places = ", ".join(sorted({f"{row['route']}: {row['condition']}" for row in unknown["conditions"]}))
        yield f"  UNKNOWN: the way of {unknown['calls']} calls depends on masked values ({places})"
    before, after = report["cost_shift"]["before"], report["cost_shift"]["after"]
    if before != after:
        yield f"  cost levels: {counted(before)} -> {counted(after)}"
    for sample in report["samples"][:5]:
        yield f"  e.g. call {sample['call_id']}: {sample['before']['route']} -> {sample['after']['route']}"


def service_move(row: dict[str, Any]) -> str:
    return f"{row['from'] or 'nobody'} -> {row['to'] or 'nobody'}: {row['calls']:g}"


def table(title: str, rows: list[dict[str, Any]], shown: Any) -> Iterator[str]:
    if rows:
        yield f"  {title}:"
        yield from (f"    {shown(row)}" for row in rows[:ROWS])
        if len(rows) > ROWS:
            yield f"    and {len(rows) - ROWS} more"


def counted(levels: dict[str, float]) -> str:
    return ", ".join(f"{level} {calls:g}" for level, calls in levels.items()) or "none"
