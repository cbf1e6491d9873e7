import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.edits import EMPTY, applied, difference, undone

A, B, C = {"id": "a", "priority": 1}, {"id": "b"}, {"id": "c"}
RULE = {"condition": "error", "action": "next_route"}


def table(*routes, rules=()):
    return {"routes": list(routes), "fallback_rules": list(rules)}


def test_put_replaces_in_place_and_adds_at_the_end():
    edited = applied(table(A, B), [{"op": "put", "id": "a", "priority": 2}, {"op": "put", "id": "c"}])
    assert edited == table({"id": "a", "priority": 2}, B, C)


def test_delete():
    assert applied(table(A, B, rules=[RULE]), [{"op": "delete", "id": "a"}]) == table(B, rules=[RULE])


def test_applying_leaves_the_base_alone():
    applied(EMPTY, [{"op": "put", "id": "a"}])
    assert table() == EMPTY


def test_difference():
    changed = {"id": "a", "priority": 2}
    found = difference(table(A, B), table(changed, C, rules=[RULE]))
    assert found == {
        "added": [C],
        "removed": [B],
        "changed": [{"id": "a", "before": A, "after": changed}],
        "fallback_rules": {"before": [], "after": [RULE]},
    }


def test_true_and_1_differ():
    assert difference(table({"id": "a", "x": True}), table({"id": "a", "x": 1}))["changed"]


@pytest.mark.parametrize(
    ("before", "after", "live", "expected"),
    [
        pytest.param(table(A), table(A, B), table(A, B, C), table(A, C), id="an addition goes, later ones stay"),
        pytest.param(table(A, B), table(A), table(A, C), table(A, C, B), id="a removal comes back"),
        pytest.param(table(A), table({"id": "a"}), table({"id": "a"}, C), table(A, C), id="a change goes back"),
        pytest.param(table(), table(rules=[RULE]), table(A, rules=[RULE]), table(A), id="fallback rules too"),
    ],
)
def test_undone(before, after, live, expected):
    result = undone(before, after, live)
    assert (result.table, result.conflicts, result.is_change) == (expected, (), True)


@pytest.mark.parametrize(
    ("before", "after", "live", "conflicts"),
    [
        pytest.param(table(), table(A), table(), ("a",), id="deleted since"),
        pytest.param(table(), table(A), table({"id": "a", "priority": 9}), ("a",), id="changed since"),
        pytest.param(table(A), table(), table({"id": "a"}), ("a",), id="added again since"),
        pytest.param(table(), table(rules=[RULE]), table(), ("fallback_rules",), id="fallback rules since"),
    ],
)
def test_what_changed_again_is_a_conflict(before, after, live, conflicts):
    assert undone(before, after, live).conflicts == conflicts


def test_no_change_has_nothing_to_undo():
    assert not undone(table(A), table(A), table(A, B)).is_change


tables = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2), max_size=4).map(
    lambda drawn: table(*[{"id": key, "priority": value} for key, value in drawn.items()])
)


@given(tables, tables)
def test_undoing_the_last_edit_gives_back_what_was(before, after):
    result = undone(before, after, after)
    assert not result.conflicts
    nothing = difference(before, result.table)
    assert nothing == {"added": [], "removed": [], "changed": []}
