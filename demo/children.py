"""The demo's processes: each in a group of its own, so that Ctrl-C reaches the demo alone, which ends them in order."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
POLL_S = 0.1
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class AgentSpec(NamedTuple):
    module: str
    service_id: str
    node_id: str
    arguments: tuple[str, ...] = ()


def _two(module: str, *, slow: str | None = None) -> list[AgentSpec]:
    """The two nodes of a service; the module's name is the service's, with dashes."""
    service_id = module.replace("_", "-")
    return [AgentSpec(module, service_id, node, ("slow",) if node == slow else ()) for node in ("one", "two")]


AGENTS = [
    *_two("report"),
    *_two("data_query"),
    *_two("permission_check"),
    *_two("tickets"),
    *_two("doc_summarizer", slow="two"),
    *_two("headline_summarizer"),
    *_two("docs_search"),
]


def end_with_the_demo() -> None:
    """In a new child, on Linux: SIGTERM when the demo is gone, however it went."""
    if libc is not None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def started_reach() -> subprocess.Popen[bytes]:
    """The all-in-one, as `make run` starts it; its output is the demo's."""
    command = [sys.executable, "manage.py", "reach_serve"]
    return subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=end_with_the_demo
    )


def started_agent(spec: AgentSpec, *, reach_addr: str, key: str, home: Path) -> subprocess.Popen[bytes]:
    """One agent; its output goes into a file under `home`."""
    environment = os.environ | {"REACH_ADDR": reach_addr, "REACH_API_KEY": key, "DEMO_HOME": str(home)}
    with (home / f"{spec.service_id}-{spec.node_id}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"demo.agents.{spec.module}", spec.node_id, *spec.arguments],
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_the_demo,
        )


async def end(processes: Iterable[subprocess.Popen[bytes]], patience_s: float) -> None:
    """Ask all to stop; kill what has not after `patience_s`."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    give_up_at = asyncio.get_running_loop().time() + patience_s
    while any(process.poll() is None for process in running):
        if asyncio.get_running_loop().time() > give_up_at:
            for process in running:
                process.kill()
        await asyncio.sleep(POLL_S)
