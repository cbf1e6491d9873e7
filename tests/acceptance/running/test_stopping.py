"""SIGTERM under work: nobody is left without an answer, nor with a connection to nobody."""

import http.client
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.acceptance.agents import NewAgent
from tests.acceptance.instance import Instance, wait_until
from tests.fakes import waits_for

NewInstance = Callable[..., Instance]


def stopping(instance: Instance) -> bool:
    answer = instance.request("GET", "/readyz")
    return answer.status == 503 and answer.json["status"] == "stopping"


def test_calls_are_taken_while_a_load_balancer_looks_away(new_instance: NewInstance, new_agent: NewAgent) -> None:
    instance = new_instance(REACH_STOP_DELAY_S="4").start()
    agent = new_agent(at=instance)
    kept = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=20)
    kept.request("GET", "/healthz")
    assert kept.getresponse().read() and kept.sock is not None  # kept alive

    assert instance.process is not None
    instance.process.send_signal(signal.SIGTERM)
    wait_until(lambda: stopping(instance), "not ready at once", 2)
    assert agent.call().status == 200
    kept.request("GET", "/healthz")
    last = kept.getresponse()
    assert (last.status, last.headers["Connection"]) == (200, "close")
    assert instance.process.wait(30) == 0
    assert "Traceback" not in instance.output


def test_a_call_that_outlasts_the_drain_is_named_to_its_caller(new_instance: NewInstance, new_agent: NewAgent) -> None:
    instance = new_instance(REACH_DRAIN_S="1").start()
    gate = threading.Event()
    agent = new_agent(waits_for(gate), at=instance)
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(agent.call, timeout_ms=60_000)
        wait_until(lambda: agent.node.invocations, "the node works")
        assert instance.stop() == 0
        answer = asked.result(20)
    gate.set()
    assert (answer.status, answer.json["code"]) == (503, "unavailable")
    (invocation,) = agent.node.invocations
    assert answer.json["call_id"] == invocation.call_id
