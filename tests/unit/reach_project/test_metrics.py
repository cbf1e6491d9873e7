"""What is counted, under which labels, and how many of them there can be."""

import random
import string
from collections import defaultdict
from time import process_time, time_ns
from uuid import uuid4

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reach_project.metrics import OTHER, Metrics, Names
from receipts.core.ending import Ending
from receipts.core.journey import Ended, Outcome
from receipts.core.lifecycle import ending
from routing.core.plan import Attempt, Why
from routing.core.tables import Tables
from routing.dispatch import Result
from tests.factories import a_candidate, a_journey, an_envelope

AT_MOST = 20


def a_result(code: str | None = None, *, attempts: int = 1, duration_ms: int = 120) -> Result:
    status = ending(code, attempted=attempts > 0)
    return Result(uuid4(), "a" * 32, status, Ending(code), "summarizer", "n1", "auto", 1, attempts, duration_ms)


def an_attempt_at(name: str) -> Attempt:
    return Attempt(a_candidate(name), 0, Why("auto", 1, "least_loaded"))


def metrics(*known: str, services: int = 1) -> Metrics:
    """Metrics of a process whose tables know these capabilities, and services `summarizer`, `s0`, `s1`, …"""
    secrets = {name: b"" for name in ("summarizer", *(f"s{n}" for n in range(services)))}
    tables = Tables(7, [a_candidate().node], frozenset(known), secrets=secrets)
    return Metrics(lambda: tables, label_values=AT_MOST, role="all")


def samples(counted: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The samples of that name as Prometheus would read them, by the values of their labels in alphabetical order."""
    text = generate_latest(counted.registry).decode()
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_calls_by_status_and_code() -> None:
    counted = metrics("file_summary")
    for result in (
        a_result(),
        a_result(),
        a_result("upstream_error", attempts=3),
        a_result("no_available_node", attempts=0),
        a_result("deadline_exceeded"),
    ):
        counted.ended(an_envelope(), result)
    assert samples(counted, "reach_calls_total") == {
        ("file_summary", "none", "succeeded"): 2,
        ("file_summary", "upstream_error", "failed"): 1,
        ("file_summary", "no_available_node", "rejected"): 1,
        ("file_summary", "deadline_exceeded", "timed_out"): 1,
    }


def test_a_rejected_call_has_no_duration() -> None:
    counted = metrics("file_summary")
    counted.ended(an_envelope(), a_result(attempts=0, code="rate_limited"))
    counted.ended(an_envelope(), a_result(duration_ms=300))
    assert samples(counted, "reach_call_duration_seconds_count") == {("file_summary",): 1}
    assert samples(counted, "reach_call_duration_seconds_sum") == {("file_summary",): 0.3}


def test_attempts_by_service_and_how_they_ended() -> None:
    counted = metrics()
    begun = time_ns() - 2_000_000_000
    for ended in (Ended.NOT_STARTED, Ended.SUCCEEDED):
        counted.attempted(a_journey(), an_attempt_at("summarizer/n1"), 1, Outcome(ended), begun)
    assert samples(counted, "reach_attempts_total") == {
        ("not_started", "summarizer"): 1,
        ("succeeded", "summarizer"): 1,
    }
    assert 4 <= samples(counted, "reach_attempt_duration_seconds_sum")["summarizer",] < 6


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    counted = metrics()
    ahead = time_ns() + 60_000_000_000
    counted.attempted(a_journey(), an_attempt_at("summarizer/n1"), 1, Outcome(Ended.SUCCEEDED), ahead)
    assert samples(counted, "reach_attempt_duration_seconds_sum") == {("summarizer",): 0}


def test_commits() -> None:
    counted = metrics()
    counted.committed("journal accept", 3, 0.002)
    assert samples(counted, "reach_journal_commit_rows_sum") == {("accept",): 3}
    assert samples(counted, "reach_journal_commit_seconds_sum") == {("accept",): 0.002}


def test_nothing_that_strangers_choose_becomes_a_label() -> None:
    """10,000 capability names, callers and services that nobody has declared, and far more declared ones than fit."""
    chance = random.Random(4)
    declared = [f"task_{n}" for n in range(500)]
    counted = metrics(*declared, services=500)
    for _ in range(10_000):
        name = "".join(chance.choices(string.ascii_lowercase, k=12))
        labels = {name: name}
        counted.ended(an_envelope(capability=name, caller=name, labels=labels), a_result("unknown_capability"))
        counted.attempted(a_journey(), an_attempt_at(f"{name}/{name}"), 1, Outcome(Ended.FAILED), time_ns())
    for name in declared:
        counted.ended(an_envelope(capability=name), a_result())
        counted.attempted(a_journey(), an_attempt_at(f"s{name[5:]}/n1"), 1, Outcome(Ended.SUCCEEDED), time_ns())
    text = generate_latest(counted.registry).decode()
    values = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for label, value in sample.labels.items():
                values[family.name, label].add(value)
    for family_name in ("reach_calls", "reach_call_duration_seconds"):
        assert len(values[family_name, "capability"]) == AT_MOST + 1
        assert values[family_name, "capability"] <= {*declared, OTHER}
    assert len(values["reach_attempts", "service_id"]) == AT_MOST + 1
    assert len(values["reach_capability_ready_nodes", "capability"]) == AT_MOST + 1
    assert {label for family, label in values if family.startswith("reach_")} == {
        "capability", "status", "code", "service_id", "ended", "le", "version", "role", "python", "django", "part",
        "kind",
    }  # fmt: skip
    assert samples(counted, "reach_calls_total")[OTHER, "unknown_capability", "failed"] == 10_000
    assert len(text) < 200_000


def test_a_name_is_admitted_when_it_becomes_known() -> None:
    known = {"a"}
    names = Names(known.__contains__, 2)
    assert (names("a"), names("b")) == ("a", OTHER)
    known |= {"b", "c"}
    assert (names("b"), names("c"), names("a")) == ("b", OTHER, "a")


def test_counting_a_call_is_cheap() -> None:
    """All that a call of one attempt adds to the event loop; the bound is loose, the machine may be busy."""
    counted = metrics("file_summary")
    envelope, result, journey = an_envelope(), a_result(), a_journey()
    attempt, outcome, began = an_attempt_at("summarizer/n1"), Outcome(Ended.SUCCEEDED), time_ns()

    def a_round(calls: int) -> float:
        start = process_time()
        for _ in range(calls):
            counted.attempted(journey, attempt, 1, outcome, began)
            counted.ended(envelope, result)
        return (process_time() - start) / calls

    a_round(100)
    assert min(a_round(500) for _ in range(9)) < 50e-6
