from collections import Counter
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Live bad days, drawn from a seed, in simulated time, and check every rule. docs/simulation.md says more."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seed", type=int, default=1, help="of the first world; the same seed lives the same life")
        parser.add_argument("--seeds", type=int, default=1, help="so many worlds, each with the next seed")
        parser.add_argument("--processes", type=int, default=1, help="of this machine to live them on")
        parser.add_argument(
            "--kept", type=Path, metavar="FILE", help="figures of each seed; a second run goes on there"
        )
        parser.add_argument("--report", type=Path, metavar="FILE", help="write what came of it all, as Markdown")
        parser.add_argument(
            "--chart", type=Path, metavar="FILE", help="draw the first world's storm (--storm 1) as SVG"
        )
        parser.add_argument("--history", action="store_true", help="print all that happens in the first world")
        for field in fields(simulator().Scenario):
            if field.name != "seed":
                parser.add_argument(
                    f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default
                )

    def handle(self, *args: Any, **options: Any) -> None:
        runs = simulator()
        given = {field.name: options[field.name] for field in fields(runs.Scenario)}
        first = runs.Scenario(**given)
        if options["history"]:
            for line in runs.history(first):
                self.stdout.write(line)
            return
        if options["chart"] is not None:
            self.tell(one := runs.result_of(first, drawn=options["chart"]))
            if one["failed"] is not None:
                raise CommandError("the world broke a rule")
            return
        scenarios = [replace(first, seed=first.seed + more) for more in range(options["seeds"])]
        results, failed = [], 0
        for one in runs.run_many(scenarios, processes=options["processes"], kept=options["kept"]):
            results.append(one)
            failed += one["failed"] is not None
            self.tell(one)
        if options["report"] is not None:
            options["report"].write_text(runs.report(sorted(results, key=lambda one: one["scenario"]["seed"])) + "\n")
        if failed:
            raise CommandError(f"{failed} of {len(results)} worlds broke a rule")

    def tell(self, one: dict[str, Any]) -> None:
        """What came of one world."""
        counts, seed = Counter(one["counts"]), one["scenario"]["seed"]
        verdict = "every rule held" if one["failed"] is None else one["failed"]
        self.stdout.write(
            f"seed {seed}: {counts['accepted']} calls, {counts['sent']} attempts, {one['simulated_s']:.0f} s"
            f" simulated in {one['cpu_s']:.1f} s: {verdict}"
        )


def simulator() -> Any:
    """The simulator, which stands with the tests. Raises CommandError where they are not installed."""
    try:
        return import_module("tests.simulation.runs")
    except ImportError as exc:
        raise CommandError("the simulator is part of a checkout: tests/simulation/ is not here") from exc
