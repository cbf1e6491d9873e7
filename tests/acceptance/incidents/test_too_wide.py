"""An agent that registers a catch-all beside narrow ones: the storm does not come, and its owner is told the remedy."""

from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import pytest

from tests.acceptance.agents import Agent, NewAgent, dispatch
from tests.acceptance.incidents.report import Report
from tests.acceptance.instance import Instance, wait_until
from tests.factories import a_capability
from tests.fakes import answers

CAPABILITY = "ledger_entry"
PAYLOADS = [{"invoice": "7"}, {"receipt": "8"}, {"anything": "else"}]
CALLS = 60
OVERLAP = f"{CAPABILITY} invoices takes-all"
"""The subject of the advisory."""


def asks_for(field: str) -> dict[str, Any]:
    return {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """It looks at its traffic every second."""
    instance = Instance(tmp_path_factory.mktemp("too-wide") / "home", {"REACH_ADVISE_INTERVAL_S": "1"})
    try:
        yield instance.start()
    finally:
        instance.remove()


def test_too_wide_a_service(reach: Instance, new_agent: NewAgent, report: Report) -> None:
    narrow = {
        field: new_agent(
            answers(field), service_id=f"{field}s", capability=CAPABILITY, input=asks_for(field), sample={field: "x"}
        )
        for field in ("invoice", "receipt")
    }
    wide = new_agent(answers("wide"), service_id="takes-all", capability=CAPABILITY)
    report.note("a catch-all stands beside narrow services")

    advised = declare(wide, {})
    assert [one["code"] for one in advised] == ["accepts_anything"]
    assert "accepts almost anything" in advised[0]["message"] and "`required`" in advised[0]["remedy"]
    report.note(f"its owner is told: {advised[0]['message']}; {advised[0]['remedy']}")

    hits = calls(reach, report, PAYLOADS)
    assert hits == {"invoices": CALLS / 3, "receipts": CALLS / 3, "takes-all": CALLS / 3}, "each where it belongs"

    overlap = wait_until(lambda: standing(reach).get(OVERLAP), "traffic shows the overlap", 15)
    assert overlap["kind"] == "both_accept" and "distinct `required` fields" in overlap["remedy"]
    report.note(f"operators are told: {overlap['message']} {overlap['remedy']}")

    assert declare(wide, asks_for("invoice")) == []
    report.note("the remedy: it names the field that it needs")
    hits = calls(reach, report, [{"invoice": "7"}])
    assert hits.keys() == {"invoices", "takes-all"}, "who asks for the same is ranked alike"
    assert min(hits.values()) >= CALLS * 0.2
    assert dispatch(reach, CAPABILITY, {"anything": "else"}).status == 422
    wait_until(lambda: OVERLAP not in standing(reach), "the advisory is resolved", 15)
    report.note("the advisory is resolved")
    assert narrow["receipt"].node.invocations[-1].payload == {"receipt": "8"}


def standing(reach: Instance) -> dict[str, dict[str, Any]]:
    """Subject → advisory."""
    return {one["subject"]: one for one in reach.request("GET", "/api/v1/advisories", key=reach.key).json["results"]}


def declare(agent: Agent, schema: dict[str, Any]) -> list[dict[str, str]]:
    """Register it anew with this input schema; the advisories."""
    body = {"address": agent.node.address, "capabilities": [a_capability(CAPABILITY, input=schema)]}
    path = f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}"
    answer = agent.reach.request("PUT", path, body, key=agent.key)
    assert answer.status == 200, answer.body
    return answer.json["advisories"]


def calls(reach: Instance, report: Report, payloads: list[dict[str, str]]) -> Counter[str]:
    """Who served how many of the calls."""
    hits: Counter[str] = Counter()
    for payload in islice(cycle(payloads), CALLS):
        answer = dispatch(reach, CAPABILITY, payload)
        assert answer.status == 200, answer.body
        hits[answer.json["service_id"]] += 1
        report.count(answer.json["service_id"])
    return hits
