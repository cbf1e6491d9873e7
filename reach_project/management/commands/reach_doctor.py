import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, cast

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser, OutputWrapper
from django.db import connections
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from rich.console import Console
from rich.text import Text

from reach_project import doctor, embedded
from reach_project.doctor import installation
from reach_project.doctor.findings import Finding, Level, as_json, error, examined

MARKS = {Level.OK: ("✓", "green"), Level.WARNING: ("!", "yellow"), Level.ERROR: ("✗", "bold red")}


class Command(BaseCommand):
    help = (
        "Look at everything Agent-Reach depends on and say how to mend what is wrong."
        " Ends with 0 when nothing is wrong; warnings count with --strict only."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="the findings as JSON")
        parser.add_argument("--strict", action="store_true", help="end with 1 for warnings, too")
        parser.add_argument("--language", choices=[code for code, _name in settings.LANGUAGES], default="en")

    def handle(self, *args: Any, json: bool, strict: bool, language: str, **options: Any) -> None:
        with translation.override(language):
            found = examination()
            show = show_json if json else show_list
            show(found, self.stdout)
        bad = doctor.worst(found)
        if bad is Level.ERROR or (strict and bad is Level.WARNING):
            sys.exit(1)


def examination() -> list[Finding]:
    """All findings; an embedded database that is not up is started for as long as the look takes."""
    before = examined((installation.embedded_state,))
    if any(finding.level is Level.ERROR for finding in before):
        return before + examined(installation.WITHOUT_A_DATABASE)
    try:
        with embedded_up():
            return before + doctor.examine()
    except embedded.EmbeddedError as exc:
        fix = _("The end of postgres.log in REACH_HOME says more.")
        broken = error("database", _("The embedded PostgreSQL does not start: %(reason)s") % {"reason": exc}, fix)
        return [broken, *examined(installation.WITHOUT_A_DATABASE)]


@contextmanager
def embedded_up() -> Iterator[None]:
    if settings.DATABASE_URL:
        yield
        return
    with embedded.running(settings.REACH_HOME):
        try:
            yield
        finally:
            connections.close_all()


def show_json(found: Sequence[Finding], out: OutputWrapper) -> None:
    out.write(json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n")


def show_list(found: Sequence[Finding], out: OutputWrapper) -> None:
    """A line a finding, the mending below it; the worst last, where a terminal shows it."""
    console = Console(file=cast(IO[str], out), highlight=False, emoji=False)
    in_a_pipe = not console.is_terminal  # whoever reads a pipe wants whole lines
    for finding in sorted(found, key=lambda finding: list(Level).index(finding.level)):
        mark, style = MARKS[finding.level]
        console.print(Text.assemble((mark, style), " ", finding.sentence), soft_wrap=in_a_pipe)
        if finding.fix:
            console.print(Text.assemble("  ", (f"→ {finding.fix}", "cyan")), soft_wrap=in_a_pipe)
    console.print(Text(summary(found), style="bold"), soft_wrap=in_a_pipe)


def summary(found: Sequence[Finding]) -> str:
    errors = sum(finding.level is Level.ERROR for finding in found)
    warnings = sum(finding.level is Level.WARNING for finding in found)
    if not errors and not warnings:
        return ngettext("%(n)s check, nothing wrong", "%(n)s checks, nothing wrong", len(found)) % {"n": len(found)}
    wrong = ngettext("%(n)s thing is wrong", "%(n)s things are wrong", errors) % {"n": errors}
    doubtful = ngettext("%(n)s warning", "%(n)s warnings", warnings) % {"n": warnings}
    return _("%(wrong)s, %(warnings)s") % {"wrong": wrong, "warnings": doubtful}
