"""JSON Schema: check what is declared, compile once per text, say how much a schema demands.

The engine is `jsonschema_rs`: patterns run in linear time, nothing is ever fetched, and messages never quote the
value that was checked.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import jsonschema_rs
import msgspec

from registry.core.schema_load import resolve, too_much_work
from registry.core.strict_json import is_deeper
from registry.errors import InvalidRequest

JSONSchema = dict[str, Any] | bool | None

DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft-07/schema",
}
MAX_ERRORS, MAX_MESSAGE = 20, 300
MAX_NESTING = 64
"""Demands that stand deeper, through chains of references, are not counted."""
BOUNDS = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "enum", "const", "not"),
}


class CompiledSchema:
    """One schema, ready to check values. Satisfies `registry.core.node.Schema`."""

    __slots__ = ("_validator", "digest", "narrowness")

    def __init__(self, text: bytes):
        schema = msgspec.json.decode(text)
        self.digest = hashlib.sha256(text).hexdigest()
        self._validator = engine(schema)
        self.narrowness = demands(schema, schema, frozenset())

    def accepts(self, value: Any) -> bool:
        return self._validator.is_valid(value)

    def errors(self, value: Any, root: str = "/payload") -> list[dict[str, str]]:
        """What is wrong with a value, each with its JSON pointer below `root`; the first `MAX_ERRORS`."""
        found = []
        for error in self._validator.iter_errors(value):
            path, message = error.instance_path, error.message
            if error.kind.name == "required":
                path, message = [*path, error.kind.property], "is required"
            found.append({"path": pointer(root, path), "message": shortened(message)})
            if len(found) == MAX_ERRORS:
                break
        return found


def engine(schema: dict[str, Any] | bool) -> Any:
    """The validator for a schema. Raises jsonschema_rs.ValidationError, ReferencingError or ValueError."""
    return jsonschema_rs.validator_for(
        schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True, mask="the value"
    )


def compile_schema(schema: JSONSchema) -> CompiledSchema:
    """The compiled form, shared by all who declare the same schema. None and {} accept everything."""
    return compiled(msgspec.json.encode({} if schema is None else schema, order="deterministic"))


@lru_cache(maxsize=16_384)
def schema_of_text(text: str | None) -> CompiledSchema:
    """`compile_schema` of a schema as the database writes it, which is quicker than to read it every time."""
    return compile_schema(None if text is None else msgspec.json.decode(text))


@lru_cache(maxsize=16_384)
def compiled(text: bytes) -> CompiledSchema:
    return CompiledSchema(text)


def check_schema(schema: Any, *, max_bytes: int, max_depth: int, root: str = "") -> None:
    """Raise InvalidRequest, with the place below `root`, for a schema that cannot be used."""

    def refuse(message: str, path: Iterable[Any] = ()) -> InvalidRequest:
        place = pointer(root, path)
        return InvalidRequest(f"{place or 'the schema'}: {message}", [{"path": place, "message": message}])

    if not isinstance(schema, dict | bool | None):
        raise refuse("must be a JSON Schema: an object, true or false")
    text = msgspec.json.encode({} if schema is None else schema, order="deterministic")
    if len(text) > max_bytes:
        raise refuse(f"is larger than {max_bytes} bytes")
    if is_deeper(text, max_depth):
        raise refuse(f"is nested deeper than {max_depth} levels")
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    if dialect is not None and not (isinstance(dialect, str) and dialect.removesuffix("#") in DIALECTS):
        raise refuse("must be draft 2020-12, 2019-09 or 7", ["$schema"])
    try:
        engine({} if schema is None else schema)
    except jsonschema_rs.ValidationError as exc:
        raise refuse(shortened(exc.message), exc.instance_path) from exc
    except (jsonschema_rs.ReferencingError, ValueError) as exc:
        raise refuse(shortened(str(exc).splitlines()[0])) from exc
    if why := too_much_work(schema):
        raise refuse(why)


def narrowness(schema: JSONSchema) -> int:
    """How much a schema demands: required fields, enums, bounds, closed objects. A catch-all is 0.

    Types alone count nothing: a capability that takes any text is as wide as one that takes anything.
    """
    return compile_schema(schema).narrowness


def demands(schema: Any, root: Any, above: frozenset[int]) -> int:
    """`narrowness` of a part of the schema `root`; `above` are the parts that it stands in."""
    if schema is False:
        return 1
    if not isinstance(schema, dict) or id(schema) in above or len(above) > MAX_NESTING:
        return 0
    above |= {id(schema)}

    def of(part: Any) -> int:
        return demands(part, root, above)

    def listed(keyword: str) -> list[Any]:
        return value if isinstance(value := schema.get(keyword), list) else []

    total = len(listed("required")) + len(BOUNDS & schema.keys())
    total += schema.get("additionalProperties") is False
    total += schema.get("unevaluatedProperties") is False
    properties = schema.get("properties")
    total += sum(map(of, properties.values())) if isinstance(properties, dict) else 0
    total += of(schema.get("items")) + sum(map(of, listed("prefixItems"))) + sum(map(of, listed("allOf")))
    total += sum(min(map(of, branches)) for word in ("anyOf", "oneOf") if (branches := listed(word)))
    if isinstance(reference := schema.get("$ref"), str):
        total += of(resolve(reference, root, {"": ""}))
    return total


def advisories(
    declarations: Iterable[tuple[str, JSONSchema]], *, requires: Iterable[str] = (), provided: Iterable[str] = ()
) -> list[dict[str, str]]:
    """What a registration should better be told: capabilities that accept anything, needs that nobody meets."""
    found = [
        {
            "code": "accepts_anything",
            "capability": name,
            "message": f"the input schema of {name} accepts almost anything, so unfitting tasks may be sent here",
            "remedy": "name the fields it needs in `required`, and bound them with enum, maxLength, pattern or limits",
        }
        for name, schema in declarations
        if narrowness(schema) == 0
    ]
    found += [
        {
            "code": "requirement_unprovided",
            "capability": name,
            "message": f"{name} is required, and no registered node provides it",
            "remedy": f"register a service that declares {name}, or correct the name in `requires`",
        }
        for name in sorted(set(requires) - set(provided))
    ]
    return found


def pointer(root: str, path: Iterable[Any]) -> str:
    """`root` and a path of keys and indexes as a JSON pointer."""
    return root + "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in path)


def shortened(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
