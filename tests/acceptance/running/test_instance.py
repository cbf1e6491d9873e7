"""`manage.py reach_serve`, the heart of `make run`: what it makes, how it refuses, how it ends."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from reach_project import embedded
from tests.acceptance.instance import CHECKOUT, Instance, kill_server, server_pid, wait_until

NewInstance = Callable[..., Instance]


def test_every_part_is_named_and_works(reach: Instance) -> None:
    answer = reach.request("GET", "/readyz")
    assert answer.status == 200
    assert answer.json == {
        "status": "ready",
        "parts": dict.fromkeys(
            ["beat", "broker", "database", "embedded postgresql", "migrations", "snapshot", "worker"], "ok"
        ),
    }
    assert reach.request("GET", "/healthz").status == 200


def test_the_credentials_file_is_private_and_its_key_may_do_everything(reach: Instance) -> None:
    assert stat.S_IMODE((reach.home / "credentials.json").stat().st_mode) == 0o600
    assert reach.credentials.keys() == {"url", "admin_username", "admin_password", "operator_key"}
    assert reach.credentials["url"] == reach.url
    assert reach.request("GET", "/api/v1/services", key=reach.key).status == 200
    made = reach.request("POST", "/api/v1/keys", {"service_id": "a", "scopes": ["dispatch"]}, key=reach.key)
    assert made.status == 201


def test_a_command_beside_a_running_instance_uses_its_server_and_leaves_it_running(reach: Instance) -> None:
    before = server_pid(reach.home)
    key = reach.manage("reach_key", "create", "--service", "caller", "--scopes", "dispatch").stdout.strip()
    assert reach.request("GET", "/api/v1/services", key=key).status == 403  # known at once, and without that scope
    assert server_pid(reach.home) == before and reach.is_ready()


def test_a_second_instance_on_the_same_home_is_refused_in_one_sentence(reach: Instance) -> None:
    refused = Instance(reach.home).manage("reach_serve", check=False)
    assert refused.returncode == 1
    assert "already runs on REACH_HOME" in refused.stderr and "Traceback" not in refused.stderr
    assert reach.is_ready()


def test_a_port_in_use_is_refused_before_anything_is_started(new_instance: NewInstance) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        instance = new_instance()
        instance.port = taken.getsockname()[1]
        refused = instance.manage("reach_serve", check=False)
    assert refused.returncode == 1
    assert f"cannot listen on 127.0.0.1:{instance.port}" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not (instance.home / "postgres.log").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_and_the_data_is_kept(new_instance: NewInstance, number: int) -> None:
    instance = new_instance(first_start=True).start()
    before = instance.credentials
    assert instance.stop(number) == 0
    assert not embedded.is_running(instance.home)
    assert "Traceback" not in instance.output

    instance.start()
    assert instance.credentials == before
    assert instance.output.count(before["operator_key"]) == 1  # shown once
    assert instance.request("GET", "/api/v1/services", key=instance.key).status == 200


def test_a_signal_during_the_start_ends_it_cleanly(new_instance: NewInstance) -> None:
    instance = new_instance(first_start=True).spawn()
    wait_until(lambda: embedded.is_running(instance.home), "PostgreSQL is coming up")
    assert instance.stop() == 0
    assert not embedded.is_running(instance.home)
    assert "Traceback" not in instance.output


@pytest.mark.parametrize("postgresql_too", [False, True], ids=["its PostgreSQL lives on", "all of it"])
def test_it_starts_again_after_kill_9(new_instance: NewInstance, postgresql_too: bool) -> None:
    instance = new_instance().start()
    before = instance.credentials
    instance.kill(postgresql_too=postgresql_too)
    assert instance.start().credentials == before
    assert instance.stop() == 0
    assert not embedded.is_running(instance.home)


def test_a_killed_postgresql_is_started_again_and_readiness_says_so(new_instance: NewInstance) -> None:
    instance = new_instance().start()
    before = server_pid(instance.home)
    kill_server(instance.home)
    wait_until(lambda: instance.request("GET", "/readyz").status == 503, "not ready")
    wait_until(instance.is_ready, "ready again")
    assert server_pid(instance.home) != before
    assert instance.request("GET", "/api/v1/services", key=instance.key).status == 200


def test_two_homes_on_one_database_have_an_administrator_each(
    new_instance: NewInstance, empty_database_url: str
) -> None:
    first = new_instance("first", first_start=True, DATABASE_URL=empty_database_url).spawn()
    second = new_instance("second", first_start=True, DATABASE_URL=empty_database_url).spawn()
    for instance in (first, second):
        wait_until(instance.is_ready, f"ready\n{instance.output}")
        assert "embedded postgresql" not in instance.request("GET", "/readyz").json["parts"]
    names = {first.credentials["admin_username"], second.credentials["admin_username"]}
    assert "admin" in names and len(names) == 2
    for asked in (first, second):
        for known in (first, second):
            assert asked.request("GET", "/api/v1/services", key=known.key).status == 200


def test_the_home_page_shows_the_state_and_loads_nothing_from_elsewhere(reach: Instance) -> None:
    page = reach.request("GET", "/")
    assert page.status == 200
    text = page.body.decode()
    assert reach.url in text and "Ready" in text
    assert not any(word in text for word in ('src="http', "src='http", 'href="http', "//cdn"))
    for asset in ("/static/dashboard/home.css", "/static/dashboard/mark.svg"):
        assert reach.request("GET", asset).status == 200


def test_the_interface_is_described_and_its_page_loads_nothing_from_elsewhere(reach: Instance) -> None:
    schema = reach.request("GET", "/api/v1/schema")
    assert schema.status == 200 and schema.json["openapi"].startswith("3.1")
    assert {"/api/v1/dispatch", "/api/v1/services"} <= schema.json["paths"].keys()
    page = reach.request("GET", "/api/v1/docs").body.decode()
    assert "http://" not in page.replace(reach.url, "") and "https://" not in page


@pytest.mark.parametrize(("method", "path", "status", "code"), [("GET", "/api/v1/nothing", 404, "not_found")])
def test_programs_get_problem_documents(reach: Instance, method: str, path: str, status: int, code: str) -> None:
    answer = reach.request(method, path, key=reach.key)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_make_run_passes_sigterm_on(new_instance: NewInstance) -> None:
    """What `make run` does after installing: make hands the signal on and waits for the server's clean end."""
    instance = new_instance(first_start=True)
    makefile = instance.home.with_name("Makefile")
    makefile.write_text((CHECKOUT / "Makefile").read_text().replace("run: install\n", "run:\n"))
    with instance.log.open("ab") as log:
        python = sys.executable
        command = ["make", "-f", str(makefile), f"VENV_PYTHON={python}", "run"]
        make = subprocess.Popen(command, cwd=CHECKOUT, env=instance.env, stdout=log, stderr=log)
    try:
        wait_until(instance.is_ready, f"ready\n{instance.output}")
        (server,) = psutil.Process(make.pid).children()
        make.terminate()
        make.wait(40)
        assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
        assert not embedded.is_running(instance.home)
    finally:
        make.kill()
        make.wait()


def test_every_scheduled_task_exists() -> None:
    from reach_project.celery import app

    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= app.tasks.keys()


def test_the_lock_file_names_the_process(reach: Instance) -> None:
    assert reach.process is not None
    assert int((reach.home / "serve.lock").read_text()) == reach.process.pid
    assert json.loads(reach.request("GET", "/healthz").body) == {"status": "ok"}
    assert os.path.exists(reach.home / "secret_key")
