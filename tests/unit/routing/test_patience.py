"""How an asynchronous call waits: what is no end for it, how long it rests, and who has a place."""

from dataclasses import replace

import pytest

from receipts.core.ending import Ending
from receipts.core.journey import Ended
from routing.core.patience import (
    FIRST_REST_MS,
    LONGEST_REST_MS,
    deadline_to_wait,
    end_of_patience,
    has_place,
    patience_millis,
    rest_ms,
    sign_of,
)
from routing.core.plan import Policy, Stop, Why
from tests.factories import NOW, a_journey, a_node, an_attempt, an_envelope, an_offer, tables

POLICY = Policy()


def a_stop(code: str, **facts) -> Stop:
    return Stop(Ending(code, "so it is", **facts), Why("auto", 1, "least_loaded", left_out={"not ready": 2}))


@pytest.mark.parametrize("code", ["rate_limited", "no_available_node", "circuit_open"])
def test_what_a_sync_caller_is_told_to_try_again_is_waited_out(code: str) -> None:
    assert rest_ms(a_stop(code, retry_after_ms=70), a_journey(), chance=0.5) == 70
    assert rest_ms(a_stop(code), a_journey(), chance=0.5) == 1000


@pytest.mark.parametrize("code", ["forbidden", "unknown_capability", "invalid_payload", "loop_detected"])
def test_what_will_not_get_better_is_an_end(code: str) -> None:
    assert rest_ms(a_stop(code), a_journey(), chance=0.5) is None


@pytest.mark.parametrize(
    ("ended", "facts", "idempotent", "waits"),
    [
        pytest.param(Ended.NOT_STARTED, {"http_status": 503}, False, True, id="its node was busy"),
        pytest.param(Ended.NOT_STARTED, {"unreached": True}, False, True, id="its node was away"),
        pytest.param(Ended.NOT_STARTED, {"retryable": False}, False, False, id="its node said never"),
        pytest.param(Ended.FAILED, {"retryable": True}, True, False, id="its node tried"),
        pytest.param(Ended.BROKEN, {}, True, False, id="nobody knows"),
        pytest.param(Ended.INVALID_OUTPUT, {}, True, False, id="its answer was wrong"),
    ],
)
def test_only_what_has_not_begun_is_waited_out_after_an_attempt(ended, facts, idempotent, waits) -> None:
    journey = a_journey(None, an_attempt(ended, **facts), idempotent=idempotent)
    assert (rest_ms(a_stop("upstream_error"), journey, chance=0.5) is not None) is waits


def test_refusals_make_it_rest_longer_and_longer() -> None:
    rests = []
    journey = a_journey()
    for number in range(1, 30):
        journey = replace(journey, tried=(*journey.tried, an_attempt(Ended.NOT_STARTED, number=number)))
        rests.append(rest_ms(a_stop("upstream_error"), journey, chance=0.5))
    assert rests[:3] == [FIRST_REST_MS, 2 * FIRST_REST_MS, 4 * FIRST_REST_MS]
    assert rests[-1] == LONGEST_REST_MS
    assert rest_ms(a_stop("upstream_error"), journey, chance=0.0) == LONGEST_REST_MS / 2


def test_once_it_has_rested_a_refusal_by_the_tables_counts_again() -> None:
    journey = a_journey(None, an_attempt(Ended.BROKEN), idempotent=True, waited=1)
    assert rest_ms(a_stop("no_available_node"), journey, chance=0.5) == 1000


def test_it_waits_until_its_deadline_unless_a_node_may_have_begun() -> None:
    known = tables()
    refused = a_journey(None, an_attempt(Ended.NOT_STARTED))
    assert patience_millis(a_journey(deadline_millis=NOW + 5), known, POLICY) == NOW + 5
    assert patience_millis(refused, known, POLICY) == NOW + 60_000
    begun = a_journey(None, an_attempt(Ended.NOT_STARTED), an_attempt(Ended.BROKEN, number=2))
    assert patience_millis(begun, known, POLICY) == NOW + POLICY.retry_total_ms


@pytest.mark.parametrize(
    ("nodes", "timeout_ms", "expected_ms"),
    [
        pytest.param([], None, 60_000, id="nobody offers it: the medium tier"),
        pytest.param([a_node("a", an_offer(tier="heavy"), weight=0)], None, 600_000, id="who offers it, able or not"),
        pytest.param([a_node("a", an_offer(tier="heavy"))], 1500, 1500, id="what was asked for"),
    ],
)
def test_the_deadline_of_what_waits(nodes, timeout_ms, expected_ms) -> None:
    journey = a_journey(an_envelope(timeout_ms=timeout_ms))
    assert deadline_to_wait(journey, tables(*nodes), POLICY) == NOW + expected_ms


def test_it_ends_with_what_it_was_refused_for() -> None:
    end = end_of_patience(a_stop("rate_limited", retry_after_ms=100), a_journey(), 7).ending
    assert (end.code, end.retry_after_ms) == ("rate_limited", None)
    assert end.detail.startswith("so it is; ")
    assert end_of_patience(None, a_journey(), 7).ending.code == "deadline_exceeded"
    tried = a_journey(None, an_attempt(Ended.NOT_STARTED, reason="answered 503"))
    assert end_of_patience(None, tried, 7).ending.code == "upstream_error"


@pytest.mark.parametrize(
    ("urgency", "of_kind", "taken", "has"),
    [
        pytest.param("normal", 0, 0, True, id="empty"),
        pytest.param("normal", 79, 79, True, id="alone, below four fifths"),
        pytest.param("normal", 80, 80, False, id="alone, at four fifths"),
        pytest.param("normal", 0, 80, True, id="another capability finds a place beside it"),
        pytest.param("bulk", 0, 80, False, id="bulk yields"),
        pytest.param("normal", 0, 95, False, id="normal yields to interactive"),
        pytest.param("interactive", 0, 99, True, id="the last place"),
        pytest.param("interactive", 0, 100, False, id="full"),
    ],
)
def test_who_has_a_place(urgency: str, of_kind: int, taken: int, has: bool) -> None:
    assert has_place(urgency, of_kind=of_kind, taken=taken, places=100) is has


def test_one_place_is_enough_for_anybody() -> None:
    for urgency in ("bulk", "normal", "interactive"):
        assert has_place(urgency, of_kind=0, taken=0, places=1)


def test_alike_are_calls_that_are_refused_for_the_same_reasons() -> None:
    stop = a_stop("no_available_node")
    sign = sign_of(a_journey(), stop)
    assert sign == sign_of(a_journey(an_envelope(payload={"content_type": "email"}, labels={"n": "2"})), stop)
    for unlike in (
        sign_of(a_journey(an_envelope(capability="ocr")), stop),
        sign_of(a_journey(an_envelope(tags=frozenset({"eu"}))), stop),
        sign_of(a_journey(an_envelope(caller="somebody-else")), stop),
        sign_of(a_journey(), a_stop("rate_limited")),
        sign_of(a_journey(), replace(stop, why=replace(stop.why, left_out={"not ready": 1}))),
    ):
        assert unlike != sign
