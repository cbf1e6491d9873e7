"""A schema read for people, and the form that is made of it."""

import json
from typing import Any

import pytest
from django.http import QueryDict

from registry.core.schema_form import Mistake, Widget, filled_in, first_payload, form_of, parse_json, payload_of
from registry.core.schema_reading import MOST_PARTS, flat, read_schema
from registry.schemas import compile_schema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["path", "kind", "options"],
    "additionalProperties": False,
    "properties": {
        "path": {"type": "string", "maxLength": 100, "description": "where it lies"},
        "note": {"type": "string", "maxLength": 5000},
        "kind": {"enum": ["report", "email", 7]},
        "pages": {"type": "integer", "minimum": 1, "maximum": 50, "default": 3},
        "share": {"type": ["number", "null"]},
        "deep": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "days": {"type": "array", "items": {"enum": ["mo", "tu"]}},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
        "options": {"$ref": "#/$defs/options"},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "any": {},
    },
    "$defs": {
        "options": {
            "type": "object",
            "allOf": [{"required": ["lang"], "properties": {"lang": {"type": "string", "x-reach-sensitive": True}}}],
            "properties": {"again": {"$ref": "#/$defs/options"}},
        }
    },
}


def field_names(schema: Any) -> dict[str, Widget]:
    return {field.pointer: field.widget for field in form_of(read_schema(schema)).walk()}


def posted(**fields: Any) -> QueryDict:
    given = QueryDict(mutable=True)
    for name, value in fields.items():
        given.setlist(f"field:/{name}", value if isinstance(value, list) else [value])
    return given


def test_every_value_gets_a_field_by_its_type():
    assert field_names(SCHEMA) == {
        "": Widget.GROUP,
        "/path": Widget.TEXT,
        "/note": Widget.LONG_TEXT,
        "/kind": Widget.CHOICE,
        "/pages": Widget.WHOLE,
        "/share": Widget.NUMBER,
        "/deep": Widget.YES_NO,
        "/words": Widget.LINES,
        "/sizes": Widget.LINES,
        "/days": Widget.CHOICES,
        "/rows": Widget.JSON,
        "/options": Widget.GROUP,
        "/options/again": Widget.JSON,
        "/options/lang": Widget.TEXT,
        "/either": Widget.JSON,
        "/any": Widget.JSON,
    }


def test_a_filled_in_form_is_a_payload_and_the_way_back():
    form = form_of(read_schema(SCHEMA))
    given = posted(
        path="/a/b.pdf", kind="7", pages="4", share="0.5", deep="false", words="one\r\n\r\ntwo", sizes="1\n2",
        days=['"mo"', '"tu"'], rows='[{"x": 1}]', note="", **{"options/lang": "de"}, either="5",
    )  # fmt: skip
    payload, mistakes = payload_of(form, given)
    assert mistakes == {}
    assert payload == {
        "path": "/a/b.pdf", "kind": 7, "pages": 4, "share": 0.5, "deep": False, "words": ["one", "two"],
        "sizes": [1, 2], "days": ["mo", "tu"], "rows": [{"x": 1}], "options": {"lang": "de"}, "either": 5,
    }  # fmt: skip
    assert compile_schema(SCHEMA).accepts(payload)
    again = QueryDict(mutable=True)
    for name, values in filled_in(form, payload).items():
        again.setlist(name, values)
    assert payload_of(form, again) == (payload, {})


@pytest.mark.parametrize(
    ("field", "written", "mistake"),
    [
        ("pages", "4.5", Mistake.NOT_WHOLE),
        ("pages", "x", Mistake.NOT_WHOLE),
        ("share", "nan", Mistake.NO_NUMBER),
        ("kind", '"poem"', Mistake.NO_CHOICE),
        ("rows", "[1,", Mistake.NO_JSON),
        ("any", "NaN", Mistake.NO_JSON),
        ("sizes", "1\nb", Mistake.NOT_WHOLE),
    ],
)
def test_what_cannot_be_read_is_said_at_its_field(field: str, written: str, mistake: Mistake):
    given = posted(path="p", kind='"report"', **{"options/lang": "de"}) | posted(**{field: written})
    given = posted(**({"path": "p", "kind": '"report"', "options/lang": "de"} | {field: written}))
    _payload, mistakes = payload_of(form_of(read_schema(SCHEMA)), given)
    assert mistakes == {f"/{field}": mistake}


def test_what_is_required_and_left_empty_is_said():
    _payload, mistakes = payload_of(form_of(read_schema(SCHEMA)), posted())
    assert mistakes == dict.fromkeys(("/path", "/kind", "/options/lang"), Mistake.MISSING)


def test_the_schema_s_defaults_come_first():
    assert first_payload(read_schema(SCHEMA)) == {"pages": 3}


def test_a_recursive_schema_ends_and_says_so():
    parts = [part for _depth, part in flat(read_schema(SCHEMA))]
    assert [part.path for part in parts if part.is_cut] == [("options", "again")]
    assert [part.path for part in parts if part.sensitive] == [("options", "lang")]


@pytest.mark.parametrize("schema", [True, False, None, {}, {"type": "array", "items": {"type": "string"}}, "x", [1]])
def test_any_schema_has_a_form(schema: Any):
    field_names(schema)


def test_a_huge_schema_is_told_in_part():
    schema = {"properties": {f"p{n}": {"type": "object", "properties": {"x": {}}} for n in range(2000)}}
    assert sum(1 for _ in flat(read_schema(schema)) if _[1].path[-1] == "x") <= MOST_PARTS


def test_names_with_slashes_keep_apart():
    schema = {"properties": {"a/b": {"type": "string"}, "a~b": {"type": "string"}}}
    assert set(field_names(schema)) == {"", "/a~1b", "/a~0b"}


@pytest.mark.parametrize("written", ["", "{", "NaN", "[" * 100_000])
def test_no_json(written: str):
    with pytest.raises(ValueError):
        parse_json(written)
    assert parse_json(json.dumps({"a": [1]})) == {"a": [1]}
