"""Choosing, as callers and operators meet it: over REST, against nodes over HTTP, with the receipts that say why."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.acceptance.agents import NewAgent, call_of, dispatch, kinds_of, publish, receipts_of
from tests.acceptance.instance import Answer, Instance, wait_until
from tests.acceptance.test_errors import leaves_a_call
from tests.fakes import answers, says, waits_for, works


@pytest.fixture
def live_routes(reach: Instance, colleague_key: str) -> Iterator[Any]:
    """Publishes a table; the empty one afterwards."""
    yield lambda *routes: publish(reach, colleague_key, routes=list(routes))
    publish(reach, colleague_key, routes=[])


def routed(reach: Instance, answer: Answer) -> dict[str, Any]:
    """The reasons of the call's last choice."""
    found = [r["detail"] for r in receipts_of(reach, answer.json["call_id"]) if r["kind"] == "routed"]
    return found[-1]


def ask(reach: Instance, intent: str, payload: Any) -> Answer:
    body = {"intent": intent, "payload": payload}
    return reach.request("POST", "/api/v1/dispatch", body, key=reach.key)


def test_an_intent_becomes_the_capability_that_answers_it(reach: Instance, new_agent: NewAgent) -> None:
    agent = new_agent(
        capability="invoice_ocr", description="Reads invoices from scans 识别发票扫描件", input={"required": ["scan"]},
        sample={"scan": "x"},
    )  # fmt: skip
    for text in ("read this scan of invoices", "识别发票"):
        answer = ask(reach, text, {"scan": "x"})
        assert (answer.status, answer.json["service_id"]) == (200, agent.service_id)
        assert call_of(reach, answer.json["call_id"])["capability"] == "invoice_ocr"
        why = routed(reach, answer)
        assert (why["intent"]["text"], why["intent"]["capability"]) == (text, "invoice_ocr")
        assert agent.node.invocations[-1].envelope["capability"] == "invoice_ocr"
    problem = leaves_a_call(reach, ask(reach, "read invoices", {}), 404, "unknown_capability", "rejected")
    assert "the nearest are invoice_ocr (0.94, its input schemas refuse the payload)" in problem["detail"]


def test_a_misspelt_capability_is_told_the_nearest(reach: Instance, new_agent: NewAgent) -> None:
    new_agent(capability="quarter_forecast")
    problem = leaves_a_call(reach, dispatch(reach, "quater_forecast"), 404, "unknown_capability", "rejected")
    assert problem["detail"].endswith("did you mean quarter_forecast?")


def test_a_full_node_refuses_with_429_and_the_key_stays_free(reach: Instance, new_agent: NewAgent) -> None:
    gate = threading.Event()
    agent = new_agent(waits_for(gate), about_node={"max_concurrency": 2})
    with ThreadPoolExecutor(5) as threads:
        calls = [threads.submit(agent.call, idempotency_key=f"full-{agent.capability}-{n}") for n in range(5)]
        wait_until(lambda: sum(call.done() for call in calls) == 3, "three are refused")
        gate.set()
        told = [call.result() for call in calls]
    assert Counter(answer.status for answer in told) == {200: 2, 429: 3}
    refused = [n for n, answer in enumerate(told) if answer.status == 429]
    for n in refused:
        assert told[n].headers["Retry-After"] == "1"
        problem = leaves_a_call(reach, told[n], 429, "rate_limited", "rejected")
        assert problem["detail"].endswith("1 at its max_concurrency (2)")
    assert agent.call(idempotency_key=f"full-{agent.capability}-{refused[0]}").status == 200


def test_a_call_waits_by_its_fallback_rule_for_a_node_to_become_free(
    reach: Instance, new_agent: NewAgent, live_routes: Any
) -> None:
    agent = new_agent(works(0.5), about_node={"max_concurrency": 1})
    rule = {"condition": "rate_limited", "action": "retry", "wait_before_retry_ms": 900}
    strategy = {"type": "least_loaded"}
    live_routes({"id": "r", "match": {"capability": agent.capability}, "strategy": strategy, "fallback_rules": [rule]})
    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(lambda _n: agent.call(), range(2)))
    assert [answer.status for answer in told] == [200, 200]
    kinds = [kinds_of(reach, answer.json["call_id"]) for answer in told]
    assert sorted("fallback" in one for one in kinds) == [False, True]
    waited = next(one for one in kinds if "fallback" in one)
    assert waited[:4] == ["accepted", "fallback", "routed", "forwarded"]


def test_a_repeated_call_is_answered_before_any_waiting(reach: Instance, new_agent: NewAgent, live_routes: Any) -> None:
    agent = new_agent(answers("once"))
    key = f"waits-{agent.capability}"
    assert agent.call(idempotency_key=key).status == 200
    rule = {"condition": "no_available_node", "action": "retry", "wait_before_retry_ms": 20_000}
    strategy = {"type": "exact", "service": "gone"}
    live_routes({"id": "r", "match": {"capability": agent.capability}, "strategy": strategy, "fallback_rules": [rule]})
    started = time.monotonic()
    again = agent.call(idempotency_key=key)
    assert (again.status, again.json["output"], again.json["replayed"]) == (200, "once", True)
    assert time.monotonic() - started < 10


def test_a_call_is_handed_to_another_capability_and_shown_under_it(
    reach: Instance, new_agent: NewAgent, live_routes: Any
) -> None:
    broken = new_agent(says(503))
    spare = new_agent(answers("spare"))
    rule = {"condition": "error", "action": "route_to", "capability": spare.capability}
    live_routes(
        {
            "id": "r",
            "match": {"capability": broken.capability},
            "strategy": {"type": "exact", "service": broken.service_id},
            "retry": {"max_retries": 0},
            "fallback_rules": [rule],
        }
    )
    answer = broken.call()
    assert (answer.status, answer.json["output"], answer.json["attempts"]) == (200, "spare", 2)
    assert call_of(reach, answer.json["call_id"])["capability"] == spare.capability
    (fallback,) = [r["detail"] for r in receipts_of(reach, answer.json["call_id"]) if r["kind"] == "fallback"]
    assert (fallback["action"], fallback["capability"]) == ("route_to", spare.capability)


def test_a_session_sticks_and_a_canary_takes_its_tenants(
    reach: Instance, new_agent: NewAgent, live_routes: Any
) -> None:
    old = new_agent(answers("old"))
    new = new_agent(answers("new"), capability=old.capability)
    where = {"match": {"capability": old.capability}}
    live_routes({"id": "r", **where, "strategy": {"type": "sticky", "key": "session_id"}})
    by_session = {
        session: {old.call(session_id=session).json["service_id"] for _ in range(4)} for session in map(str, range(12))
    }
    assert all(len(services) == 1 for services in by_session.values())
    assert set().union(*by_session.values()) == {old.service_id, new.service_id}
    canary = {"service": new.service_id, "percent": 30, "sticky_by": "labels.tenant"}
    live_routes({"id": "r", **where, "strategy": {"type": "least_loaded"}, "canary": canary})
    told = [old.call(labels={"tenant": str(n)}) for n in range(60)]
    assert 5 <= sum(answer.json["output"] == "new" for answer in told) <= 32
    for answer in told:
        why = routed(reach, answer)
        canaried = why.get("notes") == [f"canary: 30 % to {new.service_id}, by labels.tenant"]
        assert canaried is (answer.json["output"] == "new")


def test_the_narrower_service_takes_what_fits_it(reach: Instance, new_agent: NewAgent) -> None:
    wide = new_agent(answers("wide"))
    kind = {"properties": {"kind": {"enum": ["report"]}}, "required": ["kind"]}
    new_agent(answers("narrow"), capability=wide.capability, input=kind, sample={"kind": "report"})
    told = [wide.call({"kind": "report"}) for _ in range(10)]
    assert {answer.json["output"] for answer in told} == {"narrow"}
    (passed_over,) = [c for c in routed(reach, told[0])["candidates"] if c["service_id"] == wide.service_id]
    assert passed_over["reasons"] == ["a narrower service takes it"]
    assert wide.call({"kind": "mail"}).json["output"] == "wide"


def test_over_a_declared_rate_calls_go_elsewhere_and_then_are_refused_at_once(
    reach: Instance, new_agent: NewAgent
) -> None:
    agent = new_agent(answers({}), rate_limit="2/s")
    begun = time.monotonic()
    told = [agent.call() for _ in range(6)]
    elapsed_s = time.monotonic() - begun
    served = sum(answer.status == 200 for answer in told)
    assert 2 <= served <= 2 + 2 * elapsed_s
    refused = next(answer for answer in told if answer.status != 200)
    problem = leaves_a_call(reach, refused, 429, "rate_limited", "rejected")
    assert 0 < problem["retry_after_ms"] <= 500
    assert refused.headers["Retry-After"] == "1"
    assert routed(reach, refused)["left_out"] == {"at its rate_limit (2 a second)": 1}
    spare = new_agent(answers({}), capability=agent.capability)
    more = [agent.call() for _ in range(8)]
    assert {answer.status for answer in more} == {200}
    assert len(spare.node.invocations) >= 3
