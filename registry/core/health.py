"""What a probe's answers say about a node, and what that makes of its health."""

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


@dataclass(frozen=True, slots=True)
class Standing:
    """A node's health with its reason, and how many probes in a row have failed."""

    health: Health
    reason: str
    failures: int = 0

    @property
    def doubted(self) -> bool:
        """Out, or not sure: looked at again soon."""
        return self.health is not Health.READY or self.failures > 0


def trouble_of(live: Reply, ready: Reply | None) -> str:
    """Why one probe does not prove the node fit; "" when it does. `ready` is None when the node declares no readiness.

    Readiness alone decides where it is declared; liveness tells a stalled node from a dead one.
    """
    if ready is None:
        return "" if live.ok else sentence(live)
    if ready.ok and ready.ready:
        return ""
    if ready.heard is Heard.SILENCE and live.ok:
        return "lives, but readiness hangs"
    return sentence(ready)


def sentence(reply: Reply) -> str:
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


def standing_after(standing: Standing, trouble: str, *, failures_out: int) -> Standing:
    """A node's standing after one more probe.

    One success makes any node ready. A ready node goes out with the `failures_out`-th failure in a row; one that is
    suspect, or was never proven, has no such credit.
    """
    if not trouble:
        return Standing(Health.READY, "")
    failures = standing.failures + 1
    if standing.health is Health.READY and failures < failures_out:
        return Standing(Health.READY, "", failures)
    return Standing(Health.NOT_READY, trouble, failures)


def next_probe_s(standing: Standing, *, interval_s: float, out_interval_s: float, chance: float) -> float:
    """Seconds until a node is probed again: the interval, or soon where it is doubted.

    Up to a fifth earlier by `chance` (uniform in [0, 1)), so that nodes that began together do not stay together.
    """
    return (out_interval_s if standing.doubted else interval_s) * (1 - chance / 5)
