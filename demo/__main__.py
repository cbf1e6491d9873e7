"""`make demo`: a reach, agents, traffic; SIGINT, SIGTERM or SIGHUP ends all of it, in the opposite order."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from agent_reach import AsyncReachClient, NoAvailableNode, Result

from demo import children
from demo.operator import FRONT_DESK, Operator
from demo.traffic import FIRST, Traffic, told

READY_TIMEOUT_S = 90.0
AGENTS_TIMEOUT_S = 45.0
AGENT_STOP_S = 10.0
REACH_STOP_S = 40.0
POLL_S = 0.2


class CannotRun(Exception):
    """Why the demo cannot go on, in one sentence."""


def say(line: str) -> None:
    print(line, flush=True)


def reach_home() -> Path:
    return children.CHECKOUT / os.environ.get("REACH_HOME", ".reach")


def reach_url() -> str:
    """Where the reach will listen, by the same environment."""
    host, _colon, port = os.environ.get("LISTEN_ADDR", "").rpartition(":")
    host = os.environ.get("REACH_HOST") or host or "127.0.0.1"
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{os.environ.get('REACH_PORT') or port or 8080}"


async def main() -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as undo:
        reach = children.started_reach()
        undo.push_async_callback(children.end, [reach], REACH_STOP_S)
        showing = asyncio.create_task(show(reach, undo))
        stopping = asyncio.create_task(stop.wait())
        gone = asyncio.create_task(ended(reach))
        await asyncio.wait({showing, stopping, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (showing, stopping, gone):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
        say("Stopping …")
    return 0 if stop.is_set() else reach.returncode or 1


async def ended(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        await asyncio.sleep(POLL_S)


async def show(reach: subprocess.Popen[bytes], undo: contextlib.AsyncExitStack) -> None:
    """Everything between the reach's start and the end of the demo. Raises CannotRun."""
    url, home = reach_url(), reach_home() / "demo"
    await until(lambda: is_ready(url), READY_TIMEOUT_S, f"Agent-Reach is not ready at {url}")
    started = time.monotonic()
    credentials = json.loads((reach_home() / "credentials.json").read_text())
    operator = Operator(url, credentials["operator_key"])
    home.mkdir(exist_ok=True)
    services = {spec.service_id for spec in children.AGENTS}
    keys = await asyncio.to_thread(operator.keys, home / "keys.json", {*services, FRONT_DESK})
    people = keys.people["demo-author"], keys.people["demo-approver"]
    revision = await asyncio.to_thread(operator.publish_routes, *people)
    agents = [
        children.started_agent(spec, reach_addr=url, key=keys.services[spec.service_id], home=home)
        for spec in children.AGENTS
    ]
    undo.push_async_callback(children.end, agents, AGENT_STOP_S)
    wanted = {(spec.service_id, spec.node_id) for spec in children.AGENTS}
    say(f"Starting {len(agents)} agents …")
    await until(lambda: not operator.unready(wanted), AGENTS_TIMEOUT_S, f"not all agents are ready; see {home}")
    async with AsyncReachClient(url, keys.services[FRONT_DESK]) as caller:
        traffic = Traffic(caller, say)
        first = await first_answer(caller, until_s=time.monotonic() + AGENTS_TIMEOUT_S)
        say(what_to_try(url, revision, len(agents), first.call_id, home, time.monotonic() - started))
        try:
            await traffic.play()
        finally:
            say(told(traffic.endings))


async def first_answer(caller: AsyncReachClient, *, until_s: float) -> Result:
    """The first call's result. That a node is ready reaches the dispatcher a moment after the registry."""
    while True:
        try:
            return await caller.dispatch(FIRST.capability, FIRST.payload, labels={"user": FIRST.user})
        except NoAvailableNode:
            if time.monotonic() > until_s:
                raise
            await asyncio.sleep(0.2)


async def until(condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    """Wait for a condition that blocks a little. Raises CannotRun."""
    give_up_at = time.monotonic() + timeout_s
    while not await asyncio.to_thread(condition):
        if time.monotonic() > give_up_at:
            raise CannotRun(otherwise)
        await asyncio.sleep(POLL_S)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def what_to_try(url: str, revision: int, agents: int, call_id: str, home: Path, took_s: float) -> str:
    read_key = f"""import json; print(json.load(open("{reach_home() / "credentials.json"}"))["operator_key"])"""
    return f"""
The demo runs: {agents} agents, route table revision {revision}, about one call a second ({took_s:.0f} s after ready).
In a second terminal:
  export REACH_ADDR={url} REACH_API_KEY=$(python3 -c '{read_key}')
  export PATH={Path(sys.executable).parent}:$PATH
  agent-reach trace {call_id}   report → data query → permission check → ticket
  agent-reach tail                                         receipts as they come
  agent-reach nodes                                        who is there; end one process and look again
  agent-reach call report_question '{{"question": "weekly quantity by region"}}'
The same in a browser: {url}/admin/   The agents' logs and tickets: {home}
"""


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except CannotRun as exc:
        sys.exit(f"the demo cannot run: {exc}")
