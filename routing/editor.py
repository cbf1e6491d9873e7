"""What the route editor asks the server: a table as a form has it or as text, each made into the other and checked.

There is one reader and one writer of YAML, the server's; the page holds no second one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from registry.errors import InvalidRequest
from registry.models import Capability, Declaration, Service
from routing.core.edits import RULES, Document, difference
from routing.core.ordering import in_order
from routing.errors import UnreadableText
from routing.route_text import dump_text, line_of, places_of, yaml_of
from routing.rules import load_text, parse_document
from routing.sense import check_table, warnings_in

NAMES_SUGGESTED = 2000
FIELDS_SUGGESTED = 500
SOURCE = "text"


@dataclass(frozen=True, slots=True)
class Remark:
    """A mistake or a warning: its place as a JSON pointer and as a line of the text, and the route that it is of."""

    path: str
    line: int
    route: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A table in both forms. `document` is None where the text cannot be read; then the mistakes say why."""

    text: str
    document: Document | None
    mistakes: Sequence[Remark] = ()
    warnings: Sequence[Remark] = ()
    order: Sequence[str] = ()
    """The ids in the order in which they are tried; as written, where there are mistakes."""
    edits: dict[str, str] = field(default_factory=dict)
    """What became of the routes of the base: `added`, `changed` or `removed`, by id."""
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each route by its place in the list."""

    @property
    def is_valid(self) -> bool:
        return self.document is not None and not self.mistakes


def checked_text(text: str, base: Document) -> Checked:
    """The table that a text holds, and what is wrong with either."""
    text = text.replace("\r\n", "\n")
    try:
        loaded = load_text(text, SOURCE)
    except UnreadableText as exc:
        return Checked(text, None, [Remark("", exc.line, "", exc.problem)])
    return checked(text, loaded, base)


def checked_document(document: Any, base: Document) -> Checked:
    """A table as a form has it, and its text."""
    return checked(written(document), document, base)


def checked(text: str, loaded: Any, base: Document) -> Checked:
    lines, ids = places_of(text)

    def remark(path: str, message: str) -> Remark:
        parts = path.split("/")
        route = ids.get(int(parts[2])) if len(parts) > 2 and parts[1] == "routes" and parts[2].isdigit() else None
        return Remark(path, line_of(path, lines), route or "", message)

    starts = {path.removeprefix("/routes/"): line for path, line in lines.items() if path.count("/") == 2}
    try:
        check_table(loaded, base)
    except InvalidRequest as exc:
        found = [remark(error["path"], error["message"]) for error in exc.errors]
        shape = loaded if has_shape(loaded) else None
        return Checked(text, shape, sorted(found, key=lambda one: one.line), order=ids_written(shape), lines=starts)
    document: Document = {"routes": loaded["routes"], RULES: loaded.get(RULES) or []}
    routes, _rules = parse_document(document, max_routes=settings.REACH_MAX_ROUTES)
    return Checked(
        text,
        document,
        warnings=[remark(warned.path, warned.message) for warned in warnings_in(document)],
        order=[route.id for route in in_order(routes)],
        edits=edits(base, document),
        lines=starts,
    )


def has_shape(loaded: Any) -> bool:
    """Whether a form can show it: a list of routes, whatever is wrong within them."""
    return isinstance(loaded, dict) and isinstance(loaded.get("routes"), list)


def ids_written(document: Document | None) -> list[str]:
    routes = document["routes"] if document is not None else []
    return [str(route["id"]) for route in routes if isinstance(route, dict) and isinstance(route.get("id"), str)]


def edits(base: Document, document: Document) -> dict[str, str]:
    found = difference(base, document)
    made = {route["id"]: kind for kind in ("added", "removed") for route in found[kind]}
    return made | {edit["id"]: "changed" for edit in found["changed"]}


def written(document: Any) -> str:
    """A table of a form as text, however wrong it still is."""
    return dump_text(document) if isinstance(document, dict) else yaml_of(document)


def suggestions() -> dict[str, Any]:
    """Names that the tables know: for the fields of the form. `fields`: of each capability, what its payloads hold."""
    declared = Declaration.objects.filter(node__deleted_at=None).order_by("capability_id").distinct("capability_id")
    schemas = declared.values_list("capability_id", "input_schema")[:FIELDS_SUGGESTED]
    return {
        "services": list(Service.objects.order_by("pk").values_list("pk", flat=True)[:NAMES_SUGGESTED]),
        "capabilities": list(Capability.objects.order_by("pk").values_list("pk", flat=True)[:NAMES_SUGGESTED]),
        "fields": {name: sorted(schema.get("properties") or {}) for name, schema in schemas},
    }
