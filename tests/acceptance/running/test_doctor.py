"""`manage.py reach_doctor` beside real installations: at work, stopped, killed, without their database."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.agents import NewAgent
from tests.acceptance.instance import Instance, free_port, wait_until

NewInstance = Callable[..., Instance]


def examined(instance: Instance, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and each finding by its check."""
    done = instance.manage("reach_doctor", "--json", *arguments, check=False)
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {finding["check"]: finding for finding in findings}


@pytest.mark.timeout(180)
def test_an_installation_through_its_life(new_instance: NewInstance, new_agent: NewAgent) -> None:
    instance = new_instance()
    status, found = examined(instance)
    assert (status, found["installation"]["level"]) == (1, "error")
    assert "make run" in found["installation"]["fix"]

    instance.start()
    new_agent(at=instance)
    status, found = examined(instance, "--strict")
    assert status == 0, found
    assert {finding["level"] for finding in found.values()} == {"ok"}
    assert {"database", "disk", "readiness", "worker", "servers", "nodes", "notifications"} <= found.keys()
    listed = instance.manage("reach_doctor").stdout
    assert "✓ Worker and beat are at work\n" in listed and "\x1b" not in listed
    assert "nothing wrong" in listed.splitlines()[-1]
    assert "✓ worker 和 beat 在工作" in instance.manage("reach_doctor", "--language", "zh-hans").stdout

    (instance.home / "credentials.json").chmod(0o644)
    status, found = examined(instance)
    assert (status, found["secret files"]["level"]) == (1, "error")
    (instance.home / "credentials.json").chmod(0o600)

    instance.stop()
    status, found = examined(instance)
    assert status == 0
    assert {found["installation"]["level"], found["servers"]["level"]} == {"warning"}
    assert examined(instance, "--strict")[0] == 1

    instance.start()
    instance.kill()
    wait_until(lambda: examined(instance)[1].get("gone processes"), "the lease has run out")


@pytest.mark.timeout(60)
def test_the_database_is_away(new_instance: NewInstance) -> None:
    instance = new_instance(DATABASE_URL=f"postgresql://reach:geheim@127.0.0.1:{free_port()}/reach")
    started = time.monotonic()
    status, found = examined(instance)
    assert time.monotonic() - started < 15
    assert (status, found["database"]["level"]) == (1, "error")
    assert "reach@127.0.0.1:" in found["database"]["sentence"]
    assert "geheim" not in json.dumps(found)
