import time

import pytest

from registry.core.schema_load import too_much_work
from registry.errors import InvalidRequest
from registry.schemas import MAX_ERRORS, advisories, check_schema, compile_schema, narrowness

SUMMARY = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "content_type": {"type": "string", "enum": ["report", "email"]}},
    "required": ["content_type"],
}


def checked(schema, **limits):
    check_schema(schema, **({"max_bytes": 65_536, "max_depth": 32, "root": "/capabilities/0/input"} | limits))


def refusal(schema, **limits):
    with pytest.raises(InvalidRequest) as caught:
        checked(schema, **limits)
    return caught.value.errors[0]


def test_names_the_place_of_each_mistake_in_a_payload():
    errors = compile_schema(SUMMARY).errors({"file_path": 5})
    assert sorted(errors, key=lambda error: error["path"]) == [
        {"path": "/payload/content_type", "message": "is required"},
        {"path": "/payload/file_path", "message": 'the value is not of type "string"'},
    ]


def test_places_are_json_pointers():
    schema = compile_schema({"properties": {"a/b": {"items": {"required": ["c~d"]}}}})
    assert schema.errors({"a/b": [{}]}, root="/output") == [{"path": "/output/a~1b/0/c~0d", "message": "is required"}]


def test_messages_do_not_quote_the_value():
    schema = compile_schema({"properties": {"card": {"type": "integer"}, "pin": {"enum": [1]}}})
    assert "4111" not in str(schema.errors({"card": "4111 1111", "pin": "4111"}))


def test_messages_and_their_number_are_bounded():
    errors = compile_schema({"additionalProperties": False}).errors({"x" * 5000: 1})
    assert len(errors[0]["message"]) <= 300
    assert len(compile_schema({"items": {"type": "string"}}).errors([1] * 1000)) == MAX_ERRORS


@pytest.mark.parametrize("schema", [None, {}, True])
def test_no_schema_accepts_everything(schema):
    compiled = compile_schema(schema)
    assert all(compiled.accepts(value) for value in (None, 1, "x", [], {"a": [1.5]}))


def test_equal_schemas_are_compiled_once():
    one = compile_schema({"type": "object", "required": ["a"]})
    assert compile_schema({"required": ["a"], "type": "object"}) is one
    assert one.digest != compile_schema({"type": "object"}).digest


@pytest.mark.parametrize(
    ("dialect", "accepts"),
    [
        (None, False),
        ("https://json-schema.org/draft/2020-12/schema", False),
        ("https://json-schema.org/draft/2019-09/schema", True),
        ("http://json-schema.org/draft-07/schema#", True),
    ],
)
def test_the_dialect_decides_what_a_keyword_means(dialect, accepts):
    schema = {"type": "array", "additionalItems": {"type": "string"}, "prefixItems": [{"type": "integer"}]}
    if dialect:
        schema["$schema"] = dialect
    checked(schema)
    assert compile_schema(schema).accepts(["x"]) is accepts


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        pytest.param({"type": "strin"}, "/type", id="unknown type"),
        pytest.param({"properties": {"a/b": {"type": 5}}}, "/properties/a~1b/type", id="deep inside"),
        pytest.param({"pattern": "("}, "/pattern", id="not a pattern"),
        pytest.param({"pattern": "(?=a)b"}, "/pattern", id="a pattern that could backtrack"),
        pytest.param({"$ref": "https://example.com/schema.json"}, "", id="remote reference"),
        pytest.param({"$ref": "#/$defs/absent"}, "", id="dangling reference"),
        pytest.param({"$dynamicRef": "https://example.com/x"}, "", id="remote dynamic reference"),
        pytest.param({"$schema": "http://json-schema.org/draft-04/schema#"}, "/$schema", id="old draft"),
        pytest.param({"$schema": "https://example.com/meta"}, "/$schema", id="own dialect"),
        pytest.param([], "", id="a list"),
        pytest.param("x", "", id="text"),
        pytest.param(5, "", id="a number"),
    ],
)
def test_refuses_schemas_that_cannot_be_used(schema, place):
    assert refusal(schema)["path"] == "/capabilities/0/input" + place


def test_bounds_size_and_depth():
    nested = {}
    for _ in range(20):
        nested = {"properties": {"a": nested}}
    assert "larger than 100 bytes" in refusal({"description": "x" * 200}, max_bytes=100)["message"]
    assert "deeper than 32" in refusal(nested)["message"]


def doubling(levels, wrap):
    """A few lines of schema that apply their last definition 2 ** levels times."""
    defs = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(doubling(30, lambda ref: {"allOf": [ref, ref]}), id="on one value"),
        pytest.param(
            doubling(14, lambda ref: {"allOf": [{"items": ref}, {"items": ref}]}), id="a level down each time"
        ),
        pytest.param(
            {"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"additionalProperties": {"$ref": "#"}}]}, id="recursive"
        ),
        pytest.param(
            {
                "$defs": {
                    f"d{i}": {"$anchor": f"a{i}", "anyOf": [{"$ref": f"#a{i + 1}"}, {"$ref": f"#a{i + 1}"}]}
                    for i in range(12)
                }
                | {"d12": {"$anchor": "a12"}},
                "$ref": "#a0",
            },
            id="by anchors",
        ),
    ],
)
def test_refuses_schemas_that_explode(schema):
    started = time.process_time()
    assert "/capabilities/0/input" in refusal(schema)["path"]
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$ref": "#"}, id="refers to itself"),
        pytest.param({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}, id="a tree"),
        pytest.param({"$ref": "https://json-schema.org/draft/2020-12/schema"}, id="a schema of schemas"),
        pytest.param({"properties": {f"p{i}": {"type": "string"} for i in range(1500)}}, id="very wide"),
        pytest.param(
            {
                "$defs": {"address": {"properties": {f"f{i}": {"type": "string"} for i in range(20)}}},
                "properties": {f"p{i}": {"$ref": "#/$defs/address"} for i in range(100)},
            },
            id="one definition in many places",
        ),
    ],
)
def test_takes_schemas_that_are_merely_large_or_recursive(schema):
    checked(schema)
    assert too_much_work(schema) is None


def test_hostile_patterns_run_in_linear_time():
    schema = compile_schema({"type": "string", "pattern": "^(a+)+$"})
    started = time.process_time()
    assert not schema.accepts("a" * 50_000 + "b")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("schema", "demand"),
    [
        (None, 0),
        ({}, 0),
        ({"type": "object"}, 0),
        ({"type": "object", "properties": {"text": {"type": "string"}}}, 0),
        ({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}, 1),
        (SUMMARY, 2),
        ({"properties": {"text": {"maxLength": 2000}}, "required": ["text", "lang"], "additionalProperties": False}, 4),
        ({"anyOf": [{"required": ["a", "b"]}, {"required": ["c"]}]}, 1),
        ({"anyOf": [{"required": ["a"]}, True]}, 0),
        ({"allOf": [{"required": ["a"]}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"required": ["b"]}}}, 2),
        ({"properties": {"child": {"$ref": "#"}}, "required": ["id"]}, 1),
        (False, 1),
    ],
)
def test_narrowness_counts_what_a_schema_demands(schema, demand):
    assert narrowness(schema) == demand


def test_long_chains_of_references_do_no_harm():
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(900)} | {"d900": {"required": ["a"]}}
    schema = {"$ref": "#/$defs/d0", "$defs": chain}
    checked(schema)
    assert narrowness(schema) == 0


def test_advises_on_catch_alls_and_on_needs_nobody_meets():
    found = advisories(
        [("anything", {"type": "object"}), ("file_summary", SUMMARY)],
        requires=["data_query", "file_summary"],
        provided=["file_summary"],
    )
    assert [(a["code"], a["capability"]) for a in found] == [
        ("accepts_anything", "anything"),
        ("requirement_unprovided", "data_query"),
    ]
    assert all(a["message"] and a["remedy"] for a in found)
