"""Which tests go to one of pytest-xdist's workers together: those of a file, and all that share a topology."""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/acceptance/topology/",)
"""Folders whose files share something that takes long to start."""


class ByFile(LoadFileScheduling):
    """In the order of the command line: the long ones first, so that no worker is left with one at the end."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))
