"""The rules are worth something: a mistake put into production code breaks the rule that it should, in few seeds."""

from typing import Any

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.watch import Violation
from tests.simulation.world import Scenario, World

SEEDS = (7, 14, 10, 9, 12, 3, 6, 4, 2, 11, 5, 8)
"""Those first that show most mistakes soon."""
SOONEST = {
    "budget_ignored": 4,
    "no_jitter": 14,
    "unsafe_is_repeated": 9,
    "retry_after_the_deadline": 12,
    "nobody_takes_over": 5,
    "adoption_removed": 10,
    "lease_never_expires": 5,
    "given_back_is_not_written": 4,
}
"""With which to begin, so that it takes no longer than it must; any other would do."""
TOLD_BY = {"given_back_is_not_written": {"async_share": 0.4}}
"""What makes more of what a mistake is about."""
TIME = {"no attempt starts after the deadline", "no attempt starts 30 s after the first"}
BREAKS = {
    "breaker_never_closes": {"pools recover when faults end"},
    "breaker_stops_nobody": {"nothing is sent while a breaker is open"},
    "budget_ignored": {"retries of a service stay within its budget"},
    "no_jitter": {"retries do not come in step"},
    "unsafe_is_repeated": {"what is not idempotent runs once"},
    "retry_after_the_deadline": TIME,
    "no_fencing": {"only who holds a call writes to it"},
    "forwarded_after_sending": {"`forwarded` is in the database before the envelope leaves"},
    "told_before_it_is_written": {"nothing is told that is not in the database"},
    "nobody_takes_over": {"the calls of a dead process are taken over", "every accepted call ends by its deadline"},
    "adoption_removed": {"what is not idempotent runs once"},
    "lease_never_expires": {"the calls of a dead process are taken over"},
    "waits_are_not_woken": {"no caller waits for ever"},
    "places_are_not_given_back": {"in-flight counts return to zero", "pools recover when faults end"},
    "nobody_looks_for_who_waits": {"every accepted call ends by its deadline"},
    "given_back_is_not_written": {"every accepted call ends by its deadline"},
}
assert BREAKS.keys() == MUTATIONS.keys()


def harsh(seed: int, **facts: Any) -> Scenario:
    """Many faults for few calls."""
    return Scenario(seed, calls=2500, lasts_s=90.0, faults_per_min=90.0, **facts)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_breaks_its_rule(name: str):
    for seed in (SOONEST.get(name, SEEDS[0]), *SEEDS):
        try:
            with MUTATIONS[name]():
                World(harsh(seed, **TOLD_BY.get(name, {}))).run()
        except Violation as violation:
            assert violation.rule in BREAKS[name], f"seed {seed}: {violation}"
            return
    pytest.fail(f"{name} breaks no rule in {len(SEEDS)} seeds")


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_without_a_mistake_every_rule_holds(seed: int):
    World(harsh(seed)).run()
