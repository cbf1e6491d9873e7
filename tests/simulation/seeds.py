"""The worlds that CI lives through: a hundred seeds of 5,000 calls, in two files so that two workers share them."""

from tests.simulation.runs import run
from tests.simulation.world import Scenario

SEEDS, CALLS = range(1, 101), 5000


def every_rule_holds(seed: int) -> None:
    """Raises Failed, with the seed, the call's history and the command to see it again."""
    run(Scenario(seed, calls=CALLS))
