"""Bad days: which fault begins when, upon whom, and for how long. All are over at `Scenario.faults_end_s`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.nodes import Mode, SimulatedNode

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

Undo = Callable[[], None]
WRONG = tuple(mode for mode in Mode if mode is not Mode.GOOD)


class Faults:
    def __init__(self, world: "World"):
        self.world, self.scheduler = world, world.scheduler
        self.chance = world.stream("faults")
        self.kinds: dict[Callable[[], Undo | None], int] = {
            self.node_goes_wrong: 30,
            self.service_goes_wrong: 10,
            self.node_restarts: 12,
            self.node_is_parted: 6,
            self.process_is_killed: 12,
            self.process_is_paused: 8,
            self.process_is_replaced: 5,
            self.database_leaves: 5,
            self.database_hangs: 3,
            self.database_is_slow: 5,
            self.sessions_break: 6,
            self.process_loses_database: 5,
            self.redis_leaves: 4,
            self.redis_is_late: 3,
        }

    def begin(self) -> None:
        if self.world.scenario.faults_per_min:
            self.scheduler.after(2.0, self.next)

    def next(self) -> None:
        """One fault now, and the next after a while."""
        scenario = self.world.scenario
        left_s = scenario.faults_end_s - self.scheduler.now_s
        if left_s <= 1.0:
            return
        kind = self.chance.choices(list(self.kinds), weights=list(self.kinds.values()))[0]
        lasts_s = min(self.chance.expovariate(1 / 5.0) + 0.2, left_s)
        if kind in (self.database_leaves, self.database_hangs):
            lasts_s = min(lasts_s, 12.0)  # calls are what is to be tried, not their refusal
        if (undo := kind()) is not None:
            self.world.watch.counts[f"fault: {kind.__name__}"] += 1
            self.scheduler.after(lasts_s, undo)
        self.scheduler.after(self.chance.expovariate(scenario.faults_per_min / 60), self.next)

    def note(self, what: str) -> None:
        self.world.watch.note(what)

    def hindered(self) -> None:
        """Until now something stood in the way of every call's end."""
        self.world.watch.hindered_s = self.scheduler.now_s

    # --- Nodes -------------------------------------------------------------------------------------------------------

    def some_node(self) -> SimulatedNode:
        return self.chance.choice(self.world.nodes)

    def node_goes_wrong(self) -> Undo:
        node, mode = self.some_node(), self.chance.choice(WRONG)
        return self.wrong([node], mode)

    def service_goes_wrong(self) -> Undo:
        """All of a service's nodes, as after a bad release or with a dependency gone."""
        service_id = self.chance.choice(self.world.works).service_id
        return self.wrong([node for node in self.world.nodes if node.key[0] == service_id], self.chance.choice(WRONG))

    def wrong(self, nodes: list[SimulatedNode], mode: Mode) -> Undo:
        for node in nodes:
            node.mode = mode
        self.note(f"{', '.join('/'.join(node.key) for node in nodes)}: {mode}")

        def undo() -> None:
            for node in nodes:
                node.mode = Mode.GOOD
            self.note(f"{', '.join('/'.join(node.key) for node in nodes)}: good again")

        return undo

    def node_restarts(self) -> Undo | None:
        node = self.some_node()
        if not node.is_up:
            return None
        node.stop()
        self.world.registry.node_stopped(node.key)
        self.note(f"{'/'.join(node.key)} stops")

        def undo() -> None:
            node.start()
            self.world.registry.node_started(node.key)
            self.note(f"{'/'.join(node.key)} starts")

        return undo

    def node_is_parted(self) -> Undo | None:
        """Packets between a dispatcher and a node vanish, while others reach it."""
        process = self.some_process()
        if process is None:
            return None
        pair = process.loop, self.some_node().key
        parted = self.world.network.parted
        parted.add(pair)
        self.note(f"{process.name} and {'/'.join(pair[1])} are parted")
        return lambda: parted.discard(pair)

    # --- Processes ---------------------------------------------------------------------------------------------------

    def some_process(self) -> "Process | None":
        living = [process for process in self.world.living() if process.loop.held is None]
        return self.chance.choice(living) if living else None

    def process_is_killed(self) -> Undo | None:
        if (process := self.some_process()) is None:
            return None
        process.kill()

        def undo() -> None:
            self.world.start_process(process.role)
            self.hindered()

        return undo

    def process_is_paused(self) -> Undo | None:
        if (process := self.some_process()) is None:
            return None
        process.pause()
        accepted, process.accepts = process.accepts, False

        def undo() -> None:
            if process.is_alive:
                process.resume()
                process.accepts = accepted
                self.hindered()

        return undo

    def process_is_replaced(self) -> Undo | None:
        """A rolling restart: the new one is there before the old one goes."""
        if (process := self.some_process()) is None or process.is_stopping:
            return None
        self.world.start_process(process.role)
        process.stop()
        return lambda: None

    # --- Database and Redis ------------------------------------------------------------------------------------------

    def disturb(self, *processes: "Process") -> None:
        """What these processes carry may end late."""
        for process in processes or self.world.living():
            process.undisturbed_since_s = max(process.undisturbed_since_s, self.scheduler.now_s + 1.0)

    def database_leaves(self) -> Undo | None:
        database = self.world.database
        if database.is_away or database.is_hung:
            return None
        self.note("the database is away")
        database.leave()
        self.disturb()

        def undo() -> None:
            self.note("the database is back")
            database.come_back()
            self.disturb()
            self.hindered()

        return undo

    def database_hangs(self) -> Undo | None:
        database = self.world.database
        if database.is_away or database.is_hung:
            return None
        self.note("the database hangs")
        database.hang()
        self.disturb()

        def undo() -> None:
            self.note("the database goes on")
            database.go_on()
            self.disturb()
            self.hindered()

        return undo

    def database_is_slow(self) -> Undo | None:
        database = self.world.database
        if database.slowness != 1.0:
            return None
        database.slowness = 10 + 190 * self.chance.random()
        self.note(f"the database is {database.slowness:.0f} times as slow")
        self.disturb()

        def undo() -> None:
            database.slowness = 1.0
            self.disturb()
            self.hindered()

        return undo

    def sessions_break(self) -> Undo:
        self.note("all sessions break")
        self.world.database.break_some()
        self.disturb()
        return lambda: None

    def process_loses_database(self) -> Undo | None:
        if (process := self.some_process()) is None or process.loop in self.world.database.cut_off:
            return None
        self.note(f"{process.name} does not reach the database")
        self.world.database.cut(process.loop)
        process.undisturbed_since_s = float("inf")

        def undo() -> None:
            self.world.database.mend(process.loop)
            if process.is_alive:
                process.undisturbed_since_s = self.scheduler.now_s + 1.0
                self.hindered()

        return undo

    def redis_leaves(self) -> Undo | None:
        if not self.world.has_redis or self.world.redis.is_away:
            return None
        self.note("Redis is away")
        self.world.redis.leave()
        return self.world.redis.come_back

    def redis_is_late(self) -> Undo | None:
        redis = self.world.redis
        if not self.world.has_redis:
            return None
        redis.slowness = 100 + 2000 * self.chance.random()

        def undo() -> None:
            redis.slowness = 1.0

        return undo
