import time
from dataclasses import asdict

import pytest

from registry.errors import InvalidRequest
from routing.rules import check_operations, load_text, parse_document
from tests.unit.routing.builders import a_rule, routes


def mistakes(document, max_routes=100):
    with pytest.raises(InvalidRequest) as caught:
        parse_document(document, max_routes=max_routes)
    return {error["path"]: error["message"] for error in caught.value.errors}


def mistakes_in(**fields):
    rule = {**a_rule("r"), **fields}
    return {path.removeprefix("/routes/0"): text for path, text in mistakes({"routes": [rule]}).items()}


@pytest.mark.parametrize(
    ("match", "path"),
    [
        ({"capability": "File"}, "/match/capability"),
        ({"capability": 5}, "/match/capability"),
        ({"capability": None}, "/match/capability"),
        ({"capability": {"fuzzy": ""}}, "/match/capability/fuzzy"),
        ({"capability": {"fuzzy": "x", "min_score": 1.5}}, "/match/capability/min_score"),
        ({"capability": {"fuzzy": "x", "min_score": True}}, "/match/capability/min_score"),
        ({"tags": []}, "/match/tags"),
        ({"tags": "prod"}, "/match/tags"),
        ({"tags": [1]}, "/match/tags/0"),
        ({"input": 1}, "/match/input"),
        ({"input.": 1}, "/match/input."),
        ({"input.a..b": 1}, "/match/input.a..b"),
        ({"input.x": {"gte": "5"}}, "/match/input.x/gte"),
        ({"input.x": {"gte": True}}, "/match/input.x/gte"),
        ({"input.x": {"exists": 1}}, "/match/input.x/exists"),
        ({"input.x": {"in": []}}, "/match/input.x/in"),
        ({"input.x": [{}]}, "/match/input.x"),
        ({"input.x": {}}, "/match/input.x"),
        ({"input.x": {"eq": [1]}}, "/match/input.x/eq"),
        ({"input.x": {"pattern": "(?=a)"}}, "/match/input.x/pattern"),
        ({"input.x": {"pattern": "(a{500}){500}"}}, "/match/input.x/pattern"),
        ({"input.x": {"prefix": 5}}, "/match/input.x/prefix"),
        ({"input.x": 1e999}, "/match/input.x"),
        ({"input.a/b~c": {"gt": "x"}}, "/match/input.a~1b~0c/gt"),
        ({"labels.x": 5}, "/match/labels.x"),
        ({"labels.x": {"eq": "a"}}, "/match/labels.x"),
        ({"urgency": "soon"}, "/match/urgency"),
        ({"caller": ["a", 5]}, "/match/caller/1"),
    ],
)
def test_a_mistake_in_match_is_named_by_its_pointer(match, path):
    assert list(mistakes_in(match=match)) == [path]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"id": 7}, "/id"),
        ({"id": "auto"}, "/id"),
        ({"id": "a b"}, "/id"),
        ({"id": "x" * 129}, "/id"),
        ({"match": None}, "/match"),
        ({"match": []}, "/match"),
        ({"strategy": None}, "/strategy"),
        ({"strategy": {}}, "/strategy/type"),
        ({"strategy": {"type": "exact"}}, "/strategy/service"),
        ({"strategy": {"type": "exact", "service": "A"}}, "/strategy/service"),
        ({"strategy": {"type": "least_loaded", "services": []}}, "/strategy/services"),
        ({"strategy": {"type": "least_loaded", "services": ["a", "a"]}}, "/strategy/services/1"),
        ({"strategy": {"type": "weighted_random", "weights": {}}}, "/strategy/weights"),
        ({"strategy": {"type": "weighted_random", "weights": {"a": 0}}}, "/strategy/weights"),
        ({"strategy": {"type": "weighted_random", "weights": {"a": "40"}}}, "/strategy/weights/a"),
        ({"strategy": {"type": "weighted_random", "weights": {"a": 1}, "services": ["b"]}}, "/strategy/weights"),
        ({"strategy": {"type": "sticky"}}, "/strategy/key"),
        ({"strategy": {"type": "sticky", "key": 5}}, "/strategy/key"),
        ({"strategy": {"type": "sticky", "key": "input."}}, "/strategy/key"),
        ({"strategy": {"type": "sticky", "key": "urgency"}}, "/strategy/key"),
        ({"strategy": {"type": "least_loaded", "key": "caller"}}, "/strategy/key"),
        ({"strategy": {"type": "fuzzy", "min_score": 0}}, "/strategy/min_score"),
        ({"strategy": {"type": "fuzzy", "text": "x"}}, "/strategy/text"),
        ({"canary": 5}, "/canary"),
        ({"canary": {"percent": 5}}, "/canary/service"),
        ({"canary": {"service": "A", "percent": 5}}, "/canary/service"),
        ({"canary": {"service": "a"}}, "/canary/percent"),
        ({"canary": {"service": "a", "percent": 101}}, "/canary/percent"),
        ({"canary": {"service": "a", "percent": True}}, "/canary/percent"),
        ({"canary": {"service": "a", "percent": 5, "sticky_by": "tenant"}}, "/canary/sticky_by"),
        ({"mirror": 5}, "/mirror"),
        ({"mirror": {"percent": 5}}, "/mirror/service"),
        ({"mirror": {"service": "A", "percent": 5}}, "/mirror/service"),
        ({"mirror": {"service": "a"}}, "/mirror/percent"),
        ({"mirror": {"service": "a", "percent": -1}}, "/mirror/percent"),
        ({"mirror": {"service": "a", "percent": 5, "sticky_by": "caller"}}, "/mirror/sticky_by"),
        ({"priority": True}, "/priority"),
        ({"priority": 1.5}, "/priority"),
        ({"enabled": "yes"}, "/enabled"),
        ({"description": 5}, "/description"),
        ({"timeout_ms": 0}, "/timeout_ms"),
        ({"timeout_ms": 600_001}, "/timeout_ms"),
        ({"retry": {"max_retries": 3}}, "/retry/max_retries"),
        ({"retry": {"retries": 1}}, "/retry/retries"),
        ({"node_version": "about 1"}, "/node_version"),
        ({"node_tags": "x"}, "/node_tags"),
        ({"allow_callers": []}, "/allow_callers"),
        ({"fallback_rules": [{"action": "return_503"}]}, "/fallback_rules/0/condition"),
        ({"fallback_rules": [{"condition": "timeouts", "action": "return_503"}]}, "/fallback_rules/0/condition"),
        (
            {"fallback_rules": [{"condition": "error", "action": "next_route", "wait_before_retry_ms": 5}]},
            "/fallback_rules/0/wait_before_retry_ms",
        ),
        (
            {
                "fallback_rules": [
                    {"condition": "error", "action": "route_to", "service": "a", "wait_before_retry_ms": 5}
                ]
            },
            "/fallback_rules/0/wait_before_retry_ms",
        ),
        ({"fallback_rules": [{"condition": "error", "action": "route_to"}]}, "/fallback_rules/0/action"),
        (
            {"fallback_rules": [{"condition": "error", "action": "route_to", "service": "a", "capability": "b"}]},
            "/fallback_rules/0/action",
        ),
        (
            {"fallback_rules": [{"condition": "error", "action": "route_to", "capability": "B"}]},
            "/fallback_rules/0/capability",
        ),
        (
            {"fallback_rules": [{"condition": "error", "action": "retry", "service": "a"}]},
            "/fallback_rules/0/service",
        ),
    ],
)
def test_a_mistake_in_a_route_is_named_by_its_pointer(fields, path):
    assert list(mistakes_in(**fields)) == [path]


@pytest.mark.parametrize(
    ("fields", "suggestion"),
    [
        ({"priorty": 5}, "priority"),
        ({"match": {"capabilty": "x"}}, "capability"),
        ({"match": {"input.x": {"patern": "x"}}}, "pattern"),
        ({"strategy": {"type": "least_load"}}, "least_loaded"),
        ({"strategy": {"type": "weighted_random", "weight": {"a": 1}}}, "weights"),
    ],
)
def test_unknown_names_come_with_the_nearest_known_one(fields, suggestion):
    (message,) = mistakes_in(**fields).values()
    assert message.endswith(f"did you mean {suggestion!r}?")


def test_all_mistakes_are_found_at_once():
    document = {"routes": [5, {}, a_rule("a"), a_rule("a")], "fallback_rule": []}
    assert set(mistakes(document)) == {
        "/fallback_rule",
        "/routes/0",
        "/routes/1/id",
        "/routes/1/match",
        "/routes/1/strategy",
        "/routes/3/id",
    }


@pytest.mark.parametrize("document", [None, [], "x", 5, {}, {"routes": {}}, {"routes": None}])
def test_what_is_no_table(document):
    assert mistakes(document)


def test_a_table_has_a_largest_size():
    assert mistakes({"routes": [a_rule(f"r{i}") for i in range(4)]}, max_routes=3) == {
        "/routes": "holds 4 routes; at most 3 are allowed"
    }


def test_everything_optional_is_read():
    (route,) = routes(
        a_rule(
            "r",
            description="words",
            enabled=False,
            priority=-3,
            node_tags=["gpu"],
            node_version=">=1.4,<2",
            timeout_ms=5000,
            retry={"max_retries": 0, "retry_base_delay_ms": 10, "total_ms": 1000},
            allow_callers=["a", "user:ann"],
            strategy={"type": "exact", "service": "doc"},
        )
    )
    assert (route.description, route.enabled, route.priority, route.timeout_ms) == ("words", False, -3, 5000)
    assert (route.max_retries, route.retry_base_delay_ms, route.retry_total_ms) == (0, 10, 1000)
    assert (route.node_tags, route.allow_callers) == ({"gpu"}, {"a", "user:ann"})
    assert route.strategy.services == ("doc",)
    assert [route.node_version.accepts(v) for v in ("1.4.2", "1.5.0-rc.1", "2.0", "", "latest")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_weights_limit_the_services():
    (route,) = routes(a_rule("r", strategy={"type": "weighted_random", "weights": {"a": 1, "b": 2}}))
    assert route.strategy.services == ("a", "b")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: &x {b: 1}\nc: *x", "aliases"),
        ("a: 1\na: 2", "line 2, column 1: the key 'a' stands here twice"),
        ("1: x", "the key '1' is not text"),
        ("x: !!binary abc", "tags"),
        ("x: !!python/object/apply:os.system [true]", "tags"),
        ("[" * 5000, "nested deeper"),
        ("- " * 100 + "x", "nested deeper"),
        ('x: "\\0"', r"U\+0000"),
        ('x: "\\ud800"', "surrogate"),
        ("x: " + "9" * 50, "too large"),
        ("a: b: c", "line 1, column 5"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: \x07", "special characters"),
        ("\t", "cannot start any token"),
        ("x" * 5_000_000, "larger than"),
    ],
)
def test_text_that_is_refused(text, complaint):
    started = time.process_time()
    with pytest.raises(InvalidRequest, match=complaint):
        load_text(text, "routes.yaml")
    assert time.process_time() - started < 2


def test_yaml_means_what_it_looks_like():
    text = "{on: no, t: true, n: ~, i: 012, f: 1.5e3, d: 2024-01-01, h: 12:30, o: 0o7, inf: .inf, <<: x, e: }"
    assert load_text(text, "r") == {
        "on": "no", "t": True, "n": None, "i": 12, "f": 1500.0, "d": "2024-01-01", "h": "12:30", "o": "0o7",
        "inf": ".inf", "<<": "x", "e": None,
    }  # fmt: skip


def test_json_is_yaml():
    assert load_text('{"routes": [{"id": "a\\u4e2d", "priority": -1}]}', "r") == {
        "routes": [{"id": "a中", "priority": -1}]
    }


@pytest.mark.parametrize(
    ("operations", "path"),
    [
        ([], "/operations"),
        ({}, "/operations"),
        ([5], "/operations/0/op"),
        ([{"op": "move", "id": "a"}], "/operations/0/op"),
        ([{"op": "delete"}], "/operations/0/id"),
        ([{"op": "delete", "id": 5}], "/operations/0/id"),
        ([{"op": "delete", "id": "nope"}], "/operations/0/id"),
        ([{"op": "delete", "id": "a", "match": {}}], "/operations/0/match"),
        ([{"op": "delete", "id": "a"}, {"op": "put", **a_rule("a")}], "/operations/1/id"),
        ([{"op": "put", **a_rule("b", {"input.x": {"gte": "5"}})}], "/operations/0/match/input.x/gte"),
    ],
)
def test_mistakes_in_operations(operations, path):
    with pytest.raises(InvalidRequest) as caught:
        check_operations(operations, known_ids={"a"}, base_revision=3)
    assert [error["path"] for error in caught.value.errors] == [path]


@pytest.mark.parametrize("condition", ["no_available_node", "circuit_open", "rate_limited", "timeout", "error"])
@pytest.mark.parametrize(
    "action",
    [
        {"action": "return_503", "wait_before_retry_ms": 500},
        {"action": "next_route"},
        {"action": "retry", "wait_before_retry_ms": 500},
        {"action": "retry"},
        {"action": "route_to", "service": "spare"},
        {"action": "route_to", "capability": "file_digest"},
    ],
)
def test_every_action_goes_with_every_condition(condition, action):
    (route,) = routes(a_rule("r", fallback_rules=[{"condition": condition, **action}]))
    (rule,) = route.fallback_rules
    written = {"condition": condition, **action}
    assert {name: value for name, value in asdict(rule).items() if value is not None} == written
