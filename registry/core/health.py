"""What a probe's answers say about a node."""

from dataclasses import dataclass
from enum import StrEnum

from registry.core.node import Health


class Heard(StrEnum):
    """How one request of a probe went on the wire."""

    ANSWER = "answer"
    REFUSED = "connection refused"
    UNREACHABLE = "unreachable"
    SILENCE = "silence"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Reply:
    """One request of a probe: an answer with its status, or the way in which none came."""

    heard: Heard
    status: int | None = None
    ready: bool | None = None
    """What a readiness answer says; None when it says nothing understandable."""
    reason: str = ""
    """The node's own words, or the network's."""

    @property
    def ok(self) -> bool:
        return self.heard is Heard.ANSWER and self.status == 200


def health_after(live: Reply, ready: Reply | None) -> tuple[Health, str]:
    """Health and its reason after one probe. `ready` is None when the node declares no such endpoint.

    One success proves a node ready, one failure proves the opposite. Readiness alone decides where it is declared;
    liveness tells a stalled node from a dead one.
    """
    if ready is None:
        return (Health.READY, "") if live.ok else (Health.NOT_READY, trouble(live))
    if ready.ok and ready.ready:
        return Health.READY, ""
    if ready.heard is Heard.SILENCE and live.ok:
        return Health.NOT_READY, "lives, but readiness hangs"
    return Health.NOT_READY, trouble(ready)


def trouble(reply: Reply) -> str:
    """The sentence for a reply that proves nothing good."""
    if reply.heard is Heard.SILENCE:
        return "connects, does not answer"
    if reply.heard is Heard.REFUSED:
        return "connection refused"
    if reply.heard is not Heard.ANSWER:
        return reply.reason or reply.heard.value
    if reply.ready is False:
        return f"says it is not ready: {reply.reason}" if reply.reason else "says it is not ready"
    if reply.status == 200:
        return 'answers 200 without {"ready": true}'
    return f"answers {reply.status}"
