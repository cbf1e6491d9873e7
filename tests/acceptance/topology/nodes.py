"""Agents of this folder's tests as the registry shows them, and heartbeats."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.acceptance.agents import Agent
from tests.bed.topology import Topology


def shown(reach: Topology, agent: Agent) -> dict[str, Any]:
    """The node as the registry shows it."""
    return reach.request("GET", path_of(agent), key=reach.key).json


def path_of(agent: Agent) -> str:
    return f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}"


@contextmanager
def heart_beating(agent: Agent, *, every_s: float) -> Iterator[None]:
    """Heartbeats to whoever listens, answered or not."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every_s):
            agent.reach.request("POST", f"{path_of(agent)}/heartbeat", {}, key=agent.key)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        yield
    finally:
        over.set()
        heart.join()
