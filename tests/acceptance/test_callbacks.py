"""Callbacks: the end of an asynchronous call is told, signed, until the receiver has it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.acceptance.agents import NewAgent, call_of, dispatch, ended_call, submitted
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.test_errors import leaves_no_call
from tests.fakes import Delivery, FakeReceiver, Receive, answers, fails, hangs, receives, says, waits_for

NewReceiver = Callable[..., FakeReceiver]
Caller = tuple[str, str]
"""Its key and signing secret."""


@pytest.fixture
def new_receiver() -> Iterator[NewReceiver]:
    made: list[FakeReceiver] = []

    def make(receive: Receive | None = None) -> FakeReceiver:
        made.append(FakeReceiver(receive))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


@pytest.fixture
def caller(reach: Instance) -> Caller:
    made = reach.request("POST", "/api/v1/keys", {"service_id": "patron", "scopes": ["dispatch"]}, key=reach.key).json
    return made["key"], made["signing_secret"]


def arrived(receiver: FakeReceiver, call_id: str, times: int = 1, timeout_s: float = 30) -> list[Delivery]:
    """What has come for a call, as soon as it came so often."""
    return wait_until(lambda: len(found := receiver.of(call_id)) >= times and found, "the callback came", timeout_s)


def is_signed(delivery: Delivery, secret: str) -> None:
    Webhook(secret).verify(delivery.body, dict(delivery.headers))  # raises


def settled(reach: Instance, call_id: str) -> dict[str, Any]:
    """The call's callback, once nothing more is tried."""
    return wait_until(lambda: (known := call_of(reach, call_id)["callback"])["settled_at"] and known, "it is settled")


@pytest.mark.parametrize(
    ("behave", "status"),
    [pytest.param(answers({"sum": 42}), "succeeded", id="well"), pytest.param(fails(500), "failed", id="badly")],
)
def test_the_end_is_told(
    new_agent: NewAgent, new_receiver: NewReceiver, caller: Caller, behave: Any, status: str
) -> None:
    agent, receiver = new_agent(behave), new_receiver()
    key, secret = caller
    call_id = submitted(agent, {"n": 1}, key=key, callback_url=f"{receiver.url}?token=abc")
    ended_call(agent.reach, call_id)
    ended_at = time.monotonic()
    delivery = arrived(receiver, call_id)[0]
    assert delivery.received_at < ended_at + 2
    assert delivery.path == "/done?token=abc"
    assert delivery.headers["webhook-id"] == f"{call_id}.callback"
    assert delivery.headers["Content-Type"] == "application/json"
    is_signed(delivery, secret)
    known = settled(agent.reach, call_id)
    assert (known["status"], known["tries"], known["url"]) == ("delivered", 1, f"{receiver.url}?token=abc")
    assert known["log"][0]["status"] == 204
    shown = {**call_of(agent.reach, call_id)}
    del shown["callback"]
    assert delivery.document == shown and shown["status"] == status
    assert len(receiver.of(call_id)) == 1


def test_whoever_ends_it(new_agent: NewAgent, new_receiver: NewReceiver, caller: Caller) -> None:
    """A node's receipt, a cancel, the deadline."""
    agent, receiver = new_agent(says(202)), new_receiver()
    asked = {"key": caller[0], "callback_url": receiver.url}
    by_receipt, by_cancel = submitted(agent, **asked), submitted(agent, **asked)
    by_deadline = submitted(agent, **asked, timeout_ms=1500)
    wait_until(lambda: len(agent.node.invocations) == 3, "all are at work")
    agent.post_receipt(by_receipt, kind="succeeded", output="done")
    agent.reach.request("POST", f"/api/v1/calls/{by_cancel}/cancel", key=caller[0])
    for call_id, status in ((by_receipt, "succeeded"), (by_cancel, "cancelled"), (by_deadline, "timed_out")):
        delivery = arrived(receiver, call_id)[0]
        assert delivery.document["status"] == status
        is_signed(delivery, caller[1])


def test_it_is_sent_again_until_it_arrives(new_agent: NewAgent, new_receiver: NewReceiver, caller: Caller) -> None:
    agent, receiver = new_agent(), new_receiver(receives(500, 503, 204))
    call_id = submitted(agent, key=caller[0], callback_url=receiver.url)
    first, second, third = arrived(receiver, call_id, 3)
    assert second.received_at - first.received_at < 10
    assert {delivery.headers["webhook-id"] for delivery in (first, second, third)} == {f"{call_id}.callback"}
    assert first.body == second.body == third.body
    for delivery in (first, second, third):
        is_signed(delivery, caller[1])
    known = settled(agent.reach, call_id)
    assert (known["status"], [one.get("status") for one in known["log"]]) == ("delivered", [500, 503, 204])
    assert known["log"][0]["error"] == "answered 500"


def test_a_receiver_that_wants_no_more(new_agent: NewAgent, new_receiver: NewReceiver, caller: Caller) -> None:
    agent, receiver = new_agent(), new_receiver(receives(410))
    call_id = submitted(agent, key=caller[0], callback_url=receiver.url)
    assert settled(agent.reach, call_id)["status"] == "gone"
    assert len(receiver.of(call_id)) == 1


def test_redirects_are_not_followed(new_agent: NewAgent, new_receiver: NewReceiver, caller: Caller) -> None:
    elsewhere = new_receiver()
    agent, receiver = new_agent(), new_receiver(receives(307, Location=elsewhere.url))
    call_id = submitted(agent, key=caller[0], callback_url=receiver.url)
    arrived(receiver, call_id, 2)
    known = call_of(agent.reach, call_id)["callback"]
    assert known["status"] == "pending" and known["log"][0]["status"] == 307
    assert not elsewhere.deliveries


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://0.0.0.0:8080/",
        "http://metadata.google.internal/",
        "ftp://127.0.0.1/done",
        "http://user:secret@127.0.0.1/done",
        "http://127.0.0.1:0/",
        "/done",
        "",
        "http://127.0.0.1/\r\nX-Evil: 1",
    ],
)
def test_an_address_that_nobody_may_be_sent_to(reach: Instance, url: str) -> None:
    answer = dispatch(reach, "file_summary", mode="async", callback_url=url)
    problem = leaves_no_call(answer, 400, "invalid_request")
    assert problem["errors"][0]["path"] == "/callback_url"


def test_receivers_that_hang_do_not_keep_others_waiting(
    new_agent: NewAgent, new_receiver: NewReceiver, caller: Caller
) -> None:
    agent, slow, quick = new_agent(), new_receiver(hangs()), new_receiver()
    for n in range(120):
        submitted(agent, {"n": n}, key=caller[0], callback_url=slow.url)
    wait_until(lambda: slow.deliveries, "the slow one hangs")
    calls = [submitted(agent, {"n": n}, key=caller[0], callback_url=quick.url) for n in range(20)]
    for call_id in calls:
        ended_call(agent.reach, call_id)
    ended_at = time.monotonic()
    for call_id in calls:
        assert arrived(quick, call_id)[0].received_at < ended_at + 2
    assert len(slow.deliveries) <= 3 * 8, "never more than a few at once"


def test_a_call_without_an_end_shows_where_it_will_be_told(
    new_agent: NewAgent, new_receiver: NewReceiver, caller: Caller
) -> None:
    import threading

    gate = threading.Event()
    agent, receiver = new_agent(waits_for(gate)), new_receiver()
    call_id = submitted(agent, key=caller[0], callback_url=receiver.url)
    known = call_of(agent.reach, call_id)["callback"]
    assert known == {
        "url": receiver.url, "status": "waiting", "tries": 0, "next_try_at": None, "settled_at": None, "log": [],
    }  # fmt: skip
    gate.set()
    arrived(receiver, call_id)


def test_a_persons_callback_has_no_signature(new_agent: NewAgent, new_receiver: NewReceiver) -> None:
    """Only services have a secret."""
    agent, receiver = new_agent(), new_receiver()
    call_id = submitted(agent, callback_url=receiver.url)
    assert "webhook-signature" not in arrived(receiver, call_id)[0].headers
