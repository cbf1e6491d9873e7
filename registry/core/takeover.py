"""What becomes of calls when nodes go in or out of the pool: who stands ready for each capability then. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """A node that declares a capability, as far as this question goes."""

    name: str
    capability: str
    is_ready: bool


@dataclass(frozen=True, slots=True)
class After:
    """One capability of the chosen nodes, and who is ready for it before and after."""

    capability: str
    before: int
    left: tuple[str, ...]

    @property
    def is_lost(self) -> bool:
        """Calls would find nobody who now do."""
        return self.before > 0 and not self.left


def without(chosen: Collection[str], providers: Iterable[Provider]) -> list[After]:
    """Who is left for each capability of the chosen nodes once these take no calls: what is lost comes first."""
    by_capability = grouped(chosen, providers)
    found = []
    for capability, offering in by_capability.items():
        ready = sorted(provider.name for provider in offering if provider.is_ready)
        found.append(After(capability, len(ready), tuple(name for name in ready if name not in chosen)))
    return sorted(found, key=lambda after: (not after.is_lost, len(after.left), after.capability))


def joined_by(chosen: Collection[str], providers: Iterable[Provider]) -> list[After]:
    """With whom the chosen nodes share the calls of each of their capabilities once they take some."""
    found = []
    for capability, offering in grouped(chosen, providers).items():
        ready = sorted(provider.name for provider in offering if provider.is_ready and provider.name not in chosen)
        found.append(After(capability, len(ready), tuple(ready)))
    return sorted(found, key=lambda after: (len(after.left), after.capability))


def grouped(chosen: Collection[str], providers: Iterable[Provider]) -> Mapping[str, list[Provider]]:
    """The providers of each capability that a chosen node has."""
    found: dict[str, list[Provider]] = {}
    for provider in providers:
        found.setdefault(provider.capability, []).append(provider)
    return {
        capability: offering
        for capability, offering in found.items()
        if any(provider.name in chosen for provider in offering)
    }
