"""Failed calls by cause, and orders to do many of them again."""

import json
from typing import Any

import pytest
from django.test import Client

from receipts import dead_letters
from receipts.dead_letters import Cause
from receipts.models import BulkRedispatch, Call, WaitingCall
from registry.models import AuditEvent
from tests.integration.dashboard.sample import a_call

pytestmark = pytest.mark.django_db
URL = "/admin/dead-letters/"
AGAIN = f"{URL}again/"
UPSTREAM = Cause("upstream_error", "file_summary", "doc-summarizer")
REQUEST = json.dumps({"payload": {"file_path": "/a"}, "urgency": "normal", "tags": [], "timeout_ms": None})


def key(cause: Cause = UPSTREAM) -> str:
    return json.dumps(cause.parts)


def a_failure(number: int, code: str = "upstream_error", **fields: Any) -> Call:
    error = json.dumps({"code": code, "detail": "d"})
    given: dict[str, Any] = {"status": "failed", "trace_id": f"{number:032x}", "error": error, "request": REQUEST}
    return a_call(number, **given | fields)


@pytest.fixture
def failures() -> None:
    """Three that may run twice, two that are idempotent, one that never reached a node; and what is none of these."""
    for number in range(1, 4):
        a_failure(number, idempotent=False)
    for number in range(4, 6):
        a_failure(number)
    a_failure(6, attempts=0, idempotent=False)
    a_failure(7, "no_available_node", status="rejected", service_id=None, node_id=None, attempts=0)
    a_failure(8, "cancelled", status="cancelled")
    a_call(9)
    a_failure(10, mirror_of=Call.objects.order_by("pk")[0].pk)


def page_of(answer: Any) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


def test_failures_are_told_by_cause(viewer: Client, failures: None) -> None:
    page = page_of(viewer.get(URL))
    assert "7 failed calls" in page
    assert page.index("upstream_error") < page.index("no_available_node")
    assert "See why its nodes are not ready" in page and "cancelled" not in page
    assert 'name="cause"' not in page, "a viewer chooses nothing"
    assert "Nothing" not in page and 'aria-current="true">Last 24 hours' in page


def test_nothing_failed_is_said(viewer: Client) -> None:
    assert "No call has failed in this time" in page_of(viewer.get(URL))


def test_one_cause_shows_its_calls_to_who_may_only_look(viewer: Client, failures: None) -> None:
    page = page_of(viewer.get(AGAIN, {"cause": key()}))
    assert page.count("/?call=0") == 6
    assert "Failed calls of one cause" in page and "<form class" not in page


def test_what_doing_them_again_means_is_said_first(operator: Client, failures: None) -> None:
    page = page_of(operator.get(AGAIN, {"cause": key()}))
    assert "3 calls reached a node, and their capabilities are not idempotent" in page
    assert "2 calls are of capabilities that bear being done twice" in page
    assert "1 call never reached a node." in page
    assert "Do 3 safe calls again" in page and "Also the 3 that may run twice" in page
    assert not BulkRedispatch.objects.exists()


@pytest.mark.parametrize(("risky", "expected"), [({}, {4, 5, 6}), ({"risky": "1"}, {1, 2, 3, 4, 5, 6})])
def test_only_what_is_safe_is_ordered_unless_told(
    operator: Client, failures: None, risky: dict[str, str], expected: set[int]
) -> None:
    answer = operator.post(AGAIN, {"cause": key(), **risky})
    order = BulkRedispatch.objects.get()
    assert answer["Location"] == f"{URL}orders/{order.pk}/"
    assert {int(call.trace_id, 16) for call in Call.objects.filter(pk__in=order.calls)} == expected
    assert order.calls == sorted(order.calls), "oldest first"
    event = AuditEvent.objects.get(action="redispatch in bulk")
    assert (event.actor, event.target, event.detail["calls"]) == ("user:olga", f"order:{order.pk}", len(expected))


def test_an_order_is_done_some_at_a_time_and_shows_how_far_it_is(
    operator: Client, failures: None, settings: Any
) -> None:
    settings.REACH_REDISPATCH_PER_S = 2
    there = operator.post(AGAIN, {"cause": key()})["Location"]
    assert dead_letters.carry_on() == 2
    page = page_of(operator.get(there))
    assert "2 of 3 looked at" in page and "data-over" not in page and "at work" in page
    assert dead_letters.carry_on() == 1
    assert dead_letters.carry_on() == 0
    order = BulkRedispatch.objects.get()
    assert (order.done, len(order.made), order.left_out) == (3, 3, 0) and order.finished_at
    again = list(Call.objects.filter(pk__in=order.made))
    assert {call.redispatch_of for call in again} == set(order.calls)
    assert {call.async_rank for call in again} == {dead_letters.RANK}, "after all others"
    assert WaitingCall.objects.count() == 3
    page = page_of(operator.get(there))
    assert "3 of 3 looked at" in page and "data-over" not in page, "until the new calls have ended"
    Call.objects.filter(pk__in=order.made).update(status="succeeded", ended_at=order.finished_at)
    assert "data-over" in page_of(operator.get(there))
    assert AuditEvent.objects.filter(action="redispatch call").count() == 3


def test_what_was_done_again_is_never_done_a_second_time(operator: Client, failures: None) -> None:
    operator.post(AGAIN, {"cause": key()})
    dead_letters.carry_on()
    page = page_of(operator.get(AGAIN, {"cause": key()}))
    assert "3 calls were done again already." in page
    operator.post(AGAIN, {"cause": key()})
    assert BulkRedispatch.objects.count() == 1, "nothing safe was left"


def test_two_orders_for_the_same_calls_make_them_once(operator: Client, failures: None) -> None:
    for _turn in range(2):
        operator.post(AGAIN, {"cause": key()})
    while dead_letters.carry_on():
        pass
    assert sorted(len(order.made) for order in BulkRedispatch.objects.all()) == [0, 3]
    assert Call.objects.exclude(redispatch_of=None).count() == 3


def test_an_order_is_stopped(operator: Client, viewer: Client, failures: None, settings: Any) -> None:
    settings.REACH_REDISPATCH_PER_S = 1
    there = operator.post(AGAIN, {"cause": key()})["Location"]
    dead_letters.carry_on()
    assert viewer.post(f"{there}stop/").status_code == 403
    assert "stop/" not in page_of(viewer.get(there)) and "stop/" in page_of(operator.get(there))
    operator.post(f"{there}stop/")
    assert dead_letters.carry_on() == 0
    assert BulkRedispatch.objects.get().stopped_by == "user:olga"
    assert "stopped" in page_of(operator.get(there))
    assert "It was over already." in page_of(operator.post(f"{there}stop/", follow=True))


def test_an_order_has_a_bound(operator: Client, failures: None, settings: Any) -> None:
    settings.REACH_REDISPATCH_MOST = 2
    assert "an order takes the newest 2" in page_of(operator.get(AGAIN, {"cause": key()}))
    operator.post(AGAIN, {"cause": key(), "risky": "1"})
    order = BulkRedispatch.objects.get()
    assert [int(call.trace_id, 16) for call in Call.objects.filter(pk__in=order.calls).order_by("pk")] == [5, 6]


@pytest.mark.parametrize("cause", ["", "{", "[1, 2]", '["a"]', "null"])
def test_what_is_no_cause_leads_back(operator: Client, cause: str) -> None:
    answer = operator.get(AGAIN, {"cause": cause}, follow=True)
    assert "Choose at least one cause." in page_of(answer)


@pytest.mark.parametrize("group", ["viewer", "approver"])
def test_others_cannot_order(as_person: Any, failures: None, group: str) -> None:
    assert as_person(group).post(AGAIN, {"cause": key()}).status_code == 403
    assert not BulkRedispatch.objects.exists()


def test_strangers_see_nothing(client: Client, as_person: Any, failures: None) -> None:
    assert client.get(URL).status_code == 302
    outsider = as_person(name="nobody")
    assert {outsider.get(url).status_code for url in (URL, AGAIN, f"{URL}orders/1/")} == {403}
    assert {outsider.post(url).status_code for url in (AGAIN, f"{URL}orders/1/stop/")} == {403}


def test_an_order_that_is_not_there(operator: Client) -> None:
    assert operator.get(f"{URL}orders/77/").status_code == 404
