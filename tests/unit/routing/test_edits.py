import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.edits import EMPTY, applied, difference, merged, three_way, undone

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


# --- Two edits of one table ------------------------------------------------------------------------------------------

A2, A3 = {"id": "a", "priority": 2}, {"id": "a", "priority": 3}


@pytest.mark.parametrize(
    ("base", "theirs", "mine", "expected"),
    [
        pytest.param(table(A), table(A, B), table(A, C), table(A, B, C), id="both add"),
        pytest.param(table(A, B), table(A2, B), table(A), table(A2), id="one changes, one removes another"),
        pytest.param(table(A), table(A2), table(A2), table(A2), id="both do the same"),
        pytest.param(table(A), table(), table(), table(), id="both remove"),
        pytest.param(table(A), table(A), table(A, rules=[RULE]), table(A, rules=[RULE]), id="fallback rules of one"),
    ],
)
def test_two_edits_are_merged(base, theirs, mine, expected):
    assert (merged(base, theirs, mine).table, merged(base, theirs, mine).conflicts) == (expected, ())


@pytest.mark.parametrize(
    ("base", "theirs", "mine", "place"),
    [
        pytest.param(table(A), table(A2), table(A3), "a", id="both change"),
        pytest.param(table(A), table(), table(A2), "a", id="they remove, I change"),
        pytest.param(table(A), table(A2), table(), "a", id="they change, I remove"),
        pytest.param(table(), table(A2), table(A3), "a", id="both add"),
        pytest.param(table(rules=[RULE]), table(), table(rules=[RULE, RULE]), "fallback_rules", id="fallback rules"),
    ],
)
def test_what_both_edit_differently_is_a_conflict(base, theirs, mine, place):
    result = merged(base, theirs, mine)
    assert [(found.route, found.state) for found in result.conflicts] == [(place, "conflict")]
    assert result.table == theirs
    for side, expected in (("mine", mine), ("theirs", theirs)):
        solved = merged(base, theirs, mine, {place: side})
        assert (solved.table, solved.conflicts) == (expected, ())


def test_three_sides_are_shown():
    found = three_way(table(A, B), table(A2, B), table(A, C))
    assert [(place.route, place.state) for place in found] == [("a", "theirs"), ("b", "mine"), ("c", "mine")]
    assert (found[0].base, found[0].theirs, found[0].mine) == (A, A2, A)


@given(tables, tables, tables)
def test_a_merge_keeps_what_one_side_alone_has_done(base, theirs, mine):
    result = merged(base, theirs, mine)
    was, now, wanted, got = (
        {route["id"]: route for route in side["routes"]} for side in (base, theirs, mine, result.table)
    )
    conflicts = {place.route for place in result.conflicts}
    for route_id in "abcd":
        old, live, new = was.get(route_id), now.get(route_id), wanted.get(route_id)
        if route_id in conflicts:
            assert old != live != new != old
        else:
            assert got.get(route_id) == (live if old == new else new)


@given(tables, tables)
def test_a_rebase_onto_ones_own_base_changes_nothing(base, mine):
    result = merged(base, base, mine)
    assert not result.conflicts
    assert difference(result.table, mine) == {"added": [], "removed": [], "changed": []}
