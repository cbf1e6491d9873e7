"""Stored reasons are found again among the sentences that pages can translate."""

import re

import pytest
from django.utils.translation import override

from receipts.core.journey import Ended, Outcome, Tried
from registry.core.node import Health
from registry.wording import COUNTED, NESTED, recognised, said
from routing import wording
from routing.core.intent import unknown_sentence
from routing.core.plan import Attempt, Policy, ending_of_attempt, next_step
from routing.core.pool import WHY_SPARED
from routing.core.retry import Budget, BudgetRules, spent_sentence
from routing.core.tables import CANARY_ONLY, MIRROR_ONLY
from routing.forwarder import outcome_of
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_attempt, an_envelope, chances, tables
from tests.unit.routing.builders import a_rule, a_table


def noted(envelope_facts, *tried, **route):
    nodes = a_node("old/1"), a_node("new/1", health=route.pop("health", Health.READY))
    found = tables(*nodes, routes=a_table(a_rule("r", **route)))
    journey = a_journey(an_envelope(**envelope_facts), *tried, waited=len(tried))
    step = next_step(journey, found, KnownLoad(), Policy(), now_millis=NOW, chance=chances([0.5]))
    assert isinstance(step, Attempt)
    return step.why.notes


CANARY = {"canary": {"service": "new", "percent": 99.5, "sticky_by": "caller"}}
NO_KEY = {"canary": {"service": "new", "percent": 5, "sticky_by": "labels.x"}}


@pytest.mark.parametrize(
    ("facts", "tried", "route"),
    [
        ({}, [], CANARY),
        ({}, [], NO_KEY),
        ({}, [], {**CANARY, "health": Health.NOT_READY}),
        ({}, [an_attempt(Ended.NOT_STARTED, "new/1", route_id="r")], CANARY),
        ({}, [], {"strategy": {"type": "sticky", "key": "session_id"}}),
        ({}, [], {"strategy": {"type": "sticky", "key": "caller"}}),
        ({}, [], {"strategy": {"type": "weighted_random", "weights": {"old": 1, "new": 1}}}),
        ({}, [], {"strategy": {"type": "latency_aware"}}),
        ({}, [], {"strategy": {"type": "least_loaded"}}),
    ],
)
def test_every_note_is_one_that_can_be_translated(facts, tried, route):
    (note,) = noted(facts, *tried, **route)
    assert recognised(note)[0] in wording.NOTES


def test_where_one_alone_is_able_nothing_is_said_of_a_choice():
    assert noted({}, health=Health.NOT_READY, strategy={"type": "least_loaded"}) == ()


@pytest.mark.parametrize("reason", [*WHY_SPARED, CANARY_ONLY, MIRROR_ONLY, "at its max_concurrency (32)"])
def test_every_reason_for_passing_a_node_over_can_be_translated(reason):
    assert recognised(reason)[0] in wording.REFUSALS


NODE = ("doc-summarizer", "a")


def an_ending(ended: Ended, reason: str = "", **facts):
    return ending_of_attempt(Tried(2, NODE, "auto", Outcome(ended, reason, **facts))).detail


def stopped(found, **asked):
    step = next_step(
        a_journey(an_envelope(**asked)), found, KnownLoad(), Policy(), now_millis=NOW, chance=chances([0.5])
    )
    return step.ending


@pytest.mark.parametrize(
    "sentence",
    [
        an_ending(Ended.TIMED_OUT),
        an_ending(Ended.SILENT, "fell silent for 30 s"),
        an_ending(Ended.INVALID_OUTPUT, "its answer does not fit the output schema"),
        an_ending(Ended.NOT_STARTED, "connection refused"),
        an_ending(Ended.NOT_STARTED, "the envelope was not sent: lease expired"),
        an_ending(Ended.FAILED, outcome_of(404, "text/html", b"gone").reason),
        an_ending(
            Ended.FAILED, outcome_of(500, "application/json", b'{"error": {"code": "x", "message": "y"}}').reason
        ),
        an_ending(Ended.FAILED, outcome_of(307, "text/html", b"").reason),
        an_ending(Ended.BROKEN, outcome_of(502, "text/html", b"").reason),
        an_ending(Ended.INVALID_OUTPUT, outcome_of(200, "application/json", b"{").reason),
        f"{an_ending(Ended.NOT_STARTED, 'connection refused')}; it waited for as long as it could",
        f"{an_ending(Ended.TIMED_OUT)}; {spent_sentence('llm', Budget(), BudgetRules(0.2, 10, 10), 0)}",
        stopped(tables()).detail,
        stopped(tables(a_node("old/1", health=Health.NOT_READY))).detail,
        stopped(tables(a_node("old/1", health=Health.NOT_READY)), capability="unheard_of").detail,
        unknown_sentence("file_sumary", ["file_summary"]),
        unknown_sentence("other", []),
        "no node can take file_summary now: 2 not ready, 1 its breaker is open",
    ],
)
def test_every_ending_can_be_translated_with_the_sentences_within(sentence):
    assert not_understood(sentence) == []


def not_understood(sentence):
    """The sentence, or those within it, that no page could put into another language."""
    template, gaps = recognised(sentence)
    if template is None:
        return [sentence]
    within = [gaps[NESTED]] if NESTED in gaps else []
    within += re.findall(r"\d+ (.+?)(?=, \d+ |$)", gaps.get(COUNTED, ""))
    return [one for text in within for one in not_understood(text)]


def test_sentences_within_sentences_are_said_in_the_reader_s_language():
    with override("zh-hans"):
        assert said("a/b: answered 500: x – y") == "a/b：回应 500：x – y"
        assert (
            said("no node can take ocr now: 2 not ready, 1 draining") == "目前没有节点能接 ocr：2 × 未就绪, 1 × 排空中"
        )


@pytest.mark.parametrize("sentence", ["Some words: connection refused", "answered loudly", "what it says itself"])
def test_what_is_not_ours_stays_as_it_is(sentence):
    assert said(sentence) == sentence


def test_what_a_node_says_of_itself_is_not_taken_for_ours():
    assert recognised("answered 500: model_away – connection refused")[1]["words"] == "model_away – connection refused"
