"""What one process knows of its nodes from its own calls: the one mutable object of the hot path."""

import asyncio
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from registry.clock import monotonic, now_s
from registry.core.node import Health
from routing.core.balancing import RateKey, peak_ewma
from routing.core.breaker import (
    FRESH,
    OF_SERVICE,
    Breaker,
    BreakerRules,
    Shut,
    Shuts,
    State,
    after_attempt,
    opened,
    trial_lost,
    tried,
    with_more,
)
from routing.core.limits import Bucket, full, next_token_s, rate_key, taken, tokens_left
from routing.core.pool import Candidate
from routing.core.retry import Budget, BudgetRules, spent_sentence
from routing.core.tables import Tables

NodeKey = tuple[str, str]
Key = TypeVar("Key")
NOTHING_SHUT: Final[Shuts] = {}
NODE_RULES = BreakerRules(min_calls=5)
SERVICE_RULES = BreakerRules(min_calls=10)
BUDGET_RULES = BudgetRules()
NO_RETRIES = Budget()


TRIAL_PATIENCE_S = 0.5
"""A breaker that is half-open for so long (s), and nobody is known to try: whoever is asked first does."""


@dataclass(slots=True)
class Lease:
    """This process's part of a rate that all share."""

    rate_per_s: float
    tokens: float
    """What it may send now: its lease, and what was left to all when it was made (what it sends of that, it owes)."""
    granted: int = 0
    spent: int = 0
    asked: int = 0
    """Since the lease was made: sent, and asked for."""
    renewed_at: float = 0.0


@dataclass(slots=True)
class Shared:
    """What this process has to tell the others, and what it was granted. Only there while they can be reached."""

    attempts: dict[NodeKey, list[int]] = field(default_factory=dict)
    calls: dict[str, list[int]] = field(default_factory=dict)
    turned: dict[NodeKey, Breaker] = field(default_factory=dict)
    tried: dict[NodeKey, float] = field(default_factory=dict)
    trials: set[NodeKey] = field(default_factory=set)
    """Half-open breakers whose trial is this process's."""
    leases: dict[RateKey, Lease] = field(default_factory=dict)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    """Something is to be told at once."""


class NodeLoad:
    """In-flight calls, peak-EWMA latency and breakers. Single-threaded: one event loop owns it."""

    def __init__(
        self,
        *,
        decay_s: float,
        suspicion_s: float = 0.0,
        node_rules: BreakerRules = NODE_RULES,
        service_rules: BreakerRules = SERVICE_RULES,
        budget_rules: BudgetRules = BUDGET_RULES,
        clock: Callable[[], float] = now_s,
        beside: Sequence["NodeLoad"] = (),
    ):
        self.decay_s, self.suspicion_s = decay_s, suspicion_s
        self.node_rules, self.service_rules, self.clock = node_rules, service_rules, clock
        self.budget_rules, self.beside = budget_rules, beside
        self.suspected: dict[NodeKey, float] = {}
        self.told: dict[NodeKey, float] = {}
        self.flying: dict[NodeKey, int] = {}
        self.latencies: dict[NodeKey, tuple[float, float]] = {}
        self.breakers: dict[NodeKey, Breaker] = {}
        """By node; a service's own has `OF_SERVICE` for the node."""
        self.opened: dict[NodeKey, Breaker] = {}
        """Those of them that are not closed."""
        self.openings = 0
        """How often a breaker has opened here."""
        self.budgets: dict[str, Budget] = {}
        self.begun: dict[str, int] = {}
        self.well: dict[NodeKey, int] = {}
        self.tallied_s = 0
        """In this second (by the reach's clock): calls that have begun, by service; attempts that went well, by node.
        `settle` takes them into budgets and breakers: nearly all go well, and then one count is all they cost."""
        self.since_s = 0.0
        """The latest `since_s` of any breaker that has opened: what began before may be none of its business."""
        self.buckets: dict[RateKey, Bucket] = {}
        self.seen: tuple[Shuts, float] = (NOTHING_SHUT, 0.0)
        """What `shut` has found last, and until when (s) that holds."""
        self.shared: Shared | None = None
        """None: there is nobody to share with, or no way to them; then this process's own view is all."""
        self.when_turned: list[Callable[[NodeKey, Breaker], None]] = []
        """Told of each breaker that opens or closes here."""

    # --- Load --------------------------------------------------------------------------------------------------------

    def in_flight(self, key: NodeKey) -> int:
        """Of this process: what its other event loop has out (the all-in-one's engine) is on the node's hands too."""
        count = self.flying.get(key, 0)
        for other in self.beside:
            if other is not self:
                count += other.flying.get(key, 0)
        return count

    def latency_s(self, key: NodeKey) -> float:
        """The node's peak-sensitive average (s), faded since its last answer; 0 for one never tried."""
        average, at = self.latencies.get(key, (0.0, 0.0))
        return average * math.exp(-(monotonic() - at) / self.decay_s) if average else 0.0

    def claim(self, key: NodeKey) -> None:
        """Count one more call in flight, before anything is awaited after the decision; it may be a breaker's trial."""
        self.flying[key] = self.flying.get(key, 0) + 1
        if self.opened:
            self.begin_trial(key)

    def release(self, key: NodeKey) -> None:
        if left := self.flying[key] - 1:
            self.flying[key] = left
        else:
            del self.flying[key]

    def take(self, chosen: Candidate) -> None:
        """Claim the node, and one call of its declared rate."""
        self.claim(chosen.node.key)
        self.spend_one(chosen)

    def give_back(self, chosen: Candidate) -> None:
        """Undo what was taken: nothing came of it, no envelope was sent."""
        self.release(chosen.node.key)
        if self.opened:
            self.lose_trial(chosen.node.key)
        if chosen.offer.rate_per_s is not None:
            self.spend(rate_key(chosen), chosen.offer.rate_per_s, -1)

    def observe(self, key: NodeKey, elapsed_s: float) -> None:
        """Take in how long the node had a call."""
        now = monotonic()
        average, at = self.latencies.get(key, (0.0, now))
        self.latencies[key] = (peak_ewma(average, elapsed_s, now - at, decay_s=self.decay_s), now)

    # --- Retries -----------------------------------------------------------------------------------------------------

    def count_call(self, service_id: str) -> None:
        """A call has its first attempt at this service."""
        if int(self.clock()) != self.tallied_s:
            self.settle()
        self.begun[service_id] = self.begun.get(service_id, 0) + 1

    def count_retry(self, service_id: str) -> None:
        """The failure of an attempt at this service makes a further one, here or elsewhere."""
        self.settle()
        self.budgets[service_id] = self.budget_of(service_id).after(self.budget_rules, self.clock(), retries=1)
        if self.shared is not None:
            add(self.shared.calls, service_id, 0, 1)

    def retries_left(self, service_id: str) -> int:
        self.settle()
        return self.budget_of(service_id).left(self.budget_rules, self.clock())

    def retry_refusal(self, service_id: str) -> str | None:
        """Why the failure of an attempt at this service may make no further one now; None: it may."""
        self.settle()
        budget, now = self.budget_of(service_id), self.clock()
        if budget.left(self.budget_rules, now) > 0:
            return None
        return spent_sentence(service_id, budget, self.budget_rules, now)

    def budget_of(self, service_id: str) -> Budget:
        return self.budgets.get(service_id, NO_RETRIES)

    # --- Rates -------------------------------------------------------------------------------------------------------

    def tokens(self, key: RateKey, rate_per_s: float) -> float:
        """How many calls the rate allows now."""
        if (lease := self.lease_of(key)) is not None:
            lease.asked += 1
            return lease.tokens
        bucket = self.buckets.get(key)
        return tokens_left(bucket or full(rate_per_s, 0.0), rate_per_s, self.clock())

    def next_token_s(self, key: RateKey, rate_per_s: float) -> float:
        """Seconds until it allows one."""
        if (lease := self.lease_of(key)) is not None:
            return max(0.0, 1 - lease.tokens) / rate_per_s
        now = self.clock()
        return next_token_s(self.buckets.get(key) or full(rate_per_s, now), rate_per_s, now)

    def spend_one(self, chosen: Candidate) -> None:
        """One call of the node's declared rate is about to be sent."""
        if chosen.offer.rate_per_s is not None:
            self.spend(rate_key(chosen), chosen.offer.rate_per_s)

    def spend(self, key: RateKey, rate_per_s: float, count: int = 1) -> None:
        now = self.clock()
        if self.shared is not None:
            if (lease := self.lease_of(key)) is None:
                left = self.tokens(key, rate_per_s)
                lease = self.shared.leases[key] = Lease(rate_per_s, left, asked=1)
            lease.rate_per_s = rate_per_s
            lease.tokens -= count
            lease.spent += count
            if lease.tokens < 1:
                self.shared.stirred.set()
        self.buckets[key] = taken(self.buckets.get(key) or full(rate_per_s, now), rate_per_s, now, count)

    def lease_of(self, key: RateKey) -> Lease | None:
        return None if self.shared is None else self.shared.leases.get(key)

    # --- Suspicion ---------------------------------------------------------------------------------------------------

    def suspect(self, key: NodeKey) -> bool:
        """The way to a node has just failed: it is taken last for a while. True when the others should hear of it.

        They hear of a node once in that while at most: one that passes its probes and breaks its calls must not keep
        every process loading its tables.
        """
        now = monotonic()
        self.suspected[key] = now + self.suspicion_s
        if self.told.get(key, -math.inf) > now - self.suspicion_s:
            return False
        self.told[key] = now
        return True

    def suspects(self) -> Container[NodeKey]:
        """The nodes to be taken last, by this process's own calls; nearly always none."""
        if self.suspected:
            now = monotonic()
            for key in [key for key, until in self.suspected.items() if until < now]:
                del self.suspected[key]
        return self.suspected

    # --- Breakers ----------------------------------------------------------------------------------------------------

    def shut(self) -> Shuts:
        """The breakers through which nothing may go now; nearly always none. Worked out when one of them turns."""
        if not self.opened:
            return NOTHING_SHUT
        now = self.clock()
        found, until_s = self.seen
        if now < until_s:
            return found
        shuts: dict[NodeKey, Shut] = {}
        until_s = math.inf
        for key, breaker in self.opened.items():
            rules = self.rules_of(key)
            state = breaker.state(rules, now)
            if state is not State.HALF_OPEN:
                turns_at_s = breaker.turns_at_s(rules, now)
            elif self.shared is not None and key not in self.shared.trials:
                turns_at_s = breaker.since_s + TRIAL_PATIENCE_S
            else:
                turns_at_s = now
            if turns_at_s > now:
                shuts[key] = Shut(state, turns_at_s, *breaker.opened_by)
                until_s = min(until_s, turns_at_s)
        self.seen = (shuts, until_s)
        return shuts

    def is_open(self, key: NodeKey) -> bool:
        """Whether a node's breaker or that of its service is open; the trial of a half-open one may go on."""
        if not self.opened:
            return False
        shuts = self.shut()
        return any(one in shuts and shuts[one].state is State.OPEN for one in breakers_of(key))

    def judge(self, key: NodeKey, *, failed: bool | None, began_s: float) -> None:
        """An attempt that began at `began_s` (by the reach's clock) has ended; `failed`: None says nothing."""
        if failed is None:
            if self.opened:
                self.lose_trial(key, began_s)
            return
        now = self.clock()
        if not failed and not self.opened and began_s >= self.since_s:
            if int(now) != self.tallied_s:
                self.settle()
            self.well[key] = self.well.get(key, 0) + 1
            return
        self.settle()
        for one in breakers_of(key):
            before = self.breakers.get(one, FRESH)
            after = after_attempt(before, self.rules_of(one), failed=failed, began_s=began_s, now_s=now)
            self.breakers[one] = after
            if self.shared is not None and began_s >= before.since_s and before.opened_at_s is None:
                add(self.shared.attempts, one, 1, int(failed))
            if after.opened_at_s != before.opened_at_s:
                self.turn(one, after)

    def settle(self) -> None:
        """Take what was only counted so far into the breakers and budgets, and into what the others are to be told."""
        at_s = self.tallied_s
        for service_id, calls in self.begun.items():
            self.budgets[service_id] = self.budget_of(service_id).after(self.budget_rules, at_s, calls=calls)
            if self.shared is not None:
                add(self.shared.calls, service_id, calls, 0)
        for key, attempts in self.well.items():
            for one in breakers_of(key):
                self.breakers[one] = with_more(self.breakers.get(one, FRESH), self.rules_of(one), attempts, 0, at_s)
                if self.shared is not None:
                    add(self.shared.attempts, one, attempts, 0)
        self.begun.clear()
        self.well.clear()
        self.tallied_s = int(self.clock())

    def turn(self, key: NodeKey, breaker: Breaker) -> None:
        """A breaker has opened or closed."""
        self.set(key, breaker)
        self.openings += breaker.opened_at_s is not None
        if self.shared is not None:
            self.shared.turned[key] = breaker
            self.shared.stirred.set()
        for told in self.when_turned:
            told(key, breaker)

    def set(self, key: NodeKey, breaker: Breaker) -> None:
        self.breakers[key] = breaker
        self.since_s = max(self.since_s, breaker.since_s)
        if self.shared is not None and breaker.state(self.rules_of(key), self.clock()) is not State.HALF_OPEN:
            self.shared.trials.discard(key)
        if breaker.opened_at_s is None:
            self.opened.pop(key, None)
        else:
            self.opened[key] = breaker
        self.seen = (NOTHING_SHUT, 0.0)

    def begin_trial(self, key: NodeKey) -> None:
        now = self.clock()
        for one in breakers_of(key):
            breaker = self.opened.get(one)
            if breaker is not None and breaker.state(self.rules_of(one), now) is State.HALF_OPEN:
                self.set(one, tried(breaker, now))
                if self.shared is not None:
                    self.shared.tried[one] = now
                    self.shared.stirred.set()

    def lose_trial(self, key: NodeKey, began_s: float = math.inf) -> None:
        """An attempt that began then has told nothing: if it was the trial, another may try."""
        for one in breakers_of(key):
            breaker = self.opened.get(one)
            if breaker is not None and breaker.trial_at_s is not None and began_s >= breaker.since_s:
                self.set(one, trial_lost(breaker))

    # --- What other processes tell -----------------------------------------------------------------------------------

    def count_elsewhere(self, key: NodeKey, attempts: int, errors: int) -> None:
        """So many more attempts have ended in another process."""
        self.settle()
        before = self.breakers.get(key, FRESH)
        after = with_more(before, self.rules_of(key), attempts, errors, self.clock())
        self.breakers[key] = after
        if after.opened_at_s != before.opened_at_s:
            self.turn(key, after)

    def charge_elsewhere(self, service_id: str, calls: int, retries: int) -> None:
        self.settle()
        budget = self.budget_of(service_id)
        self.budgets[service_id] = budget.after(self.budget_rules, self.clock(), calls=calls, retries=retries)

    def open_elsewhere(self, key: NodeKey, at_s: float, by: tuple[int, int]) -> None:
        """Another process's breaker has opened: so has ours. Who has opened it tells of it."""
        self.settle()
        before = self.breakers.get(key, FRESH)
        after = opened(before, self.rules_of(key), by, at_s)
        if after is not before:
            self.set(key, after)

    def try_elsewhere(self, key: NodeKey, at_s: float) -> None:
        if (breaker := self.opened.get(key)) is not None:
            self.set(key, tried(breaker, at_s))

    def close_elsewhere(self, key: NodeKey, since_s: float) -> None:
        """Another process's trial has succeeded; it had begun after `since_s`. One that has opened since stays open."""
        breaker = self.opened.get(key)
        if breaker is not None and breaker.since_s <= since_s + self.rules_of(key).open_s / 2:
            self.set(key, Breaker(since_s=breaker.since_s))

    def grant_trial(self, key: NodeKey, breaker: Breaker) -> None:
        """The trial of this half-open breaker is ours, unless it has turned since that was asked for."""
        if self.shared is not None and self.opened.get(key) == breaker:
            self.shared.trials.add(key)
            self.seen = (NOTHING_SHUT, 0.0)

    def rules_of(self, key: NodeKey) -> BreakerRules:
        return self.node_rules if key[1] else self.service_rules

    # --- The tables --------------------------------------------------------------------------------------------------

    def heed(self, tables: Tables) -> None:
        """The tables have moved: a suspicion that they know of is theirs to end, and who is gone is forgotten."""
        self.settle()
        for key in list(self.suspected):
            if (node := tables.nodes.get(key)) is None or node.health is not Health.READY:
                del self.suspected[key]
        gone: Mapping[NodeKey, object]
        for gone in (self.latencies, self.told, self.breakers, self.opened):
            for key in [key for key in gone if key not in tables.nodes and not is_service_of(key, tables)]:
                del gone[key]
        if self.shared is not None:
            self.shared.trials &= self.opened.keys()
        for service_id in self.budgets.keys() - tables.services:
            del self.budgets[service_id]
        for rated in [rated for rated in self.buckets if rated[:2] not in tables.nodes]:
            del self.buckets[rated]
        self.seen = (NOTHING_SHUT, 0.0)


def add(counts: dict[Key, list[int]], key: Key, first: int, second: int) -> None:
    known = counts.get(key)
    if known is None:
        counts[key] = [first, second]
    else:
        known[0] += first
        known[1] += second


def breakers_of(key: NodeKey) -> tuple[NodeKey, NodeKey]:
    """The keys of the two breakers that an attempt at a node goes through."""
    return key, (key[0], OF_SERVICE)


def is_service_of(key: NodeKey, tables: Tables) -> bool:
    return not key[1] and key[0] in tables.services
