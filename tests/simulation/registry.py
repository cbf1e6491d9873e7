"""The simulated registry: leases of nodes, probes, suspicion; and tables that reach each process a little later."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from django.conf import settings

from registry import health
from registry.core.health import Standing, next_probe_s, standing_after
from registry.core.node import Health, Node
from routing.core.matching import RouteTable
from routing.core.tables import Tables
from tests.simulation.nodes import SimulatedNode
from tests.simulation.scheduler import ProcessLoop, Scheduler

PROBE_S, NOTICE_S = 0.02, 0.02
LEASE_S = 45.0
REST_S = 0.2
"""Between two loads of a process at the most (`routing.snapshot` rests so long under many changes)."""


class Registry:
    """Who exists, as the database knows it."""

    def __init__(
        self,
        scheduler: Scheduler,
        chance: Random,
        nodes: Iterable[SimulatedNode],
        routes: RouteTable,
        can_work: Callable[[], bool],
    ):
        self.scheduler, self.chance, self.routes, self.can_work = scheduler, chance, routes, can_work
        self.nodes = {node.key: node for node in nodes}
        self.standings = {key: Standing(Health.READY, "") for key in self.nodes}
        self.doubted: dict[tuple[str, str], None] = {}
        """Nodes whose turn it is at once."""
        self.version = 1
        self.known = frozenset(node.work.capability for node in self.nodes.values())
        self.rows: dict[tuple[str, str], Node] = {key: node.declared for key, node in self.nodes.items()}
        self.made: Tables | None = None
        self.followers: list[Snapshot] = []
        for key in self.nodes:
            self.scheduler.after(settings.REACH_PROBE_INTERVAL_S * self.chance.random(), self.probe, key, False)

    # --- Tables ------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        """The current version; processes share the value, which never changes."""
        if self.made is None:
            shown = settings.REACH_MAX_CANDIDATES_SHOWN
            self.made = Tables(self.version, list(self.rows.values()), self.known, self.routes, shown_at_most=shown)
        return self.made

    def put(self, key: tuple[str, str], **changes: Any) -> None:
        """A row has changed: everybody is told."""
        self.rows[key] = replace(self.rows[key], **changes)
        self.version += 1
        self.made = None
        for follower in self.followers:
            follower.notice()

    def forget(self, follower: "Snapshot") -> None:
        if follower in self.followers:
            self.followers.remove(follower)

    # --- Probes and leases -------------------------------------------------------------------------------------------

    def probe(self, key: tuple[str, str], at_once: bool) -> None:
        """Look at a node, as the worker does, and set its next turn."""
        node, standing = self.nodes[key], self.standings[key]
        if not self.can_work():
            if not at_once:
                self.scheduler.after(1.0, self.probe, key, False)
            return
        trouble = node.trouble()
        patience_s = settings.REACH_PROBE_TIMEOUT_S if "answer" in trouble or "hangs" in trouble else PROBE_S
        self.scheduler.after(patience_s, self.found, key, trouble, node.life, at_once, standing)

    def found(self, key: tuple[str, str], trouble: str, life: int, at_once: bool, before: Standing) -> None:
        node, standing = self.nodes[key], self.standings[key]
        if life == node.life and self.can_work():
            standing = self.standings[key] = standing_after(
                standing, trouble, failures_out=settings.REACH_PROBE_FAILURES_OUT
            )
            if standing.health is not self.rows[key].health:
                self.put(key, health=standing.health)
        if not at_once:
            wait_s = next_probe_s(
                standing,
                interval_s=settings.REACH_PROBE_INTERVAL_S,
                out_interval_s=settings.REACH_PROBE_OUT_INTERVAL_S,
                chance=self.chance.random(),
            )
            self.scheduler.after(wait_s, self.probe, key, False)

    async def probe_doubted(self) -> None:
        """An engine has seen that there are nodes to look at: who is first does."""
        doubted, self.doubted = self.doubted, {}
        for key in doubted:
            self.scheduler.after(PROBE_S * self.chance.random(), self.probe, key, True)

    def told(self, sql: str, parameters: tuple[Any, ...]) -> None:
        """A dispatcher speaks of nodes."""
        if sql is not health.SUSPECT:
            return
        for service_id, node_id in zip(parameters[0], parameters[1], strict=True):
            key = service_id, node_id
            if key in self.rows and self.rows[key].health is Health.READY:
                self.standings[key] = Standing(Health.SUSPECT, "suspected")
                self.doubted[key] = None
                self.put(key, health=Health.SUSPECT)

    def node_stopped(self, key: tuple[str, str]) -> None:
        life = self.nodes[key].life
        self.scheduler.after(LEASE_S, self.expire, key, life)

    def expire(self, key: tuple[str, str], life: int) -> None:
        node = self.nodes[key]
        if not node.is_up and node.life == life:
            self.put(key, expired=True)

    def node_started(self, key: tuple[str, str]) -> None:
        """It registers again, and is looked at."""
        if self.rows[key].expired:
            self.put(key, expired=False)
        self.scheduler.after(PROBE_S, self.probe, key, True)


class Snapshot:
    """What `routing.snapshot.Snapshot` is to a process: `tables`, and whom it tells of new ones."""

    def __init__(self, registry: Registry, chance: Random, loop: ProcessLoop, is_reachable: Callable[[], bool]):
        self.registry, self.chance, self.loop, self.is_reachable = registry, chance, loop, is_reachable
        self.tables: Tables | None = registry.tables
        self.when_loaded: list[Callable[[Tables], None]] = []
        self.is_loading = False
        self.rested_at_s = 0.0
        registry.followers.append(self)

    def notice(self) -> None:
        if not self.is_loading:
            self.is_loading = True
            scheduler = self.registry.scheduler
            at_s = max(self.rested_at_s, scheduler.now_s + NOTICE_S * (0.5 + self.chance.random()))
            self.loop.call_at(at_s, self.load)

    def load(self) -> None:
        scheduler = self.registry.scheduler
        if not self.is_reachable():
            self.loop.call_later(settings.REACH_SNAPSHOT_POLL_S, self.load)
            return
        self.is_loading = False
        self.rested_at_s = scheduler.now_s + REST_S
        self.tables = self.registry.tables
        for told in self.when_loaded:
            told(self.tables)

    async def stop(self) -> None:
        self.registry.forget(self)
