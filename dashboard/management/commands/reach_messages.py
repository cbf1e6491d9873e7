"""The catalogue of every text that pages show: what is in the code, what is translated, and the compiled form.

Needs Babel (requirements-dev.txt) and no gettext programs. Unfold brings no Chinese: those of its texts that Django's
own catalogues do not have are in ours.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import django
import unfold
from babel.messages import extract
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation.template import templatize

OURS = ("registry", "receipts", "routing", "dashboard", "reach_project", "templates")
CATALOGUE = Path(settings.BASE_DIR, "locale", "zh_Hans", "LC_MESSAGES", "django.po")
DJANGO_CATALOGUES = ("contrib/admin", "contrib/auth", "contrib/contenttypes", "contrib/humanize", "conf")
KEYWORDS: dict[str, Any] = {
    **dict.fromkeys(("_", "gettext", "gettext_lazy", "gettext_noop", "trans"), None),
    **dict.fromkeys(("ngettext", "ngettext_lazy"), (1, 2)),
    **dict.fromkeys(("pgettext", "pgettext_lazy"), ((1, "c"), 2)),
    "npgettext": ((1, "c"), 2, 3),
}
HEADER = "# Simplified Chinese for Agent-Reach; `make messages` keeps it in step with the code."
DATE = datetime(2026, 1, 1, tzinfo=UTC)

Text = tuple[str | None, Any, str]
"""Context, message (a pair where there is a plural), and the file that has it."""


class Command(BaseCommand):
    help = (
        "Bring the translations up to the code and compile them. With --check: fail where that would change anything."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true")

    def handle(self, *args: object, **options: Any) -> None:
        catalogue = up_to_date()
        if options["check"]:
            if wrong := mistakes(catalogue):
                raise CommandError("run `make messages` and translate what it names:\n" + "\n".join(wrong))
            return
        CATALOGUE.parent.mkdir(parents=True, exist_ok=True)
        CATALOGUE.write_bytes(as_po(catalogue))
        CATALOGUE.with_suffix(".mo").write_bytes(as_mo(catalogue))
        missing = untranslated(catalogue)
        self.stdout.write(f"{len(catalogue)} texts, {len(missing)} to translate")
        for text in missing:
            self.stdout.write(f"  {text}")


def mistakes(catalogue: Catalog) -> list[str]:
    """What keeps the stored catalogue from being complete and fresh."""
    wrong = [f"not translated: {text}" for text in untranslated(catalogue)]
    if CATALOGUE.read_bytes() != as_po(catalogue):
        wrong.append(f"{CATALOGUE.name} is not what the code says")
    if CATALOGUE.with_suffix(".mo").read_bytes() != as_mo(catalogue):
        wrong.append(f"{CATALOGUE.stem}.mo is not what {CATALOGUE.name} says")
    return wrong


def untranslated(catalogue: Catalog) -> list[str]:
    return [one_of(m.id) for m in catalogue if m.id and (m.fuzzy or not is_said(m.string))]


def up_to_date() -> Catalog:
    """The stored catalogue with every text of today, and none of yesterday's."""
    stored = Catalog(locale="zh_Hans")
    if CATALOGUE.exists():
        with CATALOGUE.open("rb") as file:
            stored = read_po(file, locale="zh_Hans")
    fresh = Catalog(locale="zh_Hans", project="Agent-Reach", header_comment=HEADER, fuzzy=False)
    for context, message, place in texts():
        flags = ("python-format",) if "%(" in one_of(message) else ()
        fresh.add(message, context=context, locations=[(place, 0)], flags=flags)
    for message in list(fresh):
        known = stored.get(message.id, message.context) if message.id else None
        if known is not None and not known.fuzzy:
            message.string = known.string
    return fresh


def texts() -> Iterator[Text]:
    """Every text of ours, and of Unfold what Django has no translation for."""
    for folder in OURS:
        yield from texts_of(Path(settings.BASE_DIR, folder), settings.BASE_DIR)
    known = translated_by_django()
    package = Path(unfold.__file__).parent
    for part in ("", "templates", "contrib/filters"):
        for context, message, place in texts_of(package / part, package.parent, deep=bool(part)):
            if one_of(message) not in known:
                yield context, message, place


def texts_of(folder: Path, root: Path, *, deep: bool = True) -> Iterator[Text]:
    for path in sorted(folder.rglob("*") if deep else folder.glob("*")):
        if path.suffix not in (".py", ".html") or "migrations" in path.parts:
            continue
        source = path.read_text()
        if path.suffix == ".html":
            source = "\n".join(line.strip() for line in templatize(source).splitlines())
        found = extract.extract("python", BytesIO(source.encode()), keywords=KEYWORDS, options={"encoding": "utf-8"})
        for _line, message, _comments, context in found:
            yield context, message, path.relative_to(root).as_posix()


def translated_by_django() -> set[str]:
    """What Django itself says in Simplified Chinese."""
    found: set[str] = set()
    for app in DJANGO_CATALOGUES:
        path = Path(django.__file__).parent / app / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
        with path.open("rb") as file:
            found |= {one_of(m.id) for m in read_po(file, locale="zh_Hans") if m.id and is_said(m.string)}
    return found


def one_of(message: Any) -> str:
    """A message, or the singular of one with a plural."""
    return message if isinstance(message, str) else message[0]


def is_said(translation: Any) -> bool:
    return all((translation,) if isinstance(translation, str) else translation or ("",))


def as_po(catalogue: Catalog) -> bytes:
    """The catalogue as text, the same for the same texts: no dates, no line numbers."""
    file = BytesIO()
    write_po(file, catalogue, omit_header=True, sort_output=True, include_lineno=False, width=110)
    metadata = 'msgid ""\nmsgstr ""\n"Language: zh_Hans\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n'
    return f'{HEADER}\n{metadata}"Plural-Forms: nplurals=1; plural=0;\\n"\n\n'.encode() + file.getvalue()


def as_mo(catalogue: Catalog) -> bytes:
    """The compiled catalogue, with dates that do not move."""
    again = read_po(BytesIO(as_po(catalogue)), locale="zh_Hans")
    again.creation_date = again.revision_date = DATE
    file = BytesIO()
    write_mo(file, again)
    return file.getvalue()
