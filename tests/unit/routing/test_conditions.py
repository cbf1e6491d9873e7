import pytest

from routing.core.matching import match_refusal, matched_routes
from tests.unit.routing.builders import a_rule, an_envelope, routes


def holds(match, **facts) -> bool:
    (route,) = routes(a_rule("r", {"capability": "file_summary", **match}))
    envelope = an_envelope(**facts)
    matched = next(matched_routes(envelope, [route]), None) is route
    assert matched is (match_refusal(envelope, route) is None)
    return matched


ABSENT = object()


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        pytest.param("report", "report", True, id="scalar"),
        pytest.param("report", "email", False, id="other scalar"),
        pytest.param(["report", "email"], "email", True, id="any of a list"),
        pytest.param(["report", "email"], "code", False, id="none of a list"),
        pytest.param(5, 5.0, True, id="5 is 5.0"),
        pytest.param(5, "5", False, id="5 is not '5'"),
        pytest.param("5", 5, False, id="'5' is not 5"),
        pytest.param(1, True, False, id="1 is not true"),
        pytest.param(True, 1, False, id="true is not 1"),
        pytest.param([1, 0], True, False, id="true is not in [1, 0]"),
        pytest.param(None, None, True, id="null"),
        pytest.param(None, ABSENT, False, id="null is not absence"),
        pytest.param({"ne": "report"}, "email", True, id="ne"),
        pytest.param({"ne": 1}, True, True, id="ne is strict"),
        pytest.param({"ne": "report"}, "report", False, id="ne of the same"),
        pytest.param({"ne": "report"}, ABSENT, False, id="ne of nothing"),
        pytest.param({"in": ["a", 2]}, 2.0, True, id="in"),
        pytest.param({"gt": 5}, 5, False, id="gt is strict"),
        pytest.param({"gte": 5}, 5.0, True, id="gte"),
        pytest.param({"gte": 5, "lt": 10}, 10, False, id="two bounds"),
        pytest.param({"lte": 5}, 4.5, True, id="lte"),
        pytest.param({"gt": 0}, True, False, id="true is no number"),
        pytest.param({"gt": 0}, "7", False, id="text is no number"),
        pytest.param({"exists": True}, None, True, id="null exists"),
        pytest.param({"exists": True}, ABSENT, False, id="absence does not exist"),
        pytest.param({"exists": False}, ABSENT, True, id="exists false"),
        pytest.param({"exists": False}, "x", False, id="exists false of something"),
        pytest.param({"prefix": "/data/"}, "/data/x", True, id="prefix"),
        pytest.param({"prefix": "/data/"}, 5, False, id="prefix of a number"),
        pytest.param({"pattern": "摘要|[0-9]{3}"}, "第123页", True, id="pattern is unanchored"),
        pytest.param({"pattern": "^a+$"}, "baa", False, id="anchors are the author's"),
        pytest.param("report", ["report"], False, id="a list is not its element"),
    ],
)
def test_input_condition(wanted, value, expected):
    payload = {} if value is ABSENT else {"field": value}
    assert holds({"input.field": wanted}, payload=payload) is expected


@pytest.mark.parametrize("payload", [{"a": [{"b": 1}]}, {"a": 1}, {"a": None}, [], None, "a", 3])
def test_paths_lead_through_objects_only(payload):
    assert not holds({"input.a.b": 1}, payload=payload)
    assert holds({"input.a.b": {"exists": False}}, payload=payload)


def test_a_dotted_path_walks_objects():
    assert holds({"input.a.b.c": 1}, payload={"a": {"b": {"c": 1}}})


@pytest.mark.parametrize(
    ("match", "facts", "expected"),
    [
        ({"tags": ["prod"]}, {"tags": frozenset({"prod", "eu"})}, True),
        ({"tags": ["prod", "eu"]}, {"tags": frozenset({"prod"})}, False),
        ({"caller": "report-agent"}, {}, True),
        ({"caller": ["user:ann", "other"]}, {}, False),
        ({"urgency": ["bulk", "normal"]}, {}, True),
        ({"urgency": "interactive"}, {}, False),
        ({"labels.tenant": "emea"}, {"labels": {"tenant": "emea"}}, True),
        ({"labels.tenant": ["emea", "apac"]}, {"labels": {"tenant": "us"}}, False),
        ({"labels.tenant": "emea"}, {}, False),
        ({"labels.a.b": "x"}, {"labels": {"a.b": "x"}}, True),
    ],
)
def test_other_conditions(match, facts, expected):
    assert holds(match, **facts) is expected


def test_a_pattern_that_would_backtrack_for_ever_does_not():
    assert not holds({"input.x": {"pattern": "(a+)+$"}}, payload={"x": "a" * 100_000 + "b"})


def test_a_refusal_names_the_place_and_hides_the_value():
    (route,) = routes(a_rule("r", {"input.content_type": "report", "input.page": {"gte": 3}}))
    assert (
        match_refusal(an_envelope(payload={"content_type": "secret"}), route) == "input.content_type fails eq 'report'"
    )
    assert match_refusal(an_envelope(payload={"content_type": "report"}), route) == "input.page is missing"
