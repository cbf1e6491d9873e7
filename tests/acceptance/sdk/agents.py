"""Agents as their authors write them: scripts in processes of their own, with the SDK of this checkout."""

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.instance import CHECKOUT, Instance, wait_until

SDK = CHECKOUT / "sdk"


def key_for(reach: Instance, service_id: str, *scopes: str) -> str:
    asked = {"service_id": service_id, "scopes": list(scopes or ("register", "dispatch"))}
    return reach.request("POST", "/api/v1/keys", asked, key=reach.key).json["key"]


def environment(reach_addr: str, key: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REACH_")}
    return inherited | {"PYTHONPATH": str(SDK), "REACH_ADDR": reach_addr, "REACH_API_KEY": key, "PYTHONUNBUFFERED": "1"}


@dataclass
class AgentProcess:
    """One agent. Its script may print; `output` is all that it and its log said."""

    log: Path
    process: subprocess.Popen[bytes]

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = 20) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def remove(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def spawn_agent(folder: Path, script: str, *, reach_addr: str, key: str, **more: str) -> AgentProcess:
    """Start a script, with `more` in its environment."""
    number = len(list(folder.glob("agent-*.py")))
    path, log = folder / f"agent-{number}.py", folder / f"agent-{number}.log"
    path.write_text(textwrap.dedent(script))
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env=environment(reach_addr, key) | more,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=folder,
        )
    return AgentProcess(log, process)


def node_of(reach: Instance, service_id: str) -> dict[str, Any] | None:
    """The service's one node as the registry shows it."""
    answer = reach.request("GET", f"/api/v1/services/{service_id}", key=reach.key)
    nodes = answer.json["nodes"] if answer.status == 200 else []
    return nodes[0] if nodes else None


def wait_ready(reach: Instance, service_id: str, agent: AgentProcess) -> dict[str, Any]:
    def ready() -> dict[str, Any] | None:
        assert agent.process.poll() is None, agent.output
        node = node_of(reach, service_id)
        return node if node is not None and node["status"] == "ready" and is_known(reach, node) else None

    return wait_until(ready, f"{service_id} ready", 20)


def is_known(reach: Instance, node: dict[str, Any]) -> bool:
    """Whether the dispatcher has heard of it, too: that takes a moment."""
    body = {"capability": node["capabilities"][0], "payload": {}}
    explained = reach.request("POST", "/api/v1/dispatch/explain", body, key=reach.key).json
    seen = [
        c for c in explained["candidates"] if (c["service_id"], c["node_id"]) == (node["service_id"], node["node_id"])
    ]
    return bool(seen) and not {"not yet proven ready", "not ready"} & set(seen[0]["reasons"])


def probe(reach: Instance, service_id: str) -> dict[str, Any]:
    node = node_of(reach, service_id)
    assert node is not None
    path = f"/api/v1/services/{service_id}/nodes/{node['node_id']}/probe"
    return reach.request("POST", path, key=reach.key).json


def agent_reach(*arguments: str, reach_addr: str, key: str) -> subprocess.CompletedProcess[str]:
    """The command line."""
    return subprocess.run(
        [sys.executable, "-m", "agent_reach.cli", *arguments],
        env=environment(reach_addr, key),
        capture_output=True,
        text=True,
        timeout=60,
    )
