"""Two dispatchers, one service: what one has seen of it both go by, and its rate is one for both."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.agents import Agent, NewAgent, dispatch
from tests.acceptance.instance import Answer, Instance
from tests.acceptance.topology.nodes import shown
from tests.bed.process import wait_until
from tests.bed.topology import Topology
from tests.fakes import answers, fails

PAUSE_S = 0.03
"""Between two calls of one caller: enough to see everything, and no load to speak of."""


def ask(dispatcher: Instance, agent: Agent) -> Answer:
    return dispatch(dispatcher, agent.capability, max_retries=0)


@pytest.mark.timeout(120)
def test_a_breaker_that_opens_at_one_dispatcher_is_open_at_the_other(reach: Topology, new_agent: NewAgent) -> None:
    first, second = reach.dispatchers
    agent = new_agent(fails(500), at=reach)
    wait_until(lambda: agent.is_known_to(second), "both know it")
    assert [ask(first, agent).status for _ in range(4)] == [502] * 4
    opens_after = time.monotonic()
    assert ask(first, agent).status == 502
    opened_at = time.monotonic()
    assert ask(first, agent).json["code"] == "circuit_open"
    wait_until(lambda: ask(second, agent).json["code"] == "circuit_open", "the second stops", timeout_s=1)
    print(f"the second dispatcher stopped {time.monotonic() - opened_at:.3f} s after the first breaker had opened")
    wait_until(lambda: shown(reach, agent)["status"] == "ejected", "the node is shown as ejected", timeout_s=3)

    sent = len(agent.node.invocations)
    refused: Counter[str] = Counter()
    while time.monotonic() < opens_after + 4.2:
        refused.update(ask(dispatcher, agent).json["code"] for dispatcher in (first, second))
        time.sleep(PAUSE_S)
    assert set(refused) == {"circuit_open"}
    assert len(agent.node.invocations) == sent, "nothing is sent while it is open"

    agent.node.behave = answers({})
    recovered_at = time.monotonic()
    for dispatcher in (first, second):
        wait_until(lambda at=dispatcher: ask(at, agent).status == 200, "its breaker closes", timeout_s=6)
    print(f"closed at both {time.monotonic() - recovered_at:.3f} s after the recovery; refused meanwhile: {refused}")
    assert time.monotonic() < recovered_at + 6
    wait_until(lambda: shown(reach, agent)["status"] == "ready", "the node is shown as ready again")


@pytest.mark.timeout(120)
def test_recovery_right_after_a_failed_trial_is_noticed_within_six_seconds(
    reach: Topology, new_agent: NewAgent
) -> None:
    """The worst moment: the breaker has just opened anew."""
    agent = new_agent(fails(500), at=reach)
    for dispatcher in reach.dispatchers:
        wait_until(lambda at=dispatcher: agent.is_known_to(at), "both know it")
    for _ in range(5):
        ask(reach.dispatchers[0], agent)
    sent = len(agent.node.invocations)

    def tried() -> bool:
        for dispatcher in reach.dispatchers:
            ask(dispatcher, agent)
        return len(agent.node.invocations) > sent

    wait_until(tried, "one attempt is let through", timeout_s=8)
    agent.node.behave = answers({})
    recovered_at = time.monotonic()
    assert len(agent.node.invocations) == sent + 1, "one, not one of each"
    for dispatcher in reach.dispatchers:
        wait_until(lambda at=dispatcher: ask(at, agent).status == 200, "its breaker closes", timeout_s=6)
    print(f"closed at both {time.monotonic() - recovered_at:.3f} s after the recovery")
    assert time.monotonic() < recovered_at + 6


@pytest.mark.timeout(120)
def test_one_rate_for_both(reach: Topology, new_agent: NewAgent) -> None:
    agent = new_agent(answers({}), at=reach, rate_limit=10)
    for dispatcher in reach.dispatchers:
        wait_until(lambda at=dispatcher: agent.is_known_to(at), "both know it")
    until = time.monotonic() + 10

    def call_on(dispatcher: Instance) -> Counter[int]:
        seen: Counter[int] = Counter()
        while time.monotonic() < until:
            seen[ask(dispatcher, agent).status] += 1
            time.sleep(PAUSE_S)
        return seen

    with ThreadPoolExecutor(4) as threads:
        told = sum(threads.map(call_on, reach.dispatchers * 2), Counter())
    print(f"admitted in 10 s at 10/s by two dispatchers: {len(agent.node.invocations)}; answers: {dict(told)}")
    assert set(told) == {200, 429}
    assert 90 <= len(agent.node.invocations) <= 110
