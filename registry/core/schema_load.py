"""How much work a JSON Schema can make of one value: `$ref`s may double at every step, in a few lines of schema."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

REFERENCES = ("$ref", "$dynamicRef")
SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
OTHER_CHILDREN = (
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
)
BY_NAME = ("patternProperties", "dependentSchemas")


def too_much_work(schema: Any, *, max_checks: int = 1000, max_work: int = 100_000) -> str | None:
    """Why the schema is too costly, or None: no value may be checked more than `max_checks` times.

    Walks the places that a document can have. At each, it counts how often every subschema is applied there; places
    with the same counts are the same, so recursive schemas end. `max_work` bounds the walk itself.
    """
    names = named_subschemas(schema)
    by_id: dict[int, Any] = {id(schema): schema}
    waiting, seen = [Counter([id(schema)])], set()
    while waiting:
        applied = in_place(waiting.pop(), schema, names, by_id, max_checks)
        max_work -= applied.total()
        if applied.total() > max_checks:
            return f"could check one value more than {max_checks} times"
        if max_work < 0:
            return "is too intricate to be checked"
        place = frozenset(applied.items())
        if place not in seen:
            seen.add(place)
            waiting.extend(below(applied, by_id))
    return None


def in_place(start: Counter[int], root: Any, names: dict[str, Any], by_id: dict[int, Any], limit: int) -> Counter[int]:
    """Every subschema applied to the same value as `start`, with its count; stops when their sum exceeds `limit`."""
    applied: Counter[int] = Counter()
    frontier = [(key, count, frozenset({key})) for key, count in start.items()]
    while frontier and applied.total() <= limit:
        key, count, path = frontier.pop()
        applied[key] += count
        schema = by_id[key]
        for part in (*parts(schema, SAME_VALUE), *referenced(schema, root, names)):
            by_id[id(part)] = part
            if id(part) not in path:
                frontier.append((id(part), count, path | {id(part)}))
    return applied


def below(applied: Counter[int], by_id: dict[int, Any]) -> Iterator[Counter[int]]:
    """What is applied to each kind of child: one for every property that is named, one for all others."""
    named: dict[str, Counter[int]] = {}
    others: Counter[int] = Counter()
    for key, count in applied.items():
        schema = by_id[key]
        properties = schema.get("properties") if isinstance(schema, dict) else None
        for name, part in properties.items() if isinstance(properties, dict) else ():
            by_id[id(part)] = part
            named.setdefault(name, Counter())[id(part)] += count
        for part in parts(schema, OTHER_CHILDREN):
            by_id[id(part)] = part
            others[id(part)] += count
    if others:
        yield others
    for children in named.values():
        yield children + others


def parts(schema: Any, keywords: tuple[str, ...]) -> Iterator[Any]:
    """The subschemas that stand under these keywords."""
    for keyword in keywords if isinstance(schema, dict) else ():
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from value
        elif isinstance(value, dict):
            yield from value.values() if keyword in BY_NAME else [value]


def referenced(schema: Any, root: Any, names: dict[str, Any]) -> Iterator[Any]:
    """The subschemas that references of this one lead to."""
    for keyword in REFERENCES if isinstance(schema, dict) else ():
        reference = schema.get(keyword)
        if isinstance(reference, str) and (found := resolve(reference, root, names)) is not None:
            yield found


def resolve(reference: str, root: Any, names: dict[str, Any]) -> Any | None:
    """What a reference within the document points at; None when it is none."""
    base, _hash, fragment = reference.partition("#")
    found = root if not base else names.get(base, names.get(urljoin(names[""], base)))
    if fragment and not fragment.startswith("/"):
        return names.get("#" + fragment)
    for token in unquote(fragment).split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(token)
        elif isinstance(found, list) and token.isdecimal() and int(token) < len(found):
            found = found[int(token)]
        else:
            return None
    return found


def named_subschemas(root: Any) -> dict[str, Any]:
    """Subschemas by `$id` (as written and absolute) and by "#anchor"; "" holds the document's own base URI."""
    base = root.get("$id", "") if isinstance(root, dict) else ""
    names: dict[str, Any] = {"": base if isinstance(base, str) else ""}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(own := value.get("$id"), str) and own:
                names[own] = names[urljoin(names[""], own)] = value
            for anchor in (value.get("$anchor"), value.get("$dynamicAnchor")):
                if isinstance(anchor, str):
                    names["#" + anchor] = value
        waiting.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    return names
