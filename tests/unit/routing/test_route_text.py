"""Tables as text: what is written reads back alike, mistakes are found by line and route."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidRequest
from routing.route_text import arranged, dump_text, located
from routing.rules import MAX_NUMBER, load_text, parse_document

TRICKY = ["yes", "no", "on", "1e5", "1_000", "0x1f", "2026-01-01", "12:30", "~", "null", "", " ", "a: b", "- a", "#", "é 中", "=", "<<", ".5", "1.", "+1", "*x", "&x", "!x", "%", "\u0085", "\u2028", "line\nbreak", "tab\t"]  # fmt: skip  # noqa: E501
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-MAX_NUMBER, MAX_NUMBER),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(TRICKY),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TRICKY), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["id", "match", *TRICKY]), values, max_size=4), max_size=3))
def test_what_is_written_reads_back_alike(routes):
    table = {"routes": routes, "fallback_rules": []}
    assert repr(load_text(dump_text(table), "t")) == repr(arranged({"routes": routes}))


def test_keys_stand_where_people_look_for_them():
    rule = {"priority": 1, "strategy": {"services": ["a"], "type": "sticky", "key": "caller"}, "match": {}, "id": "r"}
    (shown,) = load_text(dump_text({"routes": [rule], "fallback_rules": []}), "t")["routes"]
    assert list(shown) == ["id", "priority", "match", "strategy"]
    assert list(shown["strategy"]) == ["type", "key", "services"]


def test_equal_parts_are_written_out():
    rule = {"condition": "error", "action": "next_route"}
    text = dump_text({"routes": [{"fallback_rules": [rule]}, {"fallback_rules": [rule]}], "fallback_rules": [rule]})
    assert "&" not in text and "*" not in text


TEXT = """\
# ours
routes:
  - id: good
    match: {capability: file_summary}
    strategy: {type: least_loaded}
  - id: bad
    match:
      capability: "FILE!"
      input.x: {eq: 1, gtt: 2}
    strateggy: {type: least_loaded}
  - id: good
    match: {}
    strategy: {type: least_loaded}
"""


def test_every_mistake_has_its_line_and_route():
    with pytest.raises(InvalidRequest) as caught:
        parse_document(load_text(TEXT, "r.yaml"), max_routes=10)
    found = list(located(caught.value.errors, TEXT, "r.yaml"))
    assert [line.partition(": ")[0] for line in found] == ["r.yaml:6", "r.yaml:8", "r.yaml:9", "r.yaml:10", "r.yaml:11"]
    assert found[0] == "r.yaml:6: route bad: strategy: is required"
    assert "route bad: match/input.x/gtt: unknown operator 'gtt'; did you mean 'gt'?" in found[2]
    assert "route bad: strateggy: unknown key 'strateggy'; did you mean 'strategy'?" in found[3]
    assert found[4].startswith("r.yaml:11: route good: id: 'good' is the id of an earlier route")
