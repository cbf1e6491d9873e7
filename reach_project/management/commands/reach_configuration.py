import re
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from reach_project import settings as settings_file
from reach_project.settings import CONFIGURATION, Limit

HEAD = """# Configuration

Everything is set by environment variables, read once at start. This page is written by `manage.py reach_configuration`
from `reach_project/settings.py`: change the text there.
"""
HEADING = re.compile(r"^# --- (.+?) -+$", re.MULTILINE)


def headings(source: str, names: list[str]) -> dict[str, str]:
    """The heading of the settings file that each name stands under."""
    starts = [(found.start(), found[1]) for found in HEADING.finditer(source)]
    return {name: [title for at, title in starts if at < source.index(f'"{name}"')][-1] for name in names}


def row(entry: Limit) -> str:
    default = str(entry.default).lower() if isinstance(entry.default, bool) else str(entry.default)
    unit = entry.unit.replace("|", ", ")
    return f"| `{entry.name}` | {f'`{default}`' if default else 'empty'} | {unit} | {entry.reason} |"


def page(configuration: list[Limit], source: str) -> str:
    """The text of docs/configuration.md."""
    heading_of = headings(source, [entry.name for entry in configuration])
    lines = [HEAD]
    for heading in dict.fromkeys(heading_of.values()):
        lines += [f"## {heading}", "", "| name | default | unit | why |", "|---|---|---|---|"]
        lines += [row(entry) for entry in configuration if heading_of[entry.name] == heading]
        lines += [""]
    return "\n".join(lines)


class Command(BaseCommand):
    help = "Write docs/configuration.md from the settings."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is stale")

    def handle(self, *args: object, check: bool, **options: object) -> None:
        path = settings.BASE_DIR / "docs" / "configuration.md"
        wanted = page(CONFIGURATION, Path(settings_file.__file__).read_text())
        if not check:
            path.write_text(wanted)
        elif not path.exists() or path.read_text() != wanted:
            raise CommandError(f"{path} is stale: run `manage.py reach_configuration`")
