"""One large outage, and what it looks like from second to second; drawn as a chart.

Half of all nodes fail at once, each in one of the ways that invite retries, while the database fails over, Redis is
gone and a tenth of the dispatchers die. Then all is mended, and calls go on.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.nodes import Mode

if TYPE_CHECKING:
    from tests.simulation.world import World

BEGINS, ENDS = 0.25, 0.5
"""Of the time in which callers ask."""
INVITING = (Mode.FAILS, Mode.REFUSES, Mode.RESETS, Mode.GATEWAY, Mode.BUSY)
SHARE_OF_NODES, SHARE_OF_DISPATCHERS = 1 / 2, 1 / 10


@dataclass(slots=True)
class Second:
    """What happened in one second."""

    at_s: float
    accepted: int = 0
    sent: int = 0
    retries: int = 0
    succeeded: int = 0
    failed: int = 0
    refused: int = 0
    """Told at once that nobody can take it: breakers are open, nobody is ready."""
    shut: int = 0
    """Breakers that were not closed, in all processes together."""
    taken_over: int = 0


class Storm:
    """In the place of `Faults`."""

    def __init__(self, world: "World"):
        self.world, self.scheduler = world, world.scheduler
        self.chance = world.stream("storm")
        lasts_s = world.scenario.lasts_s
        self.begins_s, self.ends_s = BEGINS * lasts_s, BEGINS * lasts_s + (ENDS - BEGINS) * lasts_s
        self.seconds: list[Second] = []
        self.sums = Second(0.0)

    def begin(self) -> None:
        self.scheduler.at(self.begins_s, self.break_out)
        self.scheduler.at(self.ends_s, self.be_over)
        self.scheduler.after(1.0, self.look)

    def break_out(self) -> None:
        world = self.world
        for node in self.chance.sample(world.nodes, int(len(world.nodes) * SHARE_OF_NODES)):
            node.mode = self.chance.choice(INVITING)
        world.database.break_some()
        world.redis.leave()
        dispatchers = world.living("dispatcher")
        for process in self.chance.sample(dispatchers, int(len(dispatchers) * SHARE_OF_DISPATCHERS)):
            process.kill()
            world.start_process("dispatcher")
        world.watch.hindered_s = self.scheduler.now_s

    def be_over(self) -> None:
        for node in self.world.nodes:
            node.mode = Mode.GOOD
        self.world.redis.come_back()

    def look(self) -> None:
        """Once a second: what has happened since."""
        world, watch = self.world, self.world.watch
        endings = watch.endings
        sums = Second(
            self.scheduler.now_s,
            accepted=watch.counts["accepted"],
            sent=watch.counts["sent"],
            retries=watch.counts["retries"],
            succeeded=endings["succeeded"],
            failed=endings["failed"] + endings["timed_out"],
            refused=endings["rejected"],
            shut=sum(len(process.parts.load.opened) for process in world.living()),
            taken_over=watch.counts["taken over"],
        )
        before = self.sums
        self.seconds.append(
            Second(
                sums.at_s,
                sums.accepted - before.accepted,
                sums.sent - before.sent,
                sums.retries - before.retries,
                sums.succeeded - before.succeeded,
                sums.failed - before.failed,
                sums.refused - before.refused,
                sums.shut,
                sums.taken_over - before.taken_over,
            )
        )
        self.sums = sums
        if self.scheduler.now_s < world.scenario.lasts_s:
            self.scheduler.after(1.0, self.look)


# --- The chart -------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, GAP = 960, 250, 70, 56, 46
Line = tuple[str, str, str]
PANELS: tuple[tuple[str, tuple[Line, ...]], ...] = (
    (
        "a second",
        (
            ("accepted", "#4c6ef5", "calls accepted"),
            ("sent", "#f08c00", "attempts sent"),
            ("succeeded", "#2f9e44", "calls succeeded"),
            ("refused", "#868e96", "refused at once (breakers open, nobody ready)"),
        ),
    ),
    (
        "a second",
        (("retries", "#e8590c", "retries"), ("failed", "#c92a2a", "calls failed or timed out"),
         ("taken_over", "#7048e8", "calls taken over")),
    ),
    ("at that moment", (("shut", "#1c7ed6", "breakers not closed, of all processes together"),)),
)  # fmt: skip


def chart(storm: Storm) -> str:
    """The storm as SVG: panels below each other over one time axis."""
    scenario = storm.world.scenario
    seconds, lasts_s = storm.seconds, scenario.lasts_s
    title = (
        f"{len(storm.world.nodes):,} nodes, {scenario.dispatchers} dispatchers, {scenario.engines} engines,"
        f" {scenario.calls:,} calls: half of the nodes fail from {storm.begins_s:.0f} s to {storm.ends_s:.0f} s"
    )
    height = TOP + len(PANELS) * (HEIGHT + GAP) + 20
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{title}</text>',
    ]

    def x_of(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * at_s / lasts_s

    for number, (unit, lines) in enumerate(PANELS):
        top = TOP + number * (HEIGHT + GAP)
        most = max(1, *(getattr(second, name) for second in seconds for name, _colour, _said in lines))
        left, right = x_of(storm.begins_s), x_of(storm.ends_s)
        drawn.append(f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{HEIGHT}" fill="#fff0f0"/>')
        for part in range(5):
            y = top + HEIGHT - HEIGHT * part / 4
            drawn.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" stroke="#e9ecef"/>')
            drawn.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{most * part / 4:,.0f}</text>')
        for index, (name, colour, said) in enumerate(lines):
            points = " ".join(
                f"{x_of(second.at_s):.1f},{top + HEIGHT - HEIGHT * getattr(second, name) / most:.1f}"
                for second in seconds
            )
            drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
            place = LEFT + index * 215
            drawn.append(f'<rect x="{place}" y="{top - 20}" width="12" height="12" fill="{colour}"/>')
            drawn.append(f'<text x="{place + 17}" y="{top - 10}">{said}</text>')
        drawn.append(f'<text x="14" y="{top - 10}" fill="#495057">{unit}</text>')
        for part in range(11):
            at_s = lasts_s * part / 10
            drawn.append(f'<text x="{x_of(at_s):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{at_s:.0f} s</text>')
    return "\n".join([*drawn, "</svg>", ""])
