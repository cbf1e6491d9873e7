"""A node's registered address leads to a load balancer that was retired: nobody loses a call, the operator sees why."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.acceptance.agents import Agent, registered
from tests.acceptance.incidents.callers import Callers, epoch_s, second_attempts, told
from tests.acceptance.incidents.report import Report
from tests.acceptance.instance import Instance, wait_until
from tests.bed.balancer import Authority, Balancer
from tests.fakes import FakeNode, works

AFTER_FIRST_FAILURE = 3
"""So many calls may still be sent to the dead address once the first has failed there."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Instance]:
    """A reach that trusts the authority."""
    instance = Instance(tmp_path_factory.mktemp("retired") / "home", {"SSL_CERT_FILE": str(authority.file)})
    try:
        yield instance.start()
    finally:
        instance.remove()


Service = tuple[Balancer, list[Agent]]


@pytest.fixture
def new_service(reach: Instance) -> Iterator[Callable[..., Service]]:
    """Three nodes of one idempotent service; the first, `a`, is reached through a balancer."""
    made: list[Agent | FakeNode] = []

    def make(name: str, certificate: Path | None = None) -> Service:
        made.append(behind := FakeNode(works(0.02)))
        balancer = Balancer(behind.address, certificate)
        nodes = {"a": balancer, "b": FakeNode(works(0.02)), "c": FakeNode(works(0.02))}
        offer = {"service_id": name, "capability": f"{name}_task", "idempotent": True}
        agents = [registered(reach, node, node_id=node_id, **offer) for node_id, node in nodes.items()]
        made.extend(agents)
        return balancer, agents

    yield make
    for one in reversed(made):
        one.leave() if isinstance(one, Agent) else one.close()


@pytest.mark.parametrize(
    ("secure", "why", "evidence"),
    [
        pytest.param(False, "answers 502", "502", id="answers 502 without our error body"),
        pytest.param(True, "certificate has expired", "certificate has expired", id="its certificate has expired"),
    ],
)
def test_retired_address(
    reach: Instance,
    new_service: Callable[..., Service],
    authority: Authority,
    report: Report,
    secure: bool,
    why: str,
    evidence: str,
) -> None:
    valid = authority.certificate("valid", timedelta(days=1)) if secure else None
    balancer, (dead, *_others) = new_service("sealed" if secure else "plain", valid)
    with Callers(reach, dead.capability, report) as callers:
        for node_id in "abc":
            report.wait_for(node_id, 10)
        retired_at = report.note("the address is dead")
        balancer.show(authority.certificate("expired", -timedelta(days=1))) if secure else balancer.retire()
        wait_until(lambda: shown(dead)["status"] == "not_ready", "the probe takes it out", 10)
        for node_id in "bc":
            report.wait_for(node_id, 30)
    for asked in balancer.asked:
        if asked.at >= retired_at:
            report.count(
                "calls at a" if asked.what == "/reach/invoke" else "greetings at a" if secure else "probes at a",
                asked.at,
            )
    statuses = told(report, dead)

    # Nobody loses a call: whoever met the dead address was served by another node.
    assert {answer.status for answer in callers.answers} == {200}
    failed = second_attempts(dead, "attempt_failed", lambda receipt: receipt["node_id"] == "a")
    assert failed
    met = {receipt["call_id"] for receipt in failed}
    served = [answer.json for answer in callers.answers if answer.json["call_id"] in met]
    assert {one["node_id"] for one in served} <= {"b", "c"} and {one["attempts"] for one in served} == {2}

    # Hardly anybody meets it any more.
    after = [
        receipt
        for receipt in second_attempts(dead, "forwarded", lambda receipt: receipt["node_id"] == "a")
        if receipt["at"] > failed[0]["at"]
    ]
    for receipt in after:
        report.note("a call is still sent to a", epoch_s(receipt["at"]))
    assert len(after) <= AFTER_FIRST_FAILURE
    assert report.total("a", since=retired_at + 1) == 0

    # The operator sees why: at the node, in its history, in the call.
    node = shown(dead)
    assert why in node["status_reason"]
    assert statuses == ["starting", "ready", "suspect", "not_ready"]
    assert all(receipt["detail"]["reason"] for receipt in failed)
    if not secure:  # the other changes its listener: who comes in that moment is refused, and the node's page says why
        assert any(evidence in str(receipt["detail"]) for receipt in failed)


def shown(agent: Agent) -> dict[str, str]:
    path = f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}"
    return agent.reach.request("GET", path, key=agent.reach.key).json
