"""A JSON Schema as people read it: which values there are, what each may be. Pure; tables and forms are made of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from registry.core.schema_load import named_subschemas, resolve
from registry.core.sensitive import MARK

LIMITS = (
    "minLength", "maxLength", "pattern", "format", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum",
    "multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
DEEPEST = 8
"""Values below so many others are not told apart; nor is what refers to itself."""
MOST_PARTS = 400
"""More would be no table that anybody reads."""
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One value that a schema speaks of."""

    path: Path = ()
    types: tuple[str, ...] = ()
    """JSON Schema's names; none: it may be anything."""
    required: bool = False
    title: str = ""
    description: str = ""
    choices: tuple[Any, ...] = ()
    """The values it may have (`enum`, `const`); none: any of its types."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    default: Any = None
    has_default: bool = False
    examples: tuple[Any, ...] = ()
    sensitive: bool = False
    parts: tuple["Part", ...] = ()
    """Of an object, its named values."""
    item: "Part | None" = None
    """Of a list, what each of its values is."""
    branches: tuple["Part", ...] = ()
    """It is as one of these says."""
    is_closed: bool = False
    """An object without other values than the named ones."""
    is_cut: bool = False
    """There is more to it than is told here."""

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def kind(self) -> str | None:
        """Its one type besides null, or None."""
        types = [one for one in self.types if one != "null"]
        return types[0] if len(types) == 1 else None


def read_schema(schema: Any) -> Part:
    """The value that a schema describes, with all that it consists of, within bounds."""
    return Reader(schema).read(schema, (), frozenset(), required=True)


class Reader:
    """One reading of one schema: what it has room for yet."""

    def __init__(self, root: Any):
        self.root, self.names, self.room = root, named_subschemas(root), MOST_PARTS

    def read(self, schema: Any, path: Path, above: frozenset[int], *, required: bool = False) -> Part:
        self.room -= 1
        if not isinstance(schema, dict):
            return Part(path, required=required)
        if len(path) > DEEPEST or len(above) > 4 * DEEPEST or self.room < 0:
            return Part(path, types_of(schema), required, is_cut=True)
        found, met = merged(schema, self.root, self.names)
        if met & above:
            return Part(path, types_of(found), required, text(found.get("title")), is_cut=True)
        above |= met
        wanted: list[str] = [str(name) for name in listed(found.get("required"))]
        parts = tuple(
            self.read(part, (*path, name), above, required=name in wanted)
            for name, part in in_order({key: {} for key in wanted} | named(found.get("properties")), wanted)
        )
        items = found.get("items")
        branches = [*listed(found.get("anyOf")), *listed(found.get("oneOf"))]
        types = types_of(found)
        return Part(
            path,
            types or (("object",) if parts else ("array",) if isinstance(items, dict) else ()),
            required,
            text(found.get("title")),
            text(found.get("description")),
            tuple([found["const"]] if "const" in found else listed(found.get("enum"))),
            {limit: found[limit] for limit in LIMITS if limit in found},
            found.get("default"),
            "default" in found,
            tuple(listed(found.get("examples"))),
            found.get(MARK) is True,
            parts,
            self.read(items, path, above) if isinstance(items, dict) else None,
            tuple(self.read(branch, path, above) for branch in branches),
            found.get("additionalProperties") is False or found.get("unevaluatedProperties") is False,
        )


def merged(schema: dict[str, Any], root: Any, names: dict[str, Any]) -> tuple[dict[str, Any], frozenset[int]]:
    """A schema with what it refers to and what `allOf` adds, and which schemas these are; it speaks first itself."""
    found: dict[str, Any] = {}
    waiting, seen = [schema], set[int]()
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        for keyword, value in one.items():
            if keyword == "properties":
                found["properties"] = named(value) | named(found.get("properties"))
            elif keyword == "required":
                found["required"] = listed(found.get("required")) + listed(value)
            else:
                found.setdefault(keyword, value)
        waiting += listed(one.get("allOf"))
        if isinstance(reference := one.get("$ref"), str):
            waiting.append(resolve(reference, root, names) or {})
    return found, frozenset(seen)


def in_order(properties: dict[str, Any], wanted: list[str]) -> list[tuple[str, Any]]:
    """What is required first, as it is named there; the rest by name: the database keeps no order of names."""
    place = {name: number for number, name in enumerate(wanted)}
    return sorted(properties.items(), key=lambda item: (place.get(item[0], len(place)), item[0]))


def types_of(schema: dict[str, Any]) -> tuple[str, ...]:
    types = schema.get("type")
    return (types,) if isinstance(types, str) else tuple(str(one) for one in listed(types))


def flat(part: Part, depth: int = 0) -> Iterator[tuple[int, Part]]:
    """Every value with how deep it stands, each below the one that holds it; the whole itself is left out."""
    for inner in part.parts:
        yield depth, inner
        yield from flat(inner, depth + 1)
    if part.item is not None and (part.item.parts or part.item.item or part.item.branches):
        yield from flat(part.item, depth)
    for number, branch in enumerate(part.branches, start=1):
        if branch.parts:
            yield depth, replace(branch, path=(*part.path, f"#{number}"), parts=())
            yield from flat(branch, depth + 1)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def named(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""
