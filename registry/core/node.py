"""Frozen values of the registry: what a node is and what it declares. Routing reads nothing else of a node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Health(StrEnum):
    """What probes and dispatchers have seen of a node."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not_ready"
    SUSPECT = "suspect"


class AdminState(StrEnum):
    """What an operator (or a leaving node) has decided about a node."""

    ENABLED = "enabled"
    DRAINING = "draining"
    DISABLED = "disabled"


class Tier(StrEnum):
    """How long a capability's work may take when the caller names no time."""

    LIGHT = "light"
    MEDIUM = "medium"
    HEAVY = "heavy"


class Schema(Protocol):
    """A compiled JSON Schema; `registry.schemas.compile_schema` makes them."""

    digest: str

    def accepts(self, value: Any) -> bool: ...

    def errors(self, value: Any, *, root: str) -> list[dict[str, str]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """One capability as one node declares it."""

    capability: str
    input: Schema
    output: Schema
    version: str = ""
    cost_level: str = "medium"
    rate_per_s: float | None = None
    tier: Tier = Tier.MEDIUM
    idempotent: bool = False
    tags: frozenset[str] = frozenset()
    allow_callers: frozenset[str] = frozenset()
    description: str = ""
    narrowness: int = 0
    """How much the input schema demands (`registry.schemas.narrowness`): a catch-all is 0."""

    @property
    def about(self) -> str:
        """What the declaration says beside the name: description, tags."""
        return " ".join([self.description, *sorted(self.tags)])

    @property
    def words(self) -> str:
        """What the declaration says of itself: name, description, tags."""
        return f"{self.capability} {self.about}"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One running copy of a service, as the current snapshot knows it."""

    service_id: str
    node_id: str
    address: str
    weight: int = 100
    health: Health = Health.READY
    admin_state: AdminState = AdminState.ENABLED
    expired: bool = False
    barred: str | None = None
    """Why its address may not be connected to, where the installation's rules have changed since it registered."""
    tags: frozenset[str] = frozenset()
    version: str = ""
    invoke_url: str = ""
    cancel_url: str | None = None
    max_concurrency: int | None = None
    offers: Mapping[str, Offer] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return (self.service_id, self.node_id)


@dataclass(frozen=True, slots=True)
class Status:
    """A node's one visible status with the sentence that explains it (empty only when ready)."""

    name: str
    reason: str


EJECTABLE = frozenset({Health.READY, Health.SUSPECT})
"""Where an open breaker is what keeps calls away; otherwise something stronger does."""


def visible_status(
    health: Health, reason: str, admin_state: AdminState, *, expired: bool, ejected: str | None = None
) -> Status:
    """Fold what was decided, leased and seen into the one status operators read; the strongest refusal wins.

    `ejected` says why nothing is sent to a node that could take calls (None: it is sent some).
    """
    if admin_state is AdminState.DISABLED:
        return Status("disabled", "disabled by an operator")
    if admin_state is AdminState.DRAINING:
        return Status("draining", "takes no new calls; running ones may finish")
    if expired:
        return Status("expired", "lease ran out: no heartbeat in time")
    if ejected is not None and health in EJECTABLE:
        return Status("ejected", ejected)
    return Status(health.value, "" if health is Health.READY else reason)
