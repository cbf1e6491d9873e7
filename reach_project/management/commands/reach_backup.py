from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.defaultfilters import filesizeformat

from reach_project import backup


class Command(BaseCommand):
    help = "Write one consistent moment of the database to FILE, while everything runs. docs/operations.md says more."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE", help="must not exist yet; is readable by its owner only")

    def handle(self, *args: Any, file: Path, **options: Any) -> None:
        try:
            done = backup.back_up(file)
        except backup.BackupError as exc:
            raise CommandError(str(exc)) from exc
        size = filesizeformat(done.size_bytes).replace("\xa0", " ")
        self.stdout.write(f"Backed up to {file} ({size}), readable by its owner only.")
        if done.needs_secret_key:
            self.stdout.write(
                "SECRET_KEY is not in it; without it the signing secrets cannot be read: keep it elsewhere."
            )
        else:
            self.stdout.write("The key to the signing secrets is in it: keep it as secret as the database.")
        if done.only_newer_servers:
            self.stdout.write(
                f"Made by a newer pg_dump: it restores into PostgreSQL {done.only_newer_servers} or newer."
            )
