"""What one process knows of its nodes from its own calls: the one mutable object of the hot path."""

import math
from collections.abc import Container
from time import monotonic

from registry.core.node import Health
from routing.core.balancing import peak_ewma
from routing.core.tables import Tables

NodeKey = tuple[str, str]


class NodeLoad:
    """In-flight calls and peak-EWMA latency per node. Single-threaded: one event loop owns it."""

    def __init__(self, *, decay_s: float, suspicion_s: float = 0.0):
        self.decay_s, self.suspicion_s = decay_s, suspicion_s
        self.suspected: dict[NodeKey, float] = {}
        self.told: dict[NodeKey, float] = {}
        self.flying: dict[NodeKey, int] = {}
        self.latencies: dict[NodeKey, tuple[float, float]] = {}

    def in_flight(self, key: NodeKey) -> int:
        return self.flying.get(key, 0)

    def latency_s(self, key: NodeKey) -> float:
        """The node's peak-sensitive average (s), faded since its last answer; 0 for one never tried."""
        average, at = self.latencies.get(key, (0.0, 0.0))
        return average * math.exp(-(monotonic() - at) / self.decay_s) if average else 0.0

    def claim(self, key: NodeKey) -> None:
        """Count one more call in flight, before anything is awaited after the decision."""
        self.flying[key] = self.flying.get(key, 0) + 1

    def release(self, key: NodeKey) -> None:
        if left := self.flying[key] - 1:
            self.flying[key] = left
        else:
            del self.flying[key]

    def observe(self, key: NodeKey, elapsed_s: float) -> None:
        """Take in how long the node had a call."""
        now = monotonic()
        average, at = self.latencies.get(key, (0.0, now))
        self.latencies[key] = (peak_ewma(average, elapsed_s, now - at, decay_s=self.decay_s), now)

    def suspect(self, key: NodeKey) -> bool:
        """The way to a node has just failed: it is taken last for a while. True when the others should hear of it.

        They hear of a node once in that while at most: one that passes its probes and breaks its calls must not keep
        every process loading its tables.
        """
        now = monotonic()
        self.suspected[key] = now + self.suspicion_s
        if self.told.get(key, -math.inf) > now - self.suspicion_s:
            return False
        self.told[key] = now
        return True

    def suspects(self) -> Container[NodeKey]:
        """The nodes to be taken last, by this process's own calls; nearly always none."""
        if self.suspected:
            now = monotonic()
            for key in [key for key, until in self.suspected.items() if until < now]:
                del self.suspected[key]
        return self.suspected

    def heed(self, tables: Tables) -> None:
        """The tables have moved: a suspicion that they know of is theirs to end, and who is gone is forgotten."""
        for key in list(self.suspected):
            if (node := tables.nodes.get(key)) is None or node.health is not Health.READY:
                del self.suspected[key]
        for known in (self.latencies, self.told):
            for key in known.keys() - tables.nodes.keys():
                del known[key]
