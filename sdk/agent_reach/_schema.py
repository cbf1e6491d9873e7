"""Whether payloads fit a schema, and whether a handler's hints fit it. JSON Schema itself is left to `jsonschema`."""

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, Union, get_args, get_origin, is_typeddict

from agent_reach.errors import SetupError
from agent_reach.models import Capability, JSONSchema

MAX_ERRORS = 20


class Check(Protocol):
    """The errors of a payload; none when it fits."""

    def __call__(self, payload: Any) -> list[dict[str, str]]: ...


@lru_cache(maxsize=1)
def has_validator() -> bool:
    """Whether `jsonschema` is installed (the extra `schema`). Without it payloads are checked by Agent-Reach alone."""
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        return False
    return True


def payload_check(capability: Capability) -> Check | None:
    """The compiled input schema; None when there is nothing to check, or nothing to check with. Raises SetupError."""
    if not capability.input_schema or not has_validator():
        return None
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    kind = validator_for(capability.input_schema, default=Draft202012Validator)
    try:
        kind.check_schema(dict(capability.input_schema))
    except SchemaError as exc:
        place = "/".join(map(str, exc.absolute_path))
        raise SetupError(f"input_schema of {capability.name} is no JSON Schema: {exc.message} (at /{place})") from exc
    validator = kind(dict(capability.input_schema))

    def check(payload: Any) -> list[dict[str, str]]:
        errors = []
        for error in validator.iter_errors(payload):
            place = "".join(f"/{token}" for token in error.absolute_path)
            errors.append({"path": f"/payload{place}", "message": error.message[:300]})
            if len(errors) == MAX_ERRORS:
                break
        return errors

    return check


def check_examples(capability: Capability, check: Check | None) -> None:
    """Raise SetupError when an example does not fit the input schema."""
    for number, example in enumerate(capability.examples if check is not None else (), start=1):
        if errors := check(example) if check is not None else []:
            place = errors[0]["path"].removeprefix("/payload") or "the whole"
            raise SetupError(
                f"example {number} of {capability.name} does not fit its input_schema: {place}: "
                f"{errors[0]['message']}; correct the example or the schema"
            )


# --- Hints -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the model that a handler's payload is hinted as."""

    name: str
    is_required: bool
    hint: Any


@dataclass(frozen=True, slots=True)
class Hint:
    """A model in a handler's hint: its fields, whether it refuses others, how a payload becomes one (None: as is)."""

    name: str
    fields: tuple[Field, ...]
    is_closed: bool
    build: Callable[[Any], Any] | None


def hint_of(annotation: Any) -> Hint | None:
    """What a TypedDict, dataclass or pydantic model asks of a payload; None for every other annotation."""
    if is_typeddict(annotation):
        required: frozenset[str] = annotation.__required_keys__
        fields = tuple(Field(name, name in required, hint) for name, hint in typing.get_type_hints(annotation).items())
        return Hint(annotation.__name__, fields, is_closed=False, build=None)
    if not isinstance(annotation, type):
        return None
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        fields = tuple(
            Field(f.name, f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING, hints[f.name])
            for f in dataclasses.fields(annotation)
            if f.init
        )
        return Hint(annotation.__name__, fields, is_closed=True, build=lambda payload: annotation(**payload))
    if isinstance(model_fields := getattr(annotation, "model_fields", None), Mapping):  # pydantic
        fields = tuple(
            Field(f.validation_alias if isinstance(f.validation_alias, str) else name, f.is_required(), f.annotation)
            for name, f in model_fields.items()
        )
        is_closed = annotation.model_config.get("extra") == "forbid"  # type: ignore[attr-defined]
        return Hint(annotation.__name__, fields, is_closed, annotation.model_validate)  # type: ignore[attr-defined]
    return None


def check_hint(capability: Capability, hint: Hint, handler_name: str) -> None:
    """Raise SetupError with the first way in which payloads that fit the schema would not fit the handler."""
    if (mismatch := next(mismatches(capability.input_schema, hint), None)) is not None:
        raise SetupError(f"{handler_name} and the input_schema of {capability.name} do not fit: {mismatch}")


def mismatches(schema: JSONSchema, hint: Hint) -> Iterator[str]:
    """How payloads that the schema lets pass may not fit the hinted model, a sentence each."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        if any(field.is_required for field in hint.fields):
            yield f"{hint.name} has fields, and the schema declares no properties; declare them there"
        return
    required: Collection[str] = schema.get("required", ())
    for field in hint.fields:
        if field.name not in properties:
            if field.is_required:
                yield (
                    f"{hint.name} needs {field.name!r}, which the schema does not have "
                    f"(it has {', '.join(map(repr, properties)) or 'none'}); name it alike in both"
                )
            continue
        if field.is_required and field.name not in required:
            yield (
                f"{hint.name} needs {field.name!r}, and the schema does not require it; "
                f"add it to `required`, or give the field a default"
            )
        declared, understood = schema_types(properties[field.name]), hint_types(field.hint)
        if declared and understood and not declared <= understood:
            yield (
                f"{field.name!r} may be {' or '.join(sorted(declared - understood))} by the schema, "
                f"and {hint.name} takes {' or '.join(sorted(understood))}"
            )
    known = {field.name for field in hint.fields}
    for name in properties:
        if name not in known and (hint.is_closed or name in required):
            yield f"the schema has {name!r}, which {hint.name} does not know; add the field, or drop it from the schema"


JSON_TYPES: dict[Any, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer"}),
    float: frozenset({"integer", "number"}),
    type(None): frozenset({"null"}),
    list: frozenset({"array"}),
    tuple: frozenset({"array"}),
    dict: frozenset({"object"}),
    Sequence: frozenset({"array"}),
    Mapping: frozenset({"object"}),
}


def schema_types(schema: Any) -> frozenset[str]:
    """The JSON types that a property's schema names; empty when it does not say."""
    declared = schema.get("type") if isinstance(schema, Mapping) else None
    return frozenset([declared] if isinstance(declared, str) else declared or ())


def hint_types(hint: Any) -> frozenset[str]:
    """The JSON types that a hint takes; empty when that cannot be told."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        parts = [hint_types(part) for part in get_args(hint)]
        return frozenset().union(*parts) if all(parts) else frozenset()
    if origin is typing.Annotated or origin in (typing.Required, typing.NotRequired):
        return hint_types(get_args(hint)[0])
    if origin is Literal:
        return frozenset().union(*(JSON_TYPES.get(type(value), frozenset()) for value in get_args(hint)))
    kind = origin or hint
    if is_typeddict(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields"):
        return JSON_TYPES[dict]
    try:
        return JSON_TYPES.get(kind, frozenset())
    except TypeError:  # an unhashable hint
        return frozenset()
