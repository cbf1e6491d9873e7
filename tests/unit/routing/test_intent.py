"""A free text is read as one known capability, by its words and by what takes the payload."""

from typing import Any

import pytest

from registry.core.node import Node
from routing.core.intent import read_intent
from routing.core.plan import Attempt, Policy, Step, Stop, next_step
from routing.core.tables import Tables
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_envelope, an_offer, chances, tables

OFFERS: dict[str, dict[str, Any]] = {
    "file_summary": {
        "description": "Summarizes a document or report 输出文件摘要和关键要点，总结报告",
        "tags": ["nlp"],
    },
    "data_query": {"description": "Runs a read-only SQL query on sales data 查询销售数据"},
    "ticket_create": {"description": "Writes a ticket for abnormal data 为异常数据创建工单", "tags": ["jira"]},
    "send_mail": {"description": "Sends an e-mail to a person 发送邮件"},
}


def everybody(**more: dict[str, Any]) -> Tables:
    nodes = []
    for name, facts in (OFFERS | more).items():
        facts = {**facts, "tags": frozenset(facts.get("tags", ()))}
        nodes.append(a_node(f"{name.replace('_', '-')}/1", an_offer(name, **facts)))
    return tables(*nodes, known=())


def read(text: str, found: Tables, *, min_score: float = 0.5, **asked: Any) -> str | None:
    return read_intent(an_envelope(intent=text, **asked), found, min_score=min_score).capability


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        ("summarize this report", "file_summary"),
        ("Could you please summarise the documents?", "file_summary"),
        ("请帮我总结一下这份报告", "file_summary"),
        ("文件摘要", "file_summary"),
        ("query the sales data", "data_query"),
        ("查询一下销售数据", "data_query"),
        ("create a jira ticket", "ticket_create"),
        ("创建工单", "ticket_create"),
        ("send mail", "send_mail"),
        ("发送一封邮件", "send_mail"),
        ("what is the weather in Paris", None),
        ("翻译成法语", None),
    ],
)
def test_what_a_text_asks_for(text, capability):
    assert read(text, everybody()) == capability


def test_a_capability_that_refuses_the_payload_is_passed_over():
    strict = {**OFFERS["file_summary"], "input": {"required": ["file_path"]}}
    found = everybody(file_summary=strict, file_digest={"description": "Summarizes a report in one line"})
    reading = read_intent(an_envelope(intent="summarize report", payload={}), found, min_score=0.5)
    assert reading.capability == "file_digest"
    told = {one["capability"]: one.get("reason") for one in reading.document("t")["scores"]}
    assert told["file_summary"] == "its input schemas refuse the payload"
    assert told["file_digest"] is None
    assert read("summarize report", found, payload={"file_path": "x"}) in ("file_summary", "file_digest")


def test_a_capability_that_does_not_take_this_caller_is_passed_over():
    found = everybody(file_summary={**OFFERS["file_summary"], "allow_callers": frozenset({"ceo"})})
    assert read("summarize report", found) is None
    assert read("summarize report", found, caller="ceo") == "file_summary"


def test_among_equals_the_narrower_schema_has_it():
    found = tables(
        a_node("a/1", an_offer("a_report", description="report")),
        a_node("b/1", an_offer("b_report", description="report", narrowness=2)),
        a_node("c/1", an_offer("c_report", description="report", narrowness=1)),
        known=(),
    )
    assert read("report", found) == "b_report"


def test_a_capability_without_a_provider_takes_nothing():
    assert read("file summary", tables(known=["file_summary"])) is None


def test_the_least_score_is_a_setting():
    text = "summarize the quarterly weather balloon report"  # two words of five
    assert read(text, everybody()) is None
    assert read(text, everybody(), min_score=0.3) == "file_summary"


# --- As the plan tells it --------------------------------------------------------------------------------------------


def step_for(text: str, found: Tables) -> Step:
    """The decision on a call with this intent, as acceptance makes it."""
    envelope = an_envelope(intent=text, payload={})
    reading = read_intent(envelope, found, min_score=0.5)
    journey = a_journey(
        an_envelope(intent=text, payload={}, capability=reading.capability or "?"), reading=reading.document(text)
    )
    return next_step(journey, found, KnownLoad(), Policy(), now_millis=NOW, chance=chances([0.5]))


def test_the_reading_stands_in_the_reasons():
    step = step_for("summarize report", everybody())
    assert isinstance(step, Attempt)
    assert step.chosen.offer.capability == "file_summary"
    assert step.why.reading is not None
    assert step.why.reading["text"] == "summarize report"
    assert step.why.reading["scores"][0] == {"capability": "file_summary", "score": 0.9737}


def test_an_intent_that_fits_nothing_names_the_nearest_three():
    step = step_for("summarize quarterly weather balloon sightings", everybody())
    assert isinstance(step, Stop)
    assert step.ending.code == "unknown_capability"
    why, _semicolon, nearest = step.ending.detail.partition("; the nearest are ")
    assert why == "no capability answers the intent (score at least 0.5) and takes the payload"
    assert nearest.startswith("file_summary (0.19), ")
    assert nearest.count("(") == 3


def test_where_nothing_is_known_there_is_nothing_near():
    step = step_for("summarize", tables(known=()))
    assert isinstance(step, Stop)
    assert step.ending.detail.endswith(": none is known")


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        ("file_sumary", "no agent has ever declared file_sumary; did you mean file_summary?"),
        ("data-query", "no agent has ever declared data-query; did you mean data_query?"),
        ("weather", "no agent has ever declared weather"),
    ],
)
def test_a_misspelt_capability_is_told_the_nearest(asked, detail):
    journey = a_journey(an_envelope(capability=asked))
    step = next_step(journey, everybody(), KnownLoad(), Policy(), now_millis=NOW, chance=chances([0.5]))
    assert isinstance(step, Stop)
    assert (step.ending.code, step.ending.detail) == ("unknown_capability", detail)


def test_what_all_providers_say_counts_and_is_gathered_once():
    nodes: list[Node] = [
        a_node("a/1", an_offer("shorten", description="summarizes")),
        a_node("b/1", an_offer("shorten", description="reports")),
    ]
    found = tables(*nodes, known=())
    assert read("summarizes reports", found, min_score=1.0) == "shorten"
    assert found.vocabulary is found.vocabulary
