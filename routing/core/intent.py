"""Which capability a free text asks for. Decided once, when the call is accepted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rapidfuzz import process

from receipts.core.envelope import CallEnvelope
from routing.core.tables import Tables

CONSIDERED = 32
"""So many of the best are held against the payload."""
SHOWN = 5
NEAREST = 3
SAME_NAME = 70.0
"""Percent of likeness from which a name may be a misspelling of another."""

TOO_LOW = "its score is too low"
REFUSES = "its input schemas refuse the payload"


@dataclass(frozen=True, slots=True)
class Reading:
    """How an intent was read: the capability, if there is one, and the best scores (0 to 1), best first."""

    capability: str | None
    scores: tuple[tuple[str, float, str], ...]
    """Capability, score, and why it was not it (empty for the one chosen and for those it was preferred to)."""

    def document(self, intent: str) -> dict[str, Any]:
        """The reading as `routed` shows it."""
        scores = [
            {"capability": name, "score": round(score, 4), **({"reason": why} if why else {})}
            for name, score, why in self.scores
        ]
        return {"text": intent, "capability": self.capability, "scores": scores}


def read_intent(envelope: CallEnvelope, tables: Tables, *, min_score: float) -> Reading:
    """The capability whose words answer the text best, at `min_score` or more, and that takes the payload somewhere.

    Among equals the one with the narrower schema, then the first by name.
    """
    assert envelope.intent is not None
    scores = tables.vocabulary.scores(envelope.intent)
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:CONSIDERED]
    fits: dict[str, int] = {}
    told: list[tuple[str, float, str]] = []
    for name, score in ranked:
        narrowness = narrowest_fit(envelope, name, tables) if score >= min_score else None
        if narrowness is not None:
            fits[name] = narrowness
        told.append((name, score, "" if narrowness is not None else REFUSES if score >= min_score else TOO_LOW))
    chosen = min(fits, key=lambda name: (-scores[name], -fits[name], name), default=None)
    return Reading(chosen, tuple(told[:SHOWN]))


def narrowest_fit(envelope: CallEnvelope, capability: str, tables: Tables) -> int | None:
    """How much the narrowest schema demands that takes the payload from this caller; None: none does."""
    return max(
        (
            group.candidates[0].offer.narrowness
            for group in tables.pool(capability, None, frozenset()).groups
            if group.admits(envelope.caller) and group.schema.accepts(envelope.payload)
        ),
        default=None,
    )


def unread_sentence(reading: Mapping[str, Any], known: Iterable[str], *, min_score: float) -> str:
    """Why no capability was found for an intent, and which are the nearest."""
    near = reading["scores"][:NEAREST]
    named = {one["capability"] for one in near}
    spelled = process.extract(reading["text"], [name for name in known if name not in named], limit=NEAREST - len(near))
    shown = [
        f"{one['capability']} ({one['score']:.2f}{', ' + REFUSES if one.get('reason') == REFUSES else ''})"
        for one in near
    ]
    shown += [f"{name} (0.00)" for name, _percent, _at in spelled]
    why = f"no capability answers the intent (score at least {min_score:g}) and takes the payload"
    return f"{why}; the nearest are {', '.join(shown)}" if shown else f"{why}: none is known"


def unknown_sentence(capability: str, known: Iterable[str]) -> str:
    """That nobody has ever declared this name, and which names are nearest."""
    near = process.extract(capability, list(known), limit=NEAREST, score_cutoff=SAME_NAME)
    sentence = f"no agent has ever declared {capability}"
    return f"{sentence}; did you mean {' or '.join(name for name, _percent, _at in near)}?" if near else sentence
