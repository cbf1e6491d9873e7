"""How pages tell what a JSON Schema says: types, limits and choices in the reader's language."""

import json
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import pgettext_lazy

from registry.core.schema_reading import Part, flat, read_schema

TYPE: Mapping[str, Promise] = {
    "string": pgettext_lazy("JSON type", "text"),
    "integer": pgettext_lazy("JSON type", "whole number"),
    "number": pgettext_lazy("JSON type", "number"),
    "boolean": pgettext_lazy("JSON type", "yes or no"),
    "object": pgettext_lazy("JSON type", "object"),
    "array": pgettext_lazy("JSON type", "list"),
    "null": pgettext_lazy("JSON type", "null"),
}
CHOICES_SHOWN, CHOICE_CHARACTERS = 12, 40


def schema_rows(schema: Any) -> list[dict[str, Any]]:
    """A schema as lines of a table: every value that it names, each below the one that holds it."""
    part = read_schema(schema)
    return [
        {
            "depth": depth,
            "name": choice_name(inner.name),
            "path": ".".join(inner.path),
            "type": type_words(inner),
            "required": inner.required,
            "limits": limit_words(inner),
            "description": inner.description or inner.title,
            "sensitive": inner.sensitive,
        }
        for depth, inner in flat(part)
    ]


def choice_name(name: str) -> str:
    """A value's name; the alternatives of one are numbered."""
    return _("alternative %(n)s") % {"n": name[1:]} if name.startswith("#") and name[1:].isdecimal() else name


def schema_note(schema: Any) -> str:
    """What is to be said of the whole, besides its lines."""
    part = read_schema(schema)
    if not part.parts and not part.branches and not part.item:
        return _("Anything is allowed.") if not part.types and not part.choices else type_words(part)
    if part.kind == "array":
        return type_words(part)
    return _("No other fields are taken.") if part.is_closed else ""


def type_words(part: Part) -> str:
    """What kind of value it is."""
    if part.kind == "array" and part.item is not None:
        return _("list of %(what)s") % {"what": type_words(part.item)}
    if not part.types:
        return _("one of several") if part.branches else _("choice") if part.choices else _("anything")
    return _(" or ").join(str(TYPE.get(one, one)) for one in part.types)


def limit_words(part: Part) -> list[str]:
    """What the value is bound by, a phrase each."""
    limits, told = part.limits, []
    if part.choices:
        shown = ", ".join(shortened(value) for value in part.choices[:CHOICES_SHOWN])
        left_out = len(part.choices) - CHOICES_SHOWN
        told.append(_("one of: %(values)s") % {"values": shown + (f" … +{left_out}" if left_out > 0 else "")})
    for low, high, unit in (
        ("minLength", "maxLength", _("%(range)s characters")),
        ("minItems", "maxItems", _("%(range)s entries")),
        ("minProperties", "maxProperties", _("%(range)s fields")),
    ):
        if reach := range_words(limits.get(low), limits.get(high)):
            told.append(unit % {"range": reach})
    if reach := range_words(limits.get("minimum"), limits.get("maximum")):
        told.append(reach)
    told += [
        sign % {"value": limits[name]}
        for name, sign in (
            ("exclusiveMinimum", "> %(value)s"),
            ("exclusiveMaximum", "< %(value)s"),
            ("multipleOf", _("a multiple of %(value)s")),
            ("format", _("format: %(value)s")),
            ("pattern", _("pattern: %(value)s")),
        )
        if name in limits
    ]
    if limits.get("uniqueItems") is True:
        told.append(_("no two alike"))
    if part.item is not None and part.kind == "array":
        told += [_("each: %(limit)s") % {"limit": limit} for limit in limit_words(part.item)]
    if part.has_default:
        told.append(_("else: %(value)s") % {"value": shortened(part.default)})
    if part.is_closed and part.parts:
        told.append(_("no other fields"))
    if part.is_cut:
        told.append(_("and more, see the schema"))
    return told


def range_words(low: Any, high: Any) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return _("at least %(n)s") % {"n": low}
    if low is None:
        return _("at most %(n)s") % {"n": high}
    return str(low) if low == high else _("%(low)s to %(high)s") % {"low": low, "high": high}


def shortened(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= CHOICE_CHARACTERS else text[: CHOICE_CHARACTERS - 1] + "…"
