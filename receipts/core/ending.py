"""How a call ended, in the words its caller, its row and its terminal receipt share."""

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Ending:
    """A call's end: a problem `code` of CONTRACT §2, or None for success. `retry_after_ms` is advice to the caller."""

    code: str | None
    detail: str = ""
    output: Any = None
    errors: tuple[dict[str, str], ...] = ()
    upstream: dict[str, Any] | None = None
    outcome_unknown: bool = False
    retry_after_ms: int | None = None

    def document(self) -> dict[str, Any]:
        """The call's `error`, as stored and shown; facts that do not apply are left out."""
        facts: dict[str, Any] = {"code": self.code, "detail": self.detail}
        if self.errors:
            facts["errors"] = list(self.errors)
        if self.upstream is not None:
            facts["upstream"] = self.upstream
        if self.outcome_unknown:
            facts["outcome_unknown"] = True
        if self.retry_after_ms is not None:
            facts["retry_after_ms"] = self.retry_after_ms
        return facts


def ending_of(error: str | None, output: str | None) -> Ending:
    """The Ending that a stored call row tells of."""
    if error is None:
        return Ending(None, output=msgspec.json.decode(output) if output is not None else None)
    facts = msgspec.json.decode(error)
    return Ending(
        facts["code"],
        facts.get("detail", ""),
        errors=tuple(facts.get("errors", ())),
        upstream=facts.get("upstream"),
        outcome_unknown=facts.get("outcome_unknown", False),
        retry_after_ms=facts.get("retry_after_ms"),
    )
