"""The fuzzy strategy: whoever says most of what is looked for, with the scores for whoever asks why."""

from typing import Any

import pytest

from routing.core.plan import Attempt, Policy, Step, Stop, next_step
from routing.core.tables import Tables
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_envelope, an_offer, chances, tables
from tests.unit.routing.builders import a_rule, a_table

SAYING = {
    "reports": "summarizes reports and documents 总结报告",
    "mails": "shortens e-mail threads 总结邮件",
    "code": "explains source code",
}


def offers(**more: Any) -> list[Any]:
    return [a_node(f"{name}/1", an_offer(description=said, **more.get(name, {}))) for name, said in SAYING.items()]


def with_fuzzy(wanted: str | None = None, *, nodes: Any = None, **strategy: Any) -> Tables:
    match = {"capability": {"fuzzy": wanted, "min_score": 0.1}} if wanted else None
    table = a_table(a_rule("r", match, strategy={"type": "fuzzy", **strategy}), known={"file_summary": "总结"})
    return tables(*(offers() if nodes is None else nodes), routes=table)


def decide(found: Tables, draw: float = 0.5, **asked: Any) -> Step:
    journey = a_journey(an_envelope(**asked))
    return next_step(journey, found, KnownLoad(), Policy(), now_millis=NOW, chance=chances([draw]))


def takers(found: Tables, **asked: Any) -> set[str]:
    steps = [decide(found, draw, **asked) for draw in (0.0, 0.4, 0.7, 0.999)]
    return {step.chosen.node.service_id for step in steps if isinstance(step, Attempt)}


@pytest.mark.parametrize(
    ("intent", "expected"),
    [("summarize reports", "reports"), ("总结邮件", "mails"), ("总结报告", "reports"), ("explain this code", "code")],
)
def test_whoever_says_most_of_the_intent_takes_it(intent, expected):
    assert takers(with_fuzzy(), intent=intent) == {expected}


def test_without_an_intent_the_routes_own_text_is_looked_for():
    assert takers(with_fuzzy("summary of e-mail threads")) == {"mails"}


def test_without_either_all_that_bear_the_name_are_alike():
    assert takers(with_fuzzy()) == set(SAYING)


def test_scores_and_reasons_are_shown():
    step = decide(with_fuzzy(min_score=0.5), intent="总结报告")
    shown = {c["service_id"]: (c["likeness"], c["reasons"]) for c in step.why.candidates}
    assert shown == {
        "reports": (1.0, []),
        "mails": (0.3333, ["its likeness 0.33 is below 0.5"]),
        "code": (0.0, ["its likeness 0.00 is below 0.5"]),
    }
    lenient = decide(with_fuzzy(min_score=0.3), intent="总结报告")
    assert [c["reasons"] for c in lenient.why.candidates if c["service_id"] == "mails"] == [["another is more alike"]]


def test_when_nobody_is_alike_there_is_no_node_and_the_caller_is_not_blamed():
    step = decide(with_fuzzy(), intent="weather in Paris")
    assert isinstance(step, Stop)
    assert step.ending.code == "no_available_node"
    assert step.ending.detail.endswith("now: 3 its likeness 0.00 is below 0.6")


def test_a_payload_that_nobody_takes_is_invalid_whatever_is_alike():
    nodes = offers(**{name: {"input": {"required": ["never"]}} for name in SAYING})
    step = decide(with_fuzzy(nodes=nodes), intent="weather in Paris")
    assert isinstance(step, Stop)
    assert step.ending.code == "invalid_payload"


def test_only_where_the_payload_fits():
    nodes = offers(reports={"input": {"required": ["never"]}})
    assert takers(with_fuzzy(nodes=nodes, min_score=0.3), intent="总结报告") == {"mails"}


def test_a_narrower_schema_comes_before_a_likelier_word():
    nodes = offers(mails={"narrowness": 3})
    assert takers(with_fuzzy(nodes=nodes, min_score=0.3), intent="总结报告") == {"mails"}


def test_many_different_texts_do_not_grow_what_is_remembered():
    found = with_fuzzy(min_score=0.01)
    for n in range(600):
        decide(found, intent=f"summarize {'reports ' * (n % 7)} w{n} x{n % 11} y{n % 13}")
    (pool,) = found.pools.values()
    assert len(pool.fields) <= 256


def test_a_large_pool_remembers_fewer_fields():
    nodes = [a_node(f"s{n}/1", an_offer(description="reports")) for n in range(5_000)]
    found = with_fuzzy(nodes=nodes, min_score=0.01)
    for n in range(30):
        decide(found, intent=f"reports {' '.join('abcdefghijklmnopqrstuvwxyz'[:n])}")
    (pool,) = found.pools.values()
    assert len(pool.fields) <= 20
