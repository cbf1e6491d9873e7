import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.ordering import in_order, precedes
from tests.unit.routing.builders import a_rule, routes


def order(*matches, priorities=()):
    """Indexes in the order tried; ids are written so that they would reverse it."""
    rules = [
        a_rule(f"{chr(ord('z') - i)}", match, **({"priority": priorities[i]} if priorities else {}))
        for i, match in enumerate(matches)
    ]
    return [ord("z") - ord(route.id) for route in in_order(routes(*rules))]


@pytest.mark.parametrize(
    ("finer", "coarser"),
    [
        pytest.param({"capability": "a", "tags": ["x"]}, {"capability": "a"}, id="more keys"),
        pytest.param({"capability": "a"}, {"capability": "a*"}, id="exact before glob"),
        pytest.param({"capability": "a*"}, {"capability": {"fuzzy": "a"}}, id="glob before fuzzy"),
        pytest.param({"capability": {"fuzzy": "a"}}, {}, id="fuzzy before none"),
        pytest.param({"input.x": 1}, {"input.x": [1, 2]}, id="eq before in"),
        pytest.param({"input.x": [1, 2]}, {"input.x": {"gte": 1}}, id="in before range"),
        pytest.param({"input.x": {"gte": 1}}, {"input.x": {"exists": True}}, id="range before exists"),
        pytest.param({"input.x": {"gte": 1, "lt": 2}}, {"input.x": {"gte": 1}}, id="two bounds before one"),
        pytest.param({"input.x": ["a", "b"]}, {"input.x": ["a", "b", "c"]}, id="fewer options"),
        pytest.param({"input.x": {"prefix": "/a/b"}}, {"input.x": {"prefix": "/a"}}, id="longer prefix"),
        pytest.param({"tags": ["a", "b"]}, {"tags": ["a"]}, id="more tags"),
        pytest.param({"capability": "file_s*"}, {"capability": "file_*"}, id="longer glob"),
    ],
)
def test_the_finer_route_is_tried_first(finer, coarser):
    assert order(finer, coarser) == [0, 1]
    assert order(coarser, finer) == [1, 0]


def test_priority_comes_before_everything_and_is_0_when_absent():
    specific, general = {"capability": "a", "tags": ["x"]}, {}
    assert order(specific, general, priorities=(0, 1)) == [1, 0]
    rules = [a_rule("a", priority=-1), a_rule("b"), a_rule("c", priority=1)]
    assert [route.id for route in in_order(routes(*rules))] == ["c", "b", "a"]


def test_equals_go_by_id():
    assert [r.id for r in in_order(routes(a_rule("b"), a_rule("a"), a_rule("c")))] == ["a", "b", "c"]


scalars = st.sampled_from(["a", "b", 1, True, None])
operators = st.fixed_dictionaries(
    {},
    optional={
        "eq": scalars,
        "in": st.lists(scalars, min_size=1, max_size=3),
        "gte": st.integers(0, 2),
        "lt": st.integers(3, 4),
        "exists": st.booleans(),
        "prefix": st.sampled_from(["a", "ab"]),
        "ne": scalars,
    },
).filter(bool)
matches = st.fixed_dictionaries(
    {},
    optional={
        "capability": st.sampled_from(["a", "b", "a*", "*", "ab*", {"fuzzy": "a"}]),
        "tags": st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2, unique=True),
        "input.p": scalars | operators | st.lists(scalars, min_size=1, max_size=2),
        "input.q": operators,
        "urgency": st.sampled_from(["bulk", ["bulk", "normal"]]),
    },
)
rule_lists = st.lists(st.tuples(matches, st.integers(-1, 1)), min_size=3, max_size=6).map(
    lambda drawn: routes(*[a_rule(f"r{i}", match, priority=priority) for i, (match, priority) in enumerate(drawn)])
)


@given(rule_lists)
def test_the_order_is_strict_and_total(drawn):
    for left in drawn:
        assert not precedes(left, left)
        for right in drawn:
            if left is not right:
                assert precedes(left, right) != precedes(right, left)
            for third in drawn:
                if precedes(left, right) and precedes(right, third):
                    assert precedes(left, third)


@given(rule_lists, st.randoms())
def test_the_order_does_not_depend_on_how_the_table_was_written(drawn, random):
    written = list(drawn)
    random.shuffle(written)
    ordered = in_order(drawn)
    assert in_order(written) == ordered
    assert all(precedes(left, right) for left, right in itertools.pairwise(ordered))
