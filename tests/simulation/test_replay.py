"""One seed makes one history, to the byte: so what has failed once can be looked at as often as one likes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import runs
from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import Failed, history, run
from tests.simulation.world import Scenario

SMALL = Scenario(7, calls=1500)


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_the_same_seed_lives_the_same_life():
    first, second = history(SMALL), history(SMALL)
    assert len(first) > 5 * SMALL.calls
    assert first == second


def test_also_in_another_process_with_another_order_of_sets():
    command = [sys.executable, "manage.py", "reach_simulate", "--seed", "7", "--calls", "1500", "--history"]
    environment = os.environ | {"PYTHONHASHSEED": "4711"}
    root = Path(runs.__file__).parents[2]
    told = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert digest(told.stdout.splitlines()) == digest(history(SMALL))


def test_another_seed_lives_another():
    assert digest(history(Scenario(8, calls=300))) != digest(history(Scenario(9, calls=300)))


def test_a_broken_rule_tells_the_seed_the_calls_history_and_how_to_see_it_again():
    with MUTATIONS["told_before_it_is_written"](), pytest.raises(Failed) as failed:
        run(SMALL)
    told = str(failed.value)
    assert "nothing is told that is not in the database" in told
    assert "seed 7" in told
    assert "sent as attempt 1" in told
    assert told.endswith("again: manage.py reach_simulate --seed 7 --calls 1500")
    assert len(told.splitlines()) < 60
