"""What a check finds: how bad it is, one sentence, and how to mend it; in the reader's language."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

NAMED_AT_MOST = 5


class Level(StrEnum):
    """In order of weight."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    sentence: str
    fix: str = ""


Findings = Iterable[Finding]


def ok(check: str, sentence: str) -> Finding:
    return Finding(check, Level.OK, sentence)


def warning(check: str, sentence: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, sentence, fix)


def error(check: str, sentence: str, fix: str) -> Finding:
    return Finding(check, Level.ERROR, sentence, fix)


def examined(checks: Sequence[Callable[..., Findings]], *facts: Any) -> list[Finding]:
    """Run each check; one that breaks is itself a finding, and ends no other."""
    found: list[Finding] = []
    for check in checks:
        try:
            found += check(*facts)
        except Exception as exc:  # the doctor is called when anything may be broken
            name = check.__name__.replace("_", " ")
            reason = " ".join(str(exc).split())[:300] or type(exc).__name__
            found.append(
                warning(
                    name,
                    _("This could not be looked at: %(reason)s") % {"reason": reason},
                    _("Mend what else is wrong first; if this stays, it is a mistake of Agent-Reach: report it."),
                )
            )
    return found


def worst(findings: Sequence[Finding]) -> Level:
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


def named(names: Sequence[str]) -> str:
    """The first few of many names."""
    shown = ", ".join(names[:NAMED_AT_MOST])
    left = len(names) - NAMED_AT_MOST
    if left <= 0:
        return shown
    return ngettext("%(names)s and %(n)s more", "%(names)s and %(n)s more", left) % {"names": shown, "n": left}


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    return {"status": worst(findings).value, "findings": [asdict(finding) for finding in findings]}
