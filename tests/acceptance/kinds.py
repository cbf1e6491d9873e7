"""What stands for the reach in this run: an all-in-one, or with REACH_TEST_TOPOLOGY=processes one process a part."""

import os
from pathlib import Path

from tests.acceptance.instance import Instance
from tests.bed.topology import Topology

Reach = Instance | Topology
PARTED = os.environ.get("REACH_TEST_TOPOLOGY") == "processes"


def a_reach(home: Path, environment: dict[str, str] | None = None) -> Reach:
    """A reach of the kind that this run is about, not yet started."""
    return Topology(home, environment) if PARTED else Instance(home, environment or {})
