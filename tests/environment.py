"""A home of this run's own, before anybody reads the settings: pytest loads this ahead of pytest-django (`-p`)."""

import os
import shutil
import tempfile
from pathlib import Path

HOME = "REACH_TEST_HOME"
"""Made by the first process of the run; pytest-xdist's workers inherit it."""

is_first_process = HOME not in os.environ
if is_first_process:
    os.environ[HOME] = tempfile.mkdtemp(prefix="reach-test-")
os.environ |= {"DJANGO_SETTINGS_MODULE": "reach_project.settings", "REACH_HOME": os.environ[HOME]}


def pytest_unconfigure() -> None:
    if is_first_process:
        from reach_project import embedded
        from tests.bed import prepared

        run = Path(os.environ[HOME])
        prepared.remove(run)
        embedded.remove(run)
        shutil.rmtree(run, ignore_errors=True)
        del os.environ[HOME]
