"""Agents made with the SDK, beside a real Agent-Reach."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.instance import Answer, Instance, free_port, wait_until
from tests.acceptance.kinds import a_reach
from tests.acceptance.sdk.agents import (
    AgentProcess,
    agent_reach,
    environment,
    key_for,
    node_of,
    probe,
    spawn_agent,
    wait_ready,
)

Spawn = Callable[..., AgentProcess]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    made: list[AgentProcess] = []

    def start(script: str, *, reach: Instance | None = None, reach_addr: str = "", key: str) -> AgentProcess:
        made.append(spawn_agent(tmp_path, script, reach_addr=reach_addr or reach.url if reach else reach_addr, key=key))
        return made[-1]

    yield start
    for agent in made:
        agent.remove()


SKELETON = """
from agent_reach import AgentClient, Capability

client = AgentClient(service_id="{service}", reach_addr="{url}", heartbeat_interval=15)
client.register_capability(Capability(
    name="file_summary",
    input_schema={{"type": "object", "properties": {{"path": {{"type": "string"}}}}, "required": ["path"]}},
    output_schema={{"type": "object", "properties": {{"summary": {{"type": "string"}}}}}},
    cost_level="medium",
))

@client.handle("file_summary")
async def handle_file_summary(payload, ctx):
    ctx.logger.info("started")
    await ctx.progress(0.4, "page 20 of 50")
    seen = await ctx.call("data_query", {{"sql": "select 1"}})
    return {{"summary": str(seen["rows"]), "keywords": [payload["path"]]}}

@client.ready_check
async def model_answers(): ...

client.start()
"""

DATA_QUERY = """
from agent_reach import AgentClient, Capability

client = AgentClient("data-query")
client.register_capability(Capability(name="data_query", input_schema={"type": "object", "required": ["sql"]}))

@client.handle("data_query")
def query(payload, ctx):
    return {"rows": 1}

client.start()
"""


def succeeded(reach: Instance, asked: dict[str, Any]) -> Answer | None:
    """What a dispatch brings, where it succeeds."""
    answer = reach.request("POST", "/api/v1/dispatch", asked, key=reach.key)
    return answer if answer.status == 200 else None


def test_the_skeleton_as_written(reach: Instance, spawn: Spawn) -> None:
    data = spawn(DATA_QUERY, reach=reach, key=key_for(reach, "data-query", "register"))
    agent = spawn(
        SKELETON.format(service="doc-summarizer", url=reach.url), reach=reach, key=key_for(reach, "doc-summarizer")
    )
    wait_ready(reach, "data-query", data)
    wait_ready(reach, "doc-summarizer", agent)
    asked = {"capability": "file_summary", "payload": {"path": "a"}}
    answer = wait_until(partial(succeeded, reach, asked), "both are known to who dispatches")
    assert answer.json["output"] == {"summary": "1", "keywords": ["a"]}
    call_id, trace_id = answer.json["call_id"], answer.json["trace_id"]
    assert f"started [call_id={call_id} trace_id={trace_id}]" in agent.output

    shown = agent_reach("trace", call_id, reach_addr=reach.url, key=reach.key)
    assert shown.returncode == 0
    parent, child = shown.stdout.index("file_summary"), shown.stdout.index("data_query")
    assert parent < shown.stdout.index("40% page 20 of 50") < child
    assert (agent.stop(), data.stop()) == (0, 0)
    assert node_of(reach, "doc-summarizer") is None  # it said goodbye


RUNS_ONCE = """
import time
from agent_reach import AgentClient, Capability

client = AgentClient("{service}", heartbeat_interval=1, running_interval_s=0.5)
client.register_capability(Capability(name="{service}_job", idempotent={idempotent}))

@client.handle("{service}_job")
def work(payload, ctx):
    print("RUNS", flush=True)
    time.sleep({seconds})
    return "done"

client.start()
"""


CANCELLED = """
from agent_reach import AgentClient, Capability

client = AgentClient(service_id="{service}", reach_addr="{url}")
client.register_capability(Capability(name="{service}_long"))

@client.handle("{service}_long")
def work(payload, ctx):
    print("at work", flush=True)
    print("told" if ctx.cancelled.wait(20) else "never told", flush=True)

client.start()
"""
CANCELLER = """
import sys
from agent_reach import Conflict, ReachClient

with ReachClient() as client:
    client.cancel(sys.argv[1])
    try:
        client.cancel(sys.argv[1])
    except Conflict as exc:
        print("once only:", exc.call_id)
"""


def test_a_cancel_by_the_client_reaches_the_handler(reach: Instance, spawn: Spawn, tmp_path: Path) -> None:
    script = CANCELLED.format(service="patient", url=reach.url)
    agent = spawn(script, reach=reach, key=key_for(reach, "patient"))
    wait_ready(reach, "patient", agent)
    key = key_for(reach, "impatient")
    body = {"capability": "patient_long", "payload": {}}
    with ThreadPoolExecutor(1) as person:
        asked = person.submit(reach.request, "POST", "/api/v1/dispatch", body, key=key)
        wait_until(lambda: "at work" in agent.output, "the handler is at work")
        call_id = reach.request("GET", "/api/v1/calls?capability=patient_long", key=key).json["results"][0]["call_id"]
        done = subprocess.run(
            [sys.executable, "-c", CANCELLER, call_id],
            env=environment(reach.url, key),
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert done.stdout.strip() == f"once only: {call_id}", done.stderr
        assert asked.result(timeout=5).json["code"] == "cancelled"
    wait_until(lambda: "told" in agent.output, "ctx.cancelled is set")
    assert "never told" not in agent.output


@dataclass
class Outage:
    """What a kill of the reach left to look at: it is back, two tasks were at work, one agent was started meanwhile."""

    reach: Instance
    workers: dict[str, AgentProcess]
    early: AgentProcess
    back_after_s: float

    def ended_call(self, service: str) -> dict | None:
        [call] = self.reach.request("GET", f"/api/v1/calls?idempotency_key={service}", key=self.reach.key).json[
            "results"
        ]
        return call if call["ended_at"] else None


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    folder = tmp_path_factory.mktemp("outage")
    reach = a_reach(folder / "home", {"REACH_PROCESS_LEASE_S": "2"})
    with contextlib.ExitStack() as undo:
        undo.callback(reach.remove)
        reach.start()
        keys = {name: key_for(reach, name) for name in ("careful", "repeatable", "early")}

        def spawned(script: str, service: str) -> AgentProcess:
            agent = spawn_agent(folder, script, reach_addr=reach.url, key=keys[service])
            undo.callback(agent.remove)
            return agent

        workers = {
            name: spawned(RUNS_ONCE.format(service=name, idempotent=name == "repeatable", seconds=10), name)
            for name in ("careful", "repeatable")
        }
        for name, agent in workers.items():
            wait_ready(reach, name, agent)
        callers = [threading.Thread(target=ask_for_the_job, args=(reach, name)) for name in workers]
        for caller in callers:
            caller.start()
        wait_until(lambda: all("RUNS" in agent.output for agent in workers.values()), "at work")
        reach.kill()
        for caller in callers:
            caller.join()
        early = spawned(SKELETON.format(service="early", url=reach.url), "early")
        wait_until(lambda: "cannot be reached" in early.output, "the warning", 10)
        reach.start()
        started = time.monotonic()
        for name, agent in workers.items():
            wait_ready(reach, name, agent)
        yield Outage(reach, workers, early, time.monotonic() - started)


def ask_for_the_job(reach: Instance, service: str) -> None:
    body = {"capability": f"{service}_job", "payload": {}, "idempotency_key": service, "timeout_ms": 60_000}
    with contextlib.suppress(OSError):  # it goes down with the reach
        reach.request("POST", "/api/v1/dispatch", body, key=reach.key)


@pytest.mark.parametrize("service", ["careful", "repeatable"])
def test_a_job_outlives_a_killed_reach(outage: Outage, service: str) -> None:
    call = wait_until(partial(outage.ended_call, service), f"the call to {service} has ended", 40)
    assert (call["status"], call["output"]) == ("succeeded", "done")
    assert outage.workers[service].output.count("RUNS") == 1


def test_agents_are_back_within_a_heartbeat(outage: Outage) -> None:
    assert outage.back_after_s < 5


def test_a_reach_that_is_down_is_waited_for(outage: Outage) -> None:
    wait_ready(outage.reach, "early", outage.early)
    said = outage.early.output
    assert said.count("WARNING") == said.count("WARNING agent_reach: unreachable") == 1


HANGING_MODEL = """
import threading
from agent_reach import AgentClient, Capability

client = AgentClient("hanging")
client.register_capability(Capability(name="hanging_work", input_schema={"type": "object"}))
client.handle("hanging_work")(lambda payload, ctx: None)

@client.ready_check
def model_answers():
    threading.Event().wait()

client.start()
"""


def test_a_hanging_model_is_not_ready_and_alive(reach: Instance, spawn: Spawn) -> None:
    spawn(HANGING_MODEL, reach=reach, key=key_for(reach, "hanging"))
    wait_until(lambda: node_of(reach, "hanging"), "registered", 20)
    evidence = probe(reach, "hanging")
    assert evidence["live"]["status"] == 200
    assert evidence["status"] == "not_ready"
    assert "its ready check did not answer" in evidence["status_reason"]


SLOTS = """
import time
from agent_reach import AgentClient, Capability

client = AgentClient("{service}", max_concurrency=2, stalled_after_s=0.5)
client.register_capability(Capability(name="{service}_work", input_schema={{"type": "object"}}))

@client.handle("{service}_work")
def work(payload, ctx):
    time.sleep(payload["seconds"])

client.start()
"""


@pytest.mark.parametrize(
    ("service", "seconds", "is_ready"), [("stuck", 30, False), ("busy", 0.3, True)], ids=["stuck", "busy"]
)
def test_every_slot_taken(reach: Instance, spawn: Spawn, service: str, seconds: float, is_ready: bool) -> None:
    agent = spawn(SLOTS.format(service=service), reach=reach, key=key_for(reach, service))
    wait_ready(reach, service, agent)
    body = {"capability": f"{service}_work", "payload": {"seconds": seconds}, "timeout_ms": 1000}
    give_up_at = time.monotonic() + 2.5

    def keep_busy() -> None:
        while time.monotonic() < give_up_at:
            reach.request("POST", "/api/v1/dispatch", body, key=reach.key)

    callers = [threading.Thread(target=keep_busy) for _ in range(3)]
    for caller in callers:
        caller.start()
    time.sleep(2.2)  # the stuck ones are past their deadline
    probe(reach, service)  # one failure alone takes nobody out
    evidence = probe(reach, service)
    for caller in callers:
        caller.join()
    if is_ready:
        assert evidence["status"] == "ready"
    else:
        assert (evidence["live"]["status"], evidence["status"]) == (200, "not_ready")
        assert "stalled" in evidence["status_reason"]


def wrong_use(change: tuple[str, str], *, url: str) -> str:
    script = SKELETON.format(service="wrong", url=url)
    assert change[0] in script
    return script.replace(*change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("(payload, ctx)", "(payload)"), "must take (payload, ctx)"),
        (('handle("file_summary")', 'handle("file_sumary")'), "did you mean 'file_summary'?"),
        (("(payload, ctx)", "(payload: Model, ctx)"), "Model needs 'file_path', which the schema does not have"),
    ],
    ids=["no ctx", "misspelt capability", "schema and hint"],
)
def test_mistakes_in_the_script_end_it(reach: Instance, spawn: Spawn, change: tuple[str, str], sentence: str) -> None:
    model = "from typing import TypedDict\nModel = TypedDict('Model', {'file_path': str})\n"
    agent = spawn(model + wrong_use(change, url=reach.url), reach=reach, key="k")
    assert agent.wait() == 1
    assert sentence in agent.output.splitlines()[-1]


def test_an_example_that_does_not_fit_ends_the_start(reach: Instance, spawn: Spawn) -> None:
    change = ('cost_level="medium"', 'examples=[{"file": "a"}]')
    agent = spawn(wrong_use(change, url=reach.url), reach=reach, key="k")
    assert agent.wait() == 1
    [line] = [line for line in agent.output.splitlines() if line]
    assert line.startswith("wrong cannot start: example 1 of file_summary does not fit its input_schema")


def test_a_bad_key_ends_the_start_in_one_line(reach: Instance, spawn: Spawn) -> None:
    agent = spawn(SKELETON.format(service="wrong", url=reach.url), reach=reach, key="reach_nobodys")
    assert agent.wait() == 1
    [line] = [line for line in agent.output.splitlines() if line]
    assert line.startswith("wrong cannot start: unauthenticated: ") and "REACH_API_KEY" in line


def test_a_key_of_somebody_else_ends_the_start_in_one_line(reach: Instance, spawn: Spawn) -> None:
    agent = spawn(SKELETON.format(service="wrong", url=reach.url), reach=reach, key=key_for(reach, "somebody-else"))
    assert agent.wait() == 1
    [line] = [line for line in agent.output.splitlines() if line]
    assert line.startswith("wrong cannot start: forbidden: the key belongs to somebody-else, not to wrong")


def test_a_wrong_address_ends_the_start_in_one_line(reach: Instance, spawn: Spawn) -> None:
    agent = spawn(SKELETON.format(service="wrong", url=f"{reach.url}/elsewhere"), reach=reach, key="k")
    assert agent.wait() == 1
    [line] = [line for line in agent.output.splitlines() if line]
    assert "check reach_addr" in line


def test_the_command_line_tells_success_by_its_status(reach: Instance, spawn: Spawn) -> None:
    data = spawn(DATA_QUERY, reach=reach, key=key_for(reach, "data-query", "register"))
    wait_ready(reach, "data-query", data)

    def run(*arguments: str, key: str = reach.key, reach_addr: str = reach.url):
        return agent_reach(*arguments, reach_addr=reach_addr, key=key)

    good = run("call", "data_query", '{"sql": "select 1"}')
    assert (good.returncode, json.loads(good.stdout)) == (0, {"rows": 1})
    unfit = run("call", "data_query", "{}")
    assert unfit.returncode == 1 and unfit.stdout == "" and "/payload/sql: is required" in unfit.stderr
    for status, returncode, last in (("succeeded", 0, "succeeded"), ("rejected", 1, "rejected")):
        query = f"capability=data_query&status={status}"
        [call] = reach.request("GET", f"/api/v1/calls?{query}&limit=1", key=reach.key).json["results"]
        followed = run("follow", call["call_id"])
        assert followed.returncode == returncode and last in followed.stdout.splitlines()[-1]
        assert "accepted" in followed.stdout.splitlines()[0]
        assert "accepted" not in run("follow", call["call_id"], "--after", "1").stdout
    assert run("follow", call["trace_id"]).returncode == 1
    assert run("explain", "data_query", "{}").returncode == 1
    assert "ready" in run("nodes").stdout
    assert run("doctor").returncode == 0
    bad_key = run("doctor", key="reach_nobodys")
    assert bad_key.returncode == 1 and "REACH_API_KEY" in bad_key.stdout
    wrong = run("trace", "nonsense")
    assert wrong.returncode != 0 and "a call id (a UUID)" in wrong.stderr
    nobody = run("doctor", reach_addr=f"http://127.0.0.1:{free_port()}")
    assert nobody.returncode == 1 and "make run" in nobody.stdout
