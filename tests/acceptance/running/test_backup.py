"""A backup of a running reach, restored elsewhere: everything is there again, and nothing that was open runs again."""

import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.agents import NewAgent, call_of, dispatch, kinds_of, open_call, receipts_of
from tests.acceptance.instance import Instance, wait_until
from tests.fakes import answers, waits_for

NewInstance = Callable[..., Instance]
ROUTES = """
routes:
  - id: to-the-first
    match: {capability: echo}
    strategy: {type: exact, service: echo-agent}
"""


def backup_of(instance: Instance, folder: Path) -> Path:
    file = folder / "reach.dump"
    instance.manage("reach_backup", str(file))
    return file


def refused(instance: Instance, *arguments: str) -> str:
    """What a command says that does not do what it was asked."""
    done = instance.manage(*arguments, check=False)
    assert done.returncode == 1, done
    return done.stderr


@pytest.mark.timeout(180)
def test_a_backup_taken_under_way_brings_everything_back_and_runs_nothing_again(
    new_instance: NewInstance, new_agent: NewAgent, tmp_path: Path
) -> None:
    (tmp_path / "routes.yaml").write_text(ROUTES)
    first = new_instance("first", ROUTE_FILE=str(tmp_path / "routes.yaml")).start()
    echo = new_agent(answers(), at=first, service_id="echo-agent", capability="echo")
    gate = threading.Event()
    slow = {
        idempotent: new_agent(waits_for(gate), at=first, idempotent=idempotent, timeout_tier="heavy")
        for idempotent in (False, True)
    }
    done = echo.call({"n": 1}, idempotency_key="once").json
    wait_until(lambda: first.request("GET", "/api/v1/routes", key=first.key).json["revision"] == 1, "the route file")

    with ThreadPoolExecutor(2) as callers:
        try:
            asked = [callers.submit(agent.call, timeout_ms=600_000) for agent in slow.values()]
            open_calls = {idempotent: open_call(agent)["call_id"] for idempotent, agent in slow.items()}
            for agent in slow.values():
                wait_until(lambda agent=agent: agent.node.invocations, "the node is at work")
            file = backup_of(first, tmp_path)
        finally:
            gate.set()
        assert [each.result().status for each in asked] == [200, 200]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    second = new_instance("second")
    said = second.manage("reach_restore", str(file)).stdout
    assert "3 services" in said and "2 calls were under way" in said and "Every signing secret can be read" in said
    second.start()

    assert second.request("GET", "/api/v1/routes", key=first.key).json["revision"] == 1
    assert call_of(second, done["call_id"])["output"] == done["output"]
    assert receipts_of(second, done["call_id"]) == receipts_of(first, done["call_id"])
    for idempotent, call_id in open_calls.items():
        wait_until(lambda call_id=call_id: call_of(second, call_id)["ended_at"], "recovery has judged it")
        call = call_of(second, call_id)
        assert (call["status"], call["error"]["outcome_unknown"]) == ("timed_out", True), (idempotent, call)
        assert kinds_of(second, call_id)[-2:] == ["recovered", "timed_out"]
        assert len(slow[idempotent].node.invocations) == 1

    again = dispatch(second, "echo", {"n": 1}, key=first.key, idempotency_key="once")
    assert again.json["call_id"] == done["call_id"]
    wait_until(lambda: dispatch(second, "echo", {"n": 2}, key=echo.key).status == 200, "the agent is called")
    offer = {"name": "echo", "description": "Does echo", "input": {}, "output": {}}
    body = {"address": echo.node.address, "capabilities": [offer]}
    renewed = second.request("PUT", "/api/v1/services/echo-agent/nodes/n1", body, key=echo.key)
    assert renewed.json["signing_secret"] == echo.signing_secret


@pytest.mark.timeout(180)
def test_a_restore_harms_nothing(
    new_instance: NewInstance, new_agent: NewAgent, database_url: str, tmp_path: Path
) -> None:
    """It refuses while processes work, where something is, and what is no backup; it does all or nothing."""
    instance = new_instance(DATABASE_URL=database_url, SECRET_KEY="the first").start()
    agent = new_agent(at=instance)
    call_id = agent.call({"n": 1}).json["call_id"]
    file = backup_of(instance, tmp_path)
    assert "exists already" in refused(instance, "reach_backup", str(file))
    assert "processes work on this database" in refused(instance, "reach_restore", str(file), "--replace")
    instance.stop()

    assert "is not empty" in refused(instance, "reach_restore", str(file))
    (tmp_path / "no.dump").write_bytes(b"not a backup")
    assert "pg_restore failed" in refused(instance, "reach_restore", str(tmp_path / "no.dump"), "--replace")
    assert "no file" in refused(instance, "reach_restore", str(tmp_path / "nothing"), "--replace")
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("CREATE TABLE since_the_backup (n int)")
        whole = file.read_bytes()
        (tmp_path / "cut.dump").write_bytes(whole[: len(whole) * 3 // 4])
        refused(instance, "reach_restore", str(tmp_path / "cut.dump"), "--replace")
        assert db.execute("SELECT count(*) FROM since_the_backup, calls").fetchone() == (0,)
        assert db.execute("SELECT id::text FROM calls").fetchall() == [(call_id,)]

        instance.manage("reach_restore", str(file), "--replace")
        assert db.execute("SELECT to_regclass('since_the_backup')").fetchone() == (None,)
        assert db.execute("SELECT id::text FROM calls").fetchall() == [(call_id,)]
        file.unlink()
        backup_of(instance, tmp_path)  # what was restored can be backed up, and restored again
        other = new_instance("other", DATABASE_URL=database_url, SECRET_KEY="another")
        assert "set SECRET_KEY to what it was" in refused(other, "reach_restore", str(file), "--replace")
    said = instance.manage("reach_restore", str(file), "--replace").stdout
    assert "1 calls" in said and "Every signing secret can be read" in said
