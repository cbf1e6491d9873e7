"""What one condition says about another; held against the conditions themselves, which are the truth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.implication import contradiction, implies, narrows
from tests.unit.routing.builders import a_rule, an_envelope, routes

OPERANDS = st.sampled_from(["a", "ab", "b", 1, 2, 2.0, True, None])
NUMBERS = st.integers(0, 3)
TEXTS = st.sampled_from(["a", "ab", "abc", "b"])
OPERATORS = {
    **dict.fromkeys(("eq", "ne"), OPERANDS),
    "in": st.lists(OPERANDS, min_size=1, max_size=3),
    **dict.fromkeys(("gt", "gte", "lt", "lte"), NUMBERS),
    "exists": st.booleans(),
    "prefix": TEXTS,
    "pattern": st.sampled_from(["^a", "b$"]),
}
checks = st.dictionaries(st.sampled_from(sorted(OPERATORS)), st.none(), min_size=1, max_size=3).flatmap(
    lambda chosen: st.fixed_dictionaries({name: OPERATORS[name] for name in chosen})
)
VALUES = ["a", "ab", "abc", "b", "bb", "", 0, 1, 1.5, 2, 3, 4, True, False, None, [1], {"a": 1}, "missing"]


def condition_of(written):
    (route,) = routes(a_rule("r", {"input.x": written}))
    return route.conditions[0]


def envelope_with(value):
    return an_envelope(payload={} if value == "missing" else {"x": value})


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"eq": "a", "ne": "a"}, ["eq 'a'", "ne 'a'"]),
        ({"gt": 5, "lt": 5}, ["gt 5", "lt 5"]),
        ({"gt": 5, "lte": 5}, ["gt 5", "lte 5"]),
        ({"gte": 6, "lte": 5}, ["gte 6", "lte 5"]),
        ({"in": ["a", "b"], "prefix": "c"}, ["in", "prefix"]),
        ({"exists": False, "eq": 1}, ["exists false", "eq 1"]),
        ({"gt": 1, "prefix": "a"}, ["numbers", "texts"]),
        ({"eq": True, "gte": 1}, ["eq true", "gte 1"]),
    ],
)
def test_what_can_never_hold_is_named(written, words):
    said = contradiction(condition_of(written))
    assert all(word in said for word in words), said


@pytest.mark.parametrize("written", [{"gte": 5, "lte": 5}, {"gt": 1, "lt": 2}, {"in": ["a", "b"], "ne": "a"}, "a"])
def test_what_can_hold_is_left_alone(written):
    assert contradiction(condition_of(written)) is None


@given(checks)
def test_no_value_meets_a_contradiction(written):
    condition = condition_of(written)
    if contradiction(condition) is not None:
        assert not any(condition.holds(envelope_with(value)) for value in VALUES)


@given(checks, checks)
def test_whatever_meets_the_narrow_one_meets_the_wide_one(narrow, wide):
    one, other = condition_of(narrow), condition_of(wide)
    if implies(one.checks, other.checks):
        for value in VALUES:
            assert not one.holds(envelope_with(value)) or other.holds(envelope_with(value)), value


@pytest.mark.parametrize(
    ("narrow", "wide", "expected"),
    [
        pytest.param("a", {"exists": True}, True, id="a value is there"),
        pytest.param({"gt": 5}, {"gte": 5}, True, id="above is at least"),
        pytest.param({"gte": 5}, {"gt": 5}, False, id="at least is not above"),
        pytest.param({"lt": 3}, {"lt": 5}, True, id="below less"),
        pytest.param(["a", "b"], ["a", "b", "c"], True, id="fewer options"),
        pytest.param({"prefix": "abc"}, {"prefix": "ab"}, True, id="a longer prefix"),
        pytest.param({"prefix": "ab"}, {"prefix": "abc"}, False, id="a shorter prefix"),
        pytest.param({"exists": False}, {"ne": "a"}, False, id="nothing is there"),
    ],
)
def test_implies(narrow, wide, expected):
    assert implies(condition_of(narrow).checks, condition_of(wide).checks) is expected


@pytest.mark.parametrize(
    ("narrow", "wide", "expected"),
    [
        pytest.param({"capability": "file_summary"}, {"capability": "file_*"}, True, id="a name within a glob"),
        pytest.param({"capability": "file_*"}, {"capability": "file_summary"}, False, id="a glob is wider"),
        pytest.param({"capability": "file_summary"}, {}, True, id="everything"),
        pytest.param({}, {"capability": "*"}, False, id="no capability named"),
        pytest.param({"capability": "file_*"}, {"capability": "*"}, True, id="any name"),
        pytest.param({"tags": ["a", "b"]}, {"tags": ["a"]}, True, id="more tags"),
        pytest.param({"tags": ["a"]}, {"tags": ["a", "b"]}, False, id="fewer tags"),
        pytest.param({"input.x": 1, "caller": "c"}, {"input.x": 1}, True, id="one condition more"),
        pytest.param({"input.x": 1}, {"input.y": 1}, False, id="another place"),
    ],
)
def test_narrows(narrow, wide, expected):
    one, other = routes(a_rule("one", narrow), a_rule("other", wide))
    assert narrows(one, other) is expected
