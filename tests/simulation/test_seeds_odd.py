"""Every rule holds in every world with an odd seed."""

import pytest

from tests.simulation.seeds import SEEDS, every_rule_holds


@pytest.mark.parametrize("seed", SEEDS[0::2])
def test_every_rule_holds(seed: int):
    every_rule_holds(seed)
