"""Tables as people write them ({"routes": […], "fallback_rules": […]}): applying, comparing and undoing edits. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from receipts.core.envelope import digest_of

Document = dict[str, Any]
EMPTY: Document = {"routes": [], "fallback_rules": []}


def by_id(table: Document) -> dict[str, Document]:
    return {route["id"]: route for route in table["routes"]}


def differ(left: Any, right: Any) -> bool:
    """Whether two JSON values differ; `true` and 1, which Python holds for equal, do."""
    return digest_of(left) != digest_of(right)


def applied(table: Document, operations: Iterable[Mapping[str, Any]]) -> Document:
    """The table after `put` (in the place of its namesake, else at the end) and `delete` operations."""
    routes = by_id(table)
    for operation in operations:
        if operation["op"] == "delete":
            routes.pop(operation["id"], None)
        else:
            routes[operation["id"]] = {key: value for key, value in operation.items() if key != "op"}
    return {"routes": list(routes.values()), "fallback_rules": table["fallback_rules"]}


def difference(before: Document, after: Document) -> Document:
    """What `after` adds, removes and changes; `fallback_rules` only where the table's own differ."""
    old, new = by_id(before), by_id(after)
    found: Document = {
        "added": [route for route_id, route in new.items() if route_id not in old],
        "removed": [route for route_id, route in old.items() if route_id not in new],
        "changed": [
            {"id": route_id, "before": old[route_id], "after": route}
            for route_id, route in new.items()
            if route_id in old and differ(old[route_id], route)
        ],
    }
    if differ(before["fallback_rules"], after["fallback_rules"]):
        found["fallback_rules"] = {"before": before["fallback_rules"], "after": after["fallback_rules"]}
    return found


@dataclass(frozen=True, slots=True)
class Undone:
    """A table without one edit, or the places (route ids, "fallback_rules") that were changed again since."""

    table: Document
    conflicts: tuple[str, ...]
    is_change: bool


def undone(before: Document, after: Document, live: Document) -> Undone:
    """Take the edit before → after back out of `live`, keeping everything else that has happened to it."""
    old, new, now = by_id(before), by_id(after), by_id(live)
    touched = [i for i in {**old, **new} if differ(old.get(i), new.get(i))]
    conflicts = [i for i in touched if differ(now.get(i), new.get(i))]
    for route_id in touched:
        if route_id in old:
            now[route_id] = old[route_id]
        else:
            now.pop(route_id, None)
    rules = live["fallback_rules"]
    rules_touched = differ(before["fallback_rules"], after["fallback_rules"])
    if rules_touched:
        if differ(rules, after["fallback_rules"]):
            conflicts.append("fallback_rules")
        rules = before["fallback_rules"]
    return Undone(
        table={"routes": list(now.values()), "fallback_rules": rules},
        conflicts=tuple(conflicts),
        is_change=bool(touched) or rules_touched,
    )
