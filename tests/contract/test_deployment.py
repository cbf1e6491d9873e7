"""What `deploy/` says fits this code: its commands exist, its settings are known, its stops give calls their time."""

import re
import shlex
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands

from reach_project.celery import QUEUES, app
from reach_project.runtime import IDLE_LINGER_S

COMPOSE = yaml.safe_load((settings.BASE_DIR / "deploy" / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("agent-reach")}
KNOWN = {limit.name for limit in settings.CONFIGURATION}
ROLE_OF = {"dispatcher-1": "dispatcher", "dispatcher-2": "dispatcher", "console": "console"}


def dockerfile(instruction: str) -> list[str]:
    text = (settings.BASE_DIR / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", text, re.MULTILINE)


def test_the_process_set_is_complete() -> None:
    assert set(SERVICES) == {
        "postgres",
        "redis",
        "prepare",
        "nginx",
        "worker",
        "beat",
        *ROLE_OF,
    }
    assert {name: service["environment"].get("REACH_ROLE") for name, service in OURS.items()} == dict.fromkeys(
        OURS
    ) | ROLE_OF


@pytest.mark.parametrize("name", OURS)
def test_its_command_exists(name: str) -> None:
    program, *arguments = OURS[name].get("command") or yaml.safe_load(dockerfile("CMD")[0])
    if program == "python":
        assert arguments[0] == "manage.py" and arguments[1] in get_commands()
    else:
        assert program == "celery" and arguments[:3] == ["-q", "-A", "reach_project"]
        command = app_commands()[arguments[3]]
        command.make_parser(command_context(command)).parse_args(arguments[4:])


def app_commands() -> dict[str, Any]:
    from celery.bin.celery import celery

    return celery.commands


def command_context(command: Any) -> Any:
    from celery.bin.base import CLIContext
    from click import Context

    return Context(command, obj=CLIContext(app=app, no_color=True, workdir=None), resilient_parsing=True)


def test_the_worker_takes_from_every_queue() -> None:
    arguments = OURS["worker"]["command"]
    assert arguments[arguments.index("-Q") + 1].split(",") == list(QUEUES)


@pytest.mark.parametrize("name", OURS)
def test_its_settings_are_known_and_shared(name: str) -> None:
    environment = OURS[name]["environment"]
    assert environment.keys() <= KNOWN
    assert {"DATABASE_URL", "REDIS_URL", "SECRET_KEY"} <= environment.keys()


def test_the_image_knows_its_settings_and_holds_every_app() -> None:
    variables = {pair.partition("=")[0] for pair in shlex.split(dockerfile("ENV")[0])}
    assert variables - {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"} <= KNOWN
    copied = {line.split()[0] for line in dockerfile("COPY") if not line.startswith("--from")}
    ours = {app.split(".")[0] for app in settings.INSTALLED_APPS} & {
        path.name for path in settings.BASE_DIR.iterdir() if path.is_dir()
    }
    assert ours | {"templates", "locale", "manage.py"} <= copied
    allowed = set((settings.BASE_DIR / ".dockerignore").read_text().splitlines())
    assert {f"!{name}" for name in copied} <= allowed


@pytest.mark.parametrize("name", ROLE_OF)
def test_a_stop_leaves_calls_their_time(name: str) -> None:
    grace_s = float(OURS[name]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings.REACH_STOP_DELAY_S + IDLE_LINGER_S + settings.REACH_DRAIN_S


def test_every_variable_asked_for_is_in_the_example() -> None:
    text = (settings.BASE_DIR / "deploy" / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{([A-Z_]+)", text))
    example = (settings.BASE_DIR / "deploy" / ".env.example").read_text()
    assert asked == set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE))
