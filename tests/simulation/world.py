"""A simulated installation: its database, Redis, network, nodes, processes and callers, all drawn from one seed."""

import gc
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from uuid import UUID

from django.conf import settings

from receipts.cancelling import CANCEL
from receipts.core.ending import Ending
from receipts.errors import CallNotFound, ReceiptRefused
from receipts.rows import json_of
from registry import clock
from registry.auth import Key
from registry.core.node import Node, Offer
from registry.errors import Forbidden, Unavailable
from registry.schemas import compile_schema
from routing.core.matching import EMPTY_TABLE, RouteTable
from routing.core.reports import PostedReceipt
from routing.live import LiveParts
from routing.node_receipts import take_receipt
from routing.rules import build_table, parse_document
from tests.simulation.callers import LONGEST_S, Asked, Callers
from tests.simulation.database import EPOCH_S, Database
from tests.simulation.faults import Faults
from tests.simulation.network import Envelope, Network
from tests.simulation.nodes import SimulatedNode, Style, Work
from tests.simulation.processes import Process
from tests.simulation.redis import Redis
from tests.simulation.registry import Registry
from tests.simulation.scheduler import ProcessLoop, Scheduler
from tests.simulation.storm import Storm
from tests.simulation.watch import Violation, Watch

ROUNDS_MONOTONIC_S = 1000.0
"""What a host's monotonic clock shows when the world begins."""
OUTPUT = {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}
CALM_S = LONGEST_S + 20.0
"""After the last fault callers go on asking for so long: what began under it has ended, and breakers have closed."""
LOOK_S, REST_S = 3.0, 120.0
"""After the last call: how often it is looked whether everything has ended, and when it must have."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """How large a world is and how bad its days are. What is not given is drawn from the seed."""

    seed: int
    calls: int = 5000
    lasts_s: float = 110.0
    """Callers ask for so long."""
    dispatchers: int = 3
    engines: int = 2
    async_share: float = 0.1
    """Of the calls: nobody waits for so many."""
    services: int = 4
    nodes_each: int = 3
    faults_per_min: float = 45.0
    burst_share: float = 0.02
    burst: int = 20
    calm_share: float = 0.25
    """Of the calls: so many are asked when the faults are over."""
    storm: int = 0
    """1: one large outage instead of many faults (`tests/simulation/storm.py`); 2: without Redis from the beginning."""

    @property
    def faults_end_s(self) -> float:
        return self.lasts_s - CALM_S


class World:
    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.scheduler = scheduler = Scheduler()
        self.calls_made = self.processes_started = 0
        self.rests_s = scenario.lasts_s + 0.1
        """When to look next whether all has come to rest."""
        self.asking: Asked | None = None
        self.by_owner: dict[str, Process] = {}
        self.by_loop: dict[ProcessLoop, Process] = {}
        self.processes: list[Process] = []
        self.watch = watch = Watch(self)
        self.database = Database(scheduler, self.stream("database"))
        self.database.tables.changed = watch.changed
        self.network = Network(
            scheduler,
            self.stream("network"),
            connect_timeout_s=settings.REACH_CONNECT_TIMEOUT_S,
            keepalive_s=settings.REACH_NODE_KEEPALIVE_S,
        )
        self.network.posting, self.network.leaving = watch.posting, watch.leaving
        self.redis = Redis(scheduler, self.stream("redis"))
        self.has_redis = scenario.storm == 1 or (not scenario.storm and self.stream("has redis").random() < 0.5)
        self.has_beat = self.stream("has beat").random() < 0.5
        """Or the engines sweep by themselves."""
        self.has_small_engines = self.stream("has small engines").random() < 0.5
        self.works, self.nodes = make_nodes(self)
        self.shares = list(accumulate(4 if work.style is Style.ANSWER else 1 for work in self.works))
        """Of the calls, by service: most are answered at once."""
        self.network.nodes = {node.declared.invoke_url: node for node in self.nodes}
        self.registry = Registry(scheduler, self.stream("registry"), self.nodes, routes(self), self.can_work)
        self.database.registry_told = self.registry.told
        self.callers = Callers(self)
        self.faults = Storm(self) if scenario.storm else Faults(self)
        self.receipts_chance = self.stream("receipts")
        self.keys = {
            work.service_id: Key("key", work.service_id, None, None, frozenset({"register"})) for work in self.works
        }

    def stream(self, name: str) -> Random:
        """Chance of its own for each part, so that one part's draws do not move another's."""
        digest = hashlib.sha256(f"{self.scenario.seed}/{name}".encode()).digest()
        return Random(int.from_bytes(digest[:8], "big"))

    # --- Running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Let it live from its first call until rest. Raises Violation.

        In a context of its own: what its calls add to log lines is theirs.
        """
        copy_context().run(self.live)

    def live(self) -> None:
        with going_by(self.scheduler), quiet(self.watch), collecting_seldom():
            for _ in range(self.scenario.dispatchers):
                self.start_process("dispatcher")
            for _ in range(self.scenario.engines):
                self.start_process("engine")
            self.callers.begin()
            self.faults.begin()
            end_s = self.scenario.lasts_s
            self.scheduler.at(end_s, self.watch.recovered)
            try:
                self.scheduler.run(self.is_over)
                self.watch.at_rest()
                self.watch.amplified()
                gc.collect()  # tasks that failed unseen tell so
            finally:
                for process in self.processes:
                    process.loop.kill()
                self.scheduler.leave()
        if self.watch.violation is not None:
            raise self.watch.violation

    def is_over(self, next_s: float) -> bool:
        """The clock is about to move to `next_s`: whether a rule is broken, or everything has come to rest."""
        if self.watch.moved_on(next_s):
            return True
        if next_s < self.rests_s:
            return False
        ended = not self.database.tables.open and not self.callers.under_way and not self.callers.left
        if ended and self.rests_s > self.scenario.lasts_s + LOOK_S:
            return True
        self.rests_s = next_s + LOOK_S
        return next_s > self.scenario.lasts_s + REST_S

    def is_calm(self) -> bool:
        """Whether faults are over for long enough that calls should succeed."""
        return self.scheduler.now_s > self.scenario.faults_end_s + LONGEST_S + 10.0

    # --- Processes ---------------------------------------------------------------------------------------------------

    def start_process(self, role: str) -> Process:
        self.processes_started += 1
        process = Process(self, role, self.processes_started)
        self.watch.note(f"{process.name} starts as {process.parts.owner}")
        self.processes.append(process)
        return process

    def process_gone(self, process: Process) -> None:
        self.processes.remove(process)
        self.database.cut_off.discard(process.loop)

    def living(self, role: str | None = None) -> list[Process]:
        return [p for p in self.processes if p.is_alive and (role is None or p.role == role)]

    def some_dispatcher(self, chance: Random) -> Process | None:
        listening = [p for p in self.processes if p.accepts]
        return chance.choice(listening) if listening else None

    def can_work(self) -> bool:
        """Whether a worker probes nodes and sweeps."""
        return not self.database.is_away and any(p.loop.held is None for p in self.living("engine"))

    # --- What comes in from outside ----------------------------------------------------------------------------------

    def take_receipt(self, node: SimulatedNode, envelope: Envelope, posted: PostedReceipt, answered) -> None:
        """A node posts a receipt to one of the dispatchers; `answered` hears whether it need not try again."""
        process = some = self.some_dispatcher(self.receipts_chance)
        if process is None or (self.network.parted and (process.loop, node.key) in self.network.parted):
            self.scheduler.after(0.01, answered, False)
            return
        assert some is not None
        key = self.keys[node.work.service_id]
        self.scheduler.after(
            self.network.way_s(), lambda: some.loop.call_soon(self.deliver, some, envelope, posted, key, answered)
        )

    def deliver(self, process: Process, envelope: Envelope, posted: PostedReceipt, key: Key, answered) -> None:
        process.start(self.delivered(UUID(envelope.call_id), posted, key, process.parts, answered))

    async def delivered(self, call_id: UUID, posted: PostedReceipt, key: Key, parts: LiveParts, answered) -> None:
        is_taken = False
        try:
            await take_receipt(call_id, posted, key, parts)
            is_taken = True
        except (ReceiptRefused, CallNotFound, Forbidden):
            is_taken = True
        except Unavailable:
            pass
        finally:
            answered(is_taken)

    def cancel(self, call_id: UUID) -> None:
        """A caller's cancel, by a console that reaches the database or not."""
        if self.database.is_away or self.database.is_hung:
            return
        error = json_of(Ending("cancelled", "cancelled by a caller").document()).decode()
        self.database.serving = self.scheduler.world
        rows = self.database.run(CANCEL, {"id": call_id, "at": None, "error": error})
        self.watch.note(f"cancelled: {bool(rows)}", str(call_id))
        self.database.notify()


# --- What it is made of ----------------------------------------------------------------------------------------------


def make_nodes(world: World) -> tuple[list[Work], list[SimulatedNode]]:
    """Services that answer in different ways, some of them sharing a capability, and their nodes."""
    scenario, chance = world.scenario, world.stream("services")
    anything, declared = compile_schema(None), compile_schema(OUTPUT)
    works: list[Work] = []
    kinds = [
        ("plain", Style.ANSWER, 0.08, False),
        ("safe", Style.ANSWER, 0.05, True),
        ("long", Style.ACKNOWLEDGE, 4.0, chance.random() < 0.5),
        ("lines", Style.STREAM, 2.0, chance.random() < 0.5),
    ]
    for number in range(scenario.services):
        name, style, work_s, idempotent = kinds[number % len(kinds)]
        capability = name if number < 8 else f"{name}-{number // 8}"
        works.append(Work(f"{name}-{number}", capability, style, work_s, idempotent))
    nodes = []
    for work in works:
        for index in range(1, scenario.nodes_each + 1):
            offer = Offer(work.capability, anything, declared, idempotent=work.idempotent)
            row = Node(
                work.service_id,
                f"n{index}",
                f"http://{work.service_id}-n{index}.test",
                invoke_url=f"http://{work.service_id}-n{index}.test/reach/invoke",
                max_concurrency=None if chance.random() < 0.7 else 64,
                offers={work.capability: offer},
            )
            nodes.append(SimulatedNode(world, work, row, world.stream(f"node {work.service_id} {index}")))
    return works, nodes


def routes(world: World) -> RouteTable:
    """In half of the worlds routes with strategies and fallback rules of their own, in the others none."""
    chance = world.stream("routes")
    if chance.random() < 0.5:
        return EMPTY_TABLE
    capabilities = sorted({work.capability for work in world.works})
    written = []
    for capability in capabilities:
        services = sorted(work.service_id for work in world.works if work.capability == capability)
        strategy = chance.choice(
            [
                {"type": "weighted_random", "weights": {service: chance.randint(1, 100) for service in services}},
                {"type": "latency_aware"},
                {"type": "least_loaded"},
                {"type": "cost_aware"},
            ]
        )
        rules = [
            {"condition": "no_available_node", "action": "retry", "wait_before_retry_ms": 300},
            {"condition": "error", "action": "next_route"},
            {"condition": "circuit_open", "action": "return_503", "wait_before_retry_ms": 700},
        ]
        written.append(
            {
                "id": f"{capability}_route",
                "match": {"capability": capability},
                "strategy": strategy,
                "priority": 10,
                "fallback_rules": [rule for rule in rules if chance.random() < 0.5],
            }
        )
        written.append(
            {
                "id": f"{capability}_spare",
                "match": {"capability": capability},
                "strategy": {"type": "least_loaded"},
                "priority": 1,
            }
        )
    parsed, _rules = parse_document({"routes": written}, max_routes=10_000)
    return build_table(1, parsed, {capability: "" for capability in capabilities})


@contextmanager
def going_by(scheduler: Scheduler) -> Iterator[None]:
    """Everything that reads the reach's clock reads the running process's, by the world's time."""

    def monotonic() -> float:
        return ROUNDS_MONOTONIC_S + scheduler.now_s + scheduler.running.clock_off_s

    with clock.going_by(monotonic, epoch_of_monotonic_s=EPOCH_S - ROUNDS_MONOTONIC_S):
        yield


class Mistakes(logging.Handler):
    """What the production code logs as its own mistake breaks a rule; warnings of bad days are expected."""

    def __init__(self, watch: Watch):
        super().__init__(logging.ERROR)
        self.watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        told = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            told += f" ({record.exc_info[1]!r})"
        self.watch.broken("nothing fails unseen", told)


@contextmanager
def quiet(watch: Watch) -> Iterator[None]:
    root, mistakes = logging.getLogger(), Mistakes(watch)
    before, handlers = logging.root.manager.disable, root.handlers
    logging.disable(logging.WARNING)
    root.handlers = [mistakes]
    try:
        yield
    finally:
        root.handlers = handlers
        logging.disable(before)


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """What lives on is most of what there is: looking through it at every turn would take a tenth of the time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


__all__ = ["Scenario", "Violation", "World"]
