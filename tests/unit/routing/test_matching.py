import itertools
import time
from pathlib import Path

import pytest

from routing.core.matching import EMPTY_TABLE, match_refusal, matched_routes
from routing.rules import build_table, load_text, parse_document
from tests.unit.routing.builders import a_rule, a_table, an_envelope

DATA = Path(__file__).resolve().parents[2] / "data"


def ids_for(table, envelope):
    return [route.id for route in matched_routes(envelope, table.for_capability(envelope.capability))]


@pytest.mark.parametrize(
    ("capability", "name", "expected"),
    [
        ("file_summary", "file_summary", True),
        ("file_summary", "file_summary2", False),
        ("file_*", "file_summary", True),
        ("file_*", "a_file_x", False),
        ("file_?", "file_x", True),
        ("*", "anything", True),
        ("file_[st]*", "file_translate", True),
        ({"fuzzy": "文件摘要"}, "file_summary", True),
        ({"fuzzy": "文件摘要", "min_score": 0.9}, "file_summary", False),
        ({"fuzzy": "summarise files"}, "file_summary", True),
        ({"fuzzy": "天气预报"}, "file_summary", False),
    ],
)
def test_capability(capability, name, expected):
    known = {"file_summary": "输入本地文件路径，输出摘要和关键要点", "file_translate": "", "anything": ""}
    table = a_table(a_rule("r", {"capability": capability}), known=known)
    assert (ids_for(table, an_envelope(capability=name)) == ["r"]) is expected
    refusal = match_refusal(an_envelope(capability=name), table.routes[0])
    assert (refusal is None) is expected


def test_a_route_without_a_capability_is_for_all_of_them():
    table = a_table(a_rule("r", {"tags": ["prod"]}), known={"a": "", "b": ""})
    assert ids_for(table, an_envelope(capability="b", tags=frozenset({"prod"}))) == ["r"]


def test_a_disabled_route_is_kept_but_never_matches():
    table = a_table(a_rule("off", enabled=False))
    assert [route.id for route in table.routes] == ["off"]
    assert ids_for(table, an_envelope()) == []
    assert match_refusal(an_envelope(), table.routes[0]) == "the route is disabled"


def test_unknown_capabilities_are_matched_too():
    table = a_table(a_rule("glob", {"capability": "new_*"}), a_rule("exact", {"capability": "new_one"}), known={})
    assert ids_for(table, an_envelope(capability="new_one")) == ["exact", "glob"]
    assert table.for_capability("new_one") is table.for_capability("new_one")


def test_the_empty_table_matches_nothing():
    assert EMPTY_TABLE.revision == 0
    assert ids_for(EMPTY_TABLE, an_envelope()) == []


def test_matching_is_lazy():
    table = a_table(a_rule("first", priority=1), a_rule("second"))
    matched = matched_routes(an_envelope(), table.for_capability("file_summary"))
    assert next(matched).id == "first"


def the_article(name):
    routes, _rules = parse_document(load_text((DATA / name).read_text(), name), max_routes=100)
    return build_table(1, routes, {"file_summary": "", "data_query": ""})


def test_the_articles_first_route_loads_without_its_lost_weights():
    (route,) = the_article("data_query_route.yaml").routes
    assert (route.strategy.type, route.strategy.weights, route.strategy.services) == ("weighted_random", None, None)
    prod, bare = an_envelope(capability="data_query", tags=frozenset({"prod"})), an_envelope(capability="data_query")
    table = the_article("data_query_route.yaml")
    assert ids_for(table, prod) == ["data_query_route"]
    assert ids_for(table, bare) == []


@pytest.mark.parametrize("name", ["summary_routes.yaml", "summary_routes_nested_fallback.yaml"])
def test_the_articles_summary_routes_behave_as_it_says(name):
    table = the_article(name)
    report, code = an_envelope(payload={"content_type": "report"}), an_envelope(payload={"content_type": "code"})
    assert ids_for(table, report) == ["summary_main_route", "summary_general_route"]
    assert ids_for(table, code) == ["summary_general_route"]
    main, general = table.routes
    assert main.strategy.services == ("doc-summarizer", "llm-light")
    assert general.strategy.weights == {"doc-summarizer": 40, "llm-light": 60}
    (rule,) = general.fallback_rules
    assert (rule.condition, rule.action, rule.wait_before_retry_ms) == ("no_available_node", "return_503", 500)


def test_top_level_fallback_rules_are_for_routes_without_their_own():
    rule = {"condition": "no_available_node", "action": "return_503"}
    own = {"condition": "error", "action": "next_route"}
    document = {"routes": [a_rule("a"), a_rule("b", fallback_rules=[own])], "fallback_rules": [rule]}
    (a, b), (table_rule,) = parse_document(document, max_routes=10)
    assert a.fallback_rules == (table_rule,)
    assert [r.condition for r in b.fallback_rules] == ["error"]


@pytest.mark.parametrize("priority", [{}, {"priority": 7}, {"priority": -1}])
def test_the_general_route_never_robs_the_specific_one_however_they_are_written(priority):
    """The article's 4.3: without priorities the catch-all took the specific route's tasks."""
    rules = [
        a_rule("z-specific", {"capability": "file_summary", "input.content_type": "report"}, **priority),
        a_rule("m-general", {"capability": "file_summary"}, **priority),
        a_rule("a-glob", {"capability": "file_*"}, **priority),
        a_rule("b-tags", {"capability": "file_summary", "input.content_type": "report", "tags": ["prod"]}, **priority),
    ]
    envelope = an_envelope(tags=frozenset({"prod"}))
    for written in itertools.permutations(rules):
        assert ids_for(a_table(*written), envelope) == ["b-tags", "z-specific", "m-general", "a-glob"]


def test_a_thousand_routes_for_other_capabilities_cost_nothing():
    def cost(others: int) -> float:
        rules = [a_rule(f"r{i}", {"capability": f"other_{i}", "input.x": i}) for i in range(others)]
        rules += [a_rule(f"g{i}", {"capability": f"else{i}_*"}) for i in range(others)]
        table = a_table(a_rule("mine"), *rules)
        envelope = an_envelope()
        assert len(table.for_capability("file_summary")) == 1

        def once() -> float:
            started = time.process_time()
            for _ in range(500):
                next(matched_routes(envelope, table.for_capability("file_summary")))
            return time.process_time() - started

        return min(once() for _ in range(10))

    assert cost(1000) < cost(10) * 2
