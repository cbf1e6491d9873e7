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


# --- Two edits of one table ------------------------------------------------------------------------------------------

RULES = "fallback_rules"
"""The place of a table's own fallback rules among the ids of its routes."""


@dataclass(frozen=True, slots=True)
class Place:
    """One route (or the table's fallback rules) that either side has edited: as it was, as it is live, as proposed.

    None: it is not there. `state`: `theirs`, `mine`, `same` (both did the same) or `conflict`.
    """

    route: str
    state: str
    base: Any
    theirs: Any
    mine: Any


def three_way(base: Document, theirs: Document, mine: Document) -> tuple[Place, ...]:
    """Everything that differs between three tables, a place each; in the order of `theirs`, then of `mine`."""
    was, now, wanted = by_id(base), by_id(theirs), by_id(mine)
    sides = [(route_id, was.get(route_id), now.get(route_id), wanted.get(route_id)) for route_id in now | wanted | was]
    sides.append((RULES, base[RULES], theirs[RULES], mine[RULES]))
    return tuple(
        Place(route_id, state_of(old, live, new), old, live, new)
        for route_id, old, live, new in sides
        if differ(old, live) or differ(old, new)
    )


def state_of(base: Any, theirs: Any, mine: Any) -> str:
    if not differ(theirs, mine):
        return "same"
    if not differ(base, mine):
        return "theirs"
    return "mine" if not differ(base, theirs) else "conflict"


@dataclass(frozen=True, slots=True)
class Merged:
    """A table with both edits in it, and the places where only a person can say which is meant."""

    table: Document
    conflicts: tuple[Place, ...]


def merged(base: Document, theirs: Document, mine: Document, take: Mapping[str, str] | None = None) -> Merged:
    """`theirs` with the edit base → mine on it. `take` says for conflicting places whose is meant: `mine` or `theirs`.

    In the table, places of conflict stay as `theirs`.
    """
    routes, rules = by_id(theirs), theirs[RULES]
    conflicts = []
    for place in three_way(base, theirs, mine):
        side = (take or {}).get(place.route) if place.state == "conflict" else place.state
        if side is None:
            conflicts.append(place)
        elif side == "mine" and place.route == RULES:
            rules = place.mine
        elif side == "mine" and place.mine is None:
            routes.pop(place.route, None)
        elif side == "mine":
            routes[place.route] = place.mine
    return Merged({"routes": list(routes.values()), "fallback_rules": rules}, tuple(conflicts))
