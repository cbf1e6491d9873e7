"""Which parts of a payload a JSON Schema marks with `x-reach-sensitive`: those are masked where calls are kept."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

MARK = "x-reach-sensitive"
Path = tuple[str, ...]

ONE_OF = ("allOf", "anyOf", "oneOf")
BRANCHES = ("if", "then", "else", "not", "$ref", "$dynamicRef")
WITHIN = ("additionalProperties", "unevaluatedProperties", "items", "contains", "propertyNames")
"""What is marked within these has no name of its own: the whole value counts as marked."""


def sensitive_paths(schema: Any) -> frozenset[Path]:
    """The places that are marked, as paths through objects; `()` is the whole payload."""
    return frozenset(marked(schema, schema, (), frozenset()))


def marked(schema: Any, root: Any, path: Path, above: frozenset[int]) -> Iterator[Path]:
    if not isinstance(schema, dict) or id(schema) in above:
        return
    if schema.get(MARK) is True:
        yield path
    above |= {id(schema)}
    for key in ONE_OF:
        for part in listed(schema.get(key)):
            yield from marked(part, root, path, above)
    for key in BRANCHES:
        part = schema.get(key)
        yield from marked(referred(part, root) if isinstance(part, str) else part, root, path, above)
    for part in named(schema.get("dependentSchemas")).values():
        yield from marked(part, root, path, above)
    for name, part in named(schema.get("properties")).items():
        yield from marked(part, root, (*path, name), above)
    nameless = [schema.get(key) for key in WITHIN] + listed(schema.get("prefixItems"))
    nameless += named(schema.get("patternProperties")).values()
    for part in nameless:
        if any(True for _ in marked(part, root, path, above)):
            yield path


def referred(pointer: str, root: Any) -> Any:
    """What a reference within the document points at; None for any other."""
    if not pointer.startswith("#"):
        return None
    found = root
    for token in pointer[1:].split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def named(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


HIDDEN = "•••"
"""What stands where something is masked."""


def masked(value: Any, paths: Collection[Path]) -> Any:
    """A document with what lies at these paths hidden; the document itself stays as it is.

    Where a path leads through something that is no object, that is hidden: whoever sent it may have meant the same.
    """
    if not paths or value is None:
        return value
    if () in paths or not isinstance(value, dict):
        return HIDDEN
    below: dict[str, list[Path]] = {}
    for first, *rest in paths:
        below.setdefault(first, []).append(tuple(rest))
    return {name: masked(part, below.get(name, ())) for name, part in value.items()}


def masked_error(error: Mapping[str, Any], paths: Collection[Path], *, root: str) -> dict[str, Any]:
    """A call's error without the messages that quote what is to be hidden; their places stay. `root`: "/payload"."""
    told = dict(error)
    if not paths or "errors" not in error:
        return told
    told["errors"] = errors = []
    for one in error["errors"]:
        hide = is_hidden(one["path"], paths, root=root)
        errors.append({**one, "message": HIDDEN} if hide else one)
        if hide and one["message"]:
            told["detail"] = str(told.get("detail", "")).replace(one["message"], HIDDEN)
    return told


def is_hidden(pointer: str, paths: Collection[Path], *, root: str) -> bool:
    """Whether a place, as a JSON pointer below `root`, lies within something masked, or around it."""
    if pointer != root and not pointer.startswith(f"{root}/"):
        return False
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in pointer.removeprefix(root).split("/")[1:]]
    return any(all(a == b for a, b in zip(tokens, path, strict=False)) for path in paths)
