from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from reach_project import backup


class Command(BaseCommand):
    help = "Bring a backup of reach_backup into an empty database, and check what came of it. Stop all processes first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--replace", action="store_true", help="give up what the database holds now")

    def handle(self, *args: Any, file: Path, replace: bool, **options: Any) -> None:
        try:
            done = backup.restore(file, replace=replace)
        except backup.BackupError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write("Restored " + ", ".join(f"{number:,} {name}" for name, number in done.counts.items()) + ".")
        if done.open_calls:
            self.stdout.write(
                f"{done.open_calls:,} calls were under way at the backup: they end as timed_out, none is run again."
            )
        if done.migrations_to_come:
            self.stdout.write(f"The next start applies {done.migrations_to_come} migrations.")
        if done.problems:
            raise CommandError("Restored, but: " + "; ".join(done.problems))
        self.stdout.write("Every signing secret can be read. Start the processes.")
