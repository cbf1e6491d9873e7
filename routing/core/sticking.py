"""What is stable by a key of the call: the same key meets the same node, and the same keys meet the canary.

Every process comes to the same answer, since nothing but the key and the names of nodes goes into the hash.
"""

import hashlib
from dataclasses import dataclass
from uuid import UUID

import msgspec

from receipts.core.envelope import digest_of
from receipts.core.journey import Journey
from routing.core.conditions import MISSING, Source, value_at

MAX_KEY = 256


@dataclass(frozen=True, slots=True)
class CallKey:
    """A place of the call whose value decides: `path` within `source` (empty for caller, session_id and trace_id)."""

    source: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join((self.source, *self.path))

    def of(self, journey: Journey) -> str | None:
        """The value as JSON, so that 5 and "5" differ, a long one by its digest; None where there is none (or null)."""
        match self.source:
            case "session_id":
                value = journey.envelope.session_id
            case "trace_id":
                value = journey.trace_id
            case _:
                value = value_at(journey.envelope, Source(self.source), self.path)
        if value is MISSING or value is None:
            return None
        text = msgspec.json.encode(value, order="deterministic").decode()
        return text if len(text) <= MAX_KEY else digest_of(value)


@dataclass(frozen=True, slots=True)
class Canary:
    """A stable share of a route's calls that goes to one service: `percent` (0 to 100) of the keys."""

    service: str
    percent: float
    sticky_by: CallKey

    def takes(self, route_id: str, key: str) -> bool:
        """Whether calls with this key are the canary's. Raising the percentage keeps those it has already."""
        return draw_of("canary", route_id, key) * 100 < self.percent


@dataclass(frozen=True, slots=True)
class Mirror:
    """A stable share of a route's calls that is copied to one service: `percent` (0 to 100) of their ids."""

    service: str
    percent: float

    def takes(self, route_id: str, call_id: UUID) -> bool:
        """Whether this call is copied."""
        return draw_of("mirror", route_id, str(call_id)) * 100 < self.percent


def draw_of(*parts: str) -> float:
    """A number uniform in (0, 1) that depends on nothing but these texts."""
    digest = hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64
