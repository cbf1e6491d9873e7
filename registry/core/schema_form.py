"""A form made of a schema: which field each value gets, and the payload that the filled-in fields say. Pure."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from registry.core.schema_reading import Part

LONG_TEXT = 200
"""Texts that may be longer get a field of several lines."""


class Widget(StrEnum):
    """How a value is asked for."""

    TEXT = "text"
    LONG_TEXT = "long_text"
    WHOLE = "whole"
    NUMBER = "number"
    YES_NO = "yes_no"
    CHOICE = "choice"
    CHOICES = "choices"
    LINES = "lines"
    GROUP = "group"
    JSON = "json"


class Mistake(StrEnum):
    """What cannot be read of a filled-in field."""

    MISSING = "missing"
    NOT_WHOLE = "not_whole"
    NO_NUMBER = "no_number"
    NO_JSON = "no_json"
    NO_CHOICE = "no_choice"


class Posted(Protocol):
    """A filled-in form, as Django's QueryDict is one."""

    def getlist(self, key: str) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Field:
    """One field; a group holds others."""

    pointer: str
    """JSON pointer of its value within the payload: its name in the form."""
    widget: Widget
    part: Part
    options: tuple[tuple[str, str], ...] = ()
    """What can be chosen: the value as JSON, and as it is read."""
    fields: tuple["Field", ...] = ()

    @property
    def name(self) -> str:
        return f"field:{self.pointer}"

    def walk(self) -> Iterator["Field"]:
        """Itself, and all that it holds."""
        yield self
        for inner in self.fields:
            yield from inner.walk()


def form_of(part: Part) -> Field:
    """The field of a value with those of its parts."""
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in part.path)
    if part.choices:
        return Field(pointer, Widget.CHOICE, part, options(part.choices))
    if part.is_cut or part.branches:
        return Field(pointer, Widget.JSON, part)
    match part.kind:
        case "object" if part.parts:
            return Field(pointer, Widget.GROUP, part, fields=tuple(map(form_of, part.parts)))
        case "string":
            most = part.limits.get("maxLength", 0)
            long = isinstance(most, int | float) and most > LONG_TEXT
            return Field(pointer, Widget.LONG_TEXT if long else Widget.TEXT, part)
        case "integer":
            return Field(pointer, Widget.WHOLE, part)
        case "number":
            return Field(pointer, Widget.NUMBER, part)
        case "boolean":
            return Field(pointer, Widget.YES_NO, part)
        case "array" if part.item is not None and part.item.choices:
            return Field(pointer, Widget.CHOICES, part, options(part.item.choices))
        case "array" if part.item is not None and part.item.kind in ("string", "integer", "number"):
            return Field(pointer, Widget.LINES, part)
    return Field(pointer, Widget.JSON, part)


def options(values: tuple[Any, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((as_json(value), value if isinstance(value, str) else as_json(value)) for value in values)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


NOTHING: Any = object()
"""A field that was left empty: its value is left out."""


def payload_of(form: Field, posted: Posted) -> tuple[Any, dict[str, Mistake]]:
    """The payload that a filled-in form says, and by pointer what cannot be read of it. Empty fields are left out."""
    mistakes: dict[str, Mistake] = {}
    value = value_of(form, posted, mistakes)
    if value is NOTHING:
        value = {} if form.widget is Widget.GROUP else None
    return value, mistakes


def value_of(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    if field.widget is Widget.GROUP:
        found = {inner.part.name: value_of(inner, posted, mistakes) for inner in field.fields}
        given = {name: value for name, value in found.items() if value is not NOTHING}
        return given if given or field.part.required else NOTHING
    value = READERS.get(field.widget, read_text)(field, posted, mistakes)
    if value is NOTHING and field.part.required and field.pointer not in mistakes:
        mistakes[field.pointer] = Mistake.MISSING
    return value


Reader = Callable[[Field, Posted, dict[str, Mistake]], Any]


def typed(field: Field, posted: Posted) -> str:
    given = posted.getlist(field.name)
    return str(given[-1]) if given else ""


def read_text(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    return typed(field, posted).replace("\r\n", "\n") or NOTHING


def read_whole(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    return number_of(typed(field, posted), field, mistakes, whole=True)


def read_number(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    return number_of(typed(field, posted), field, mistakes, whole=False)


def number_of(written: str, field: Field, mistakes: dict[str, Mistake], *, whole: bool) -> Any:
    written = written.strip()
    if not written:
        return NOTHING
    try:
        if whole or written.lstrip("+-").isdecimal():
            return int(written)
        number = float(written)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        mistakes[field.pointer] = Mistake.NOT_WHOLE if whole else Mistake.NO_NUMBER
        return NOTHING
    return number


def read_yes_no(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    return {"true": True, "false": False}.get(typed(field, posted), NOTHING)


def read_choice(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    return chosen(typed(field, posted), field, mistakes)


def read_choices(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    found = [chosen(str(one), field, mistakes) for one in posted.getlist(field.name)]
    return found or ([] if field.part.required else NOTHING)


def chosen(written: str, field: Field, mistakes: dict[str, Mistake]) -> Any:
    if not written:
        return NOTHING
    if written not in [value for value, _label in field.options]:
        mistakes[field.pointer] = Mistake.NO_CHOICE
        return NOTHING
    return json.loads(written)


def read_lines(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    lines = [line.strip() for line in typed(field, posted).splitlines() if line.strip()]
    kind = field.part.item.kind if field.part.item is not None else "string"
    found = [line if kind == "string" else number_of(line, field, mistakes, whole=kind == "integer") for line in lines]
    return found or ([] if field.part.required else NOTHING)


def read_json(field: Field, posted: Posted, mistakes: dict[str, Mistake]) -> Any:
    written = typed(field, posted).strip()
    if not written:
        return NOTHING
    try:
        return parse_json(written)
    except ValueError:
        mistakes[field.pointer] = Mistake.NO_JSON
        return NOTHING


def parse_json(written: str) -> Any:
    """JSON that somebody has written. Raises ValueError, also for what Python takes beyond the standard."""
    try:
        return json.loads(written, parse_constant=refuse_constant)
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


READERS: Mapping[Widget, Reader] = {
    Widget.WHOLE: read_whole,
    Widget.NUMBER: read_number,
    Widget.YES_NO: read_yes_no,
    Widget.CHOICE: read_choice,
    Widget.CHOICES: read_choices,
    Widget.LINES: read_lines,
    Widget.JSON: read_json,
}


# --- What stands in the fields at first ------------------------------------------------------------------------------


def filled_in(form: Field, payload: Any) -> dict[str, list[str]]:
    """What stands in each field (by its name) for a payload to be shown: the way back from `payload_of`."""
    shown: dict[str, list[str]] = {}
    fill(form, payload, shown)
    return shown


def fill(field: Field, value: Any, shown: dict[str, list[str]]) -> None:
    if field.widget is Widget.GROUP:
        for inner in field.fields:
            if isinstance(value, dict) and inner.part.name in value:
                fill(inner, value[inner.part.name], shown)
        return
    shown[field.name] = as_written(field, value)


def as_written(field: Field, value: Any) -> list[str]:
    match field.widget:
        case Widget.CHOICE | Widget.YES_NO:
            return [as_json(value)]
        case Widget.CHOICES:
            return [as_json(one) for one in value] if isinstance(value, list) else []
        case Widget.LINES:
            return ["\n".join(str(one) for one in value)] if isinstance(value, list) else []
        case Widget.JSON:
            return [json.dumps(value, ensure_ascii=False, indent=2)]
        case _:
            return [value if isinstance(value, str) else as_json(value)]


def first_payload(part: Part) -> Any:
    """What a form begins with where there is no example: the defaults that the schema names."""
    if part.has_default:
        return part.default
    if part.parts:
        found = {inner.name: first_payload(inner) for inner in part.parts}
        return {name: value for name, value in found.items() if value is not None} or None
    return None
