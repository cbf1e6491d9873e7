"""Which targets are measured in which settings. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import SMALL

DIRECT, NGINX, FORWARDER, CELERY = "direct", "nginx", "forwarder", "celery"
STRICT, RELAXED, BASE = "agent-reach", "relaxed", "base"
TARGETS = (DIRECT, NGINX, FORWARDER, CELERY, STRICT, RELAXED)
ONE_PROCESS_ONLY = (DIRECT, BASE)
PAYLOADS = {SMALL: 300, "10 KB": 10_000, "200 KB": 200_000}
"""How large a call's body is (bytes)."""
CONCURRENCY = (1, 16, 64, 256)
SOME = 16
MANY = 64


@dataclass(frozen=True, slots=True)
class Leg:
    """One setting and who is measured in it, side by side."""

    processes: int
    concurrency: int
    payload: str
    targets: tuple[str, ...]


def legs(targets: Sequence[str], concurrencies: Sequence[int], *, full: bool) -> list[Leg]:
    """All settings of a run; without `full` those that say most for their time: one thing is varied at a time."""
    if full:
        found = [
            Leg(processes, concurrency, payload, able(targets, processes))
            for processes in (1, 2)
            for payload in PAYLOADS
            for concurrency in concurrencies
        ]
    elif BASE in targets:
        found = [Leg(1, concurrency, SMALL, tuple(targets)) for concurrency in concurrencies]
    else:
        found = [Leg(1, concurrency, SMALL, tuple(targets)) for concurrency in concurrencies]
        found.append(Leg(2, MANY, SMALL, able(targets, 2)))
        without_queue = tuple(name for name in targets if name != CELERY)
        found += [Leg(1, SOME, payload, without_queue) for payload in PAYLOADS if payload != SMALL]
    return [leg for leg in found if leg.targets]


def able(targets: Sequence[str], processes: int) -> tuple[str, ...]:
    return tuple(name for name in targets if processes == 1 or name not in ONE_PROCESS_ONLY)


def rotated(targets: Sequence[str], turn: int) -> list[str]:
    """The targets in the order of this round: none is always the one that comes after a heavy one."""
    first = turn % len(targets)
    return [*targets[first:], *targets[:first]]


def filler(size: int) -> str:
    """So many letters and digits that no compression makes small; the same each time."""
    return random.Random(size).randbytes(size // 2 + 1).hex()[:size]
