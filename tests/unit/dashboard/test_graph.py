"""Which part of who calls whom is shown, and where everybody stands."""

import pytest

from dashboard.core.graph import Edge, places, shown

EDGES = [
    Edge("desk", "report", 100, 0),
    Edge("report", "query", 90, 30),
    Edge("query", "rights", 80, 0),
    Edge("batch", "query", 5, 5),
]


def names(edges) -> list[str]:
    return [f"{edge.source}>{edge.target}" for edge in edges]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, ["desk>report", "report>query", "query>rights", "batch>query"], id="the busiest first"),
        pytest.param({"most": 2}, ["desk>report", "report>query"], id="so many at most"),
        pytest.param({"focus": "report"}, ["desk>report", "report>query"], id="around one"),
        pytest.param(
            {"focus": "report", "steps": 2},
            ["desk>report", "report>query", "query>rights", "batch>query"],
            id="and their neighbours",
        ),
        pytest.param({"text": "BATCH"}, ["batch>query"], id="by name"),
        pytest.param({"failing": True}, ["report>query", "batch>query"], id="most failures first"),
        pytest.param({"focus": "nobody"}, [], id="around nobody"),
    ],
)
def test_shown(asked, expected):
    found = shown(EDGES, **asked)
    assert names(found.edges) == expected
    assert found.matching == (4 if asked == {"most": 2} else len(expected))


def test_callers_stand_left_of_whom_they_call():
    where = places(EDGES)
    assert {name: place.column for name, place in where.items()} == {
        "desk": 0, "batch": 0, "report": 1, "query": 2, "rights": 3,
    }  # fmt: skip


def test_a_circle_and_a_self_call_have_places_too():
    where = places([Edge("a", "b", 9, 0), Edge("b", "a", 1, 0), Edge("c", "c", 1, 0)])
    assert (where["a"].column, where["b"].column, where["c"].column) == (0, 1, 0)


def test_no_two_stand_at_one_place_among_two_hundred():
    edges = [Edge(f"s{n}", f"s{(n * 7 + k) % 200}", n + k, 0) for n in range(200) for k in (1, 3)]
    where = places(edges)
    assert len(where) == 200
    assert len({(place.column, place.row) for place in where.values()}) == 200
    assert where == places(list(reversed(edges)))
