"""What a line of the log looks like, for people and for machines."""

import json
import logging
import re
import sys
from contextvars import copy_context
from typing import Any

import pytest

from reach_project.celery import app
from reach_project.logs import formatter
from registry.log_context import enter_call

CALL, TRACE = "01890a5d-ac96-774b-bcce-b302099a8057", "4bf92f3577b34da6a3ce929d0e0e4736"


def a_record(message: str = "said %s", *arguments: Any, failure: Any = None, **extra: Any) -> logging.LogRecord:
    record = logging.LogRecord("routing.engine", logging.WARNING, __file__, 1, message, arguments or ("so",), failure)
    record.__dict__ |= extra
    return record


def in_a_call(style: str, record: logging.LogRecord) -> str:
    """The text of a record that is logged while a call is carried."""

    def log() -> str:
        enter_call(CALL, TRACE)
        return formatter(style).format(record)

    return copy_context().run(log)


def a_failure() -> Any:
    key = "a-secret-in-a-local-variable"
    try:
        raise ValueError("the printer is out of paper") if key else None
    except ValueError:
        return sys.exc_info()


def test_a_line_for_people() -> None:
    line = formatter("line").format(a_record())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING routing\.engine: said so", line)


def test_a_line_of_a_call() -> None:
    assert in_a_call("line", a_record()).endswith(f"said so [call_id={CALL} trace_id={TRACE}]")


def test_a_line_as_json() -> None:
    said = json.loads(in_a_call("json", a_record("50 %% of %s\nand more", "them")))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", said.pop("timestamp"))
    assert isinstance(said.pop("pid"), int)
    assert said == {
        "level": "warning",
        "logger": "routing.engine",
        "event": "50 % of them\nand more",
        "call_id": CALL,
        "trace_id": TRACE,
    }


def test_outside_of_a_call_there_are_no_ids() -> None:
    assert "call_id" not in json.loads(formatter("json").format(a_record()))


def test_an_exception_for_people() -> None:
    line = formatter("line").format(a_record(failure=a_failure()))
    assert "Traceback (most recent call last)" in line and line.endswith("ValueError: the printer is out of paper")


def test_an_exception_as_fields() -> None:
    text = formatter("json").format(a_record(failure=a_failure()))
    assert "\n" not in text
    [exception] = json.loads(text)["exception"]
    assert (exception["exc_type"], exception["exc_value"]) == ("ValueError", "the printer is out of paper")
    assert exception["frames"][-1]["name"] == "a_failure"


@pytest.mark.parametrize("style", ["line", "json"])
def test_what_would_bring_payloads_and_keys_into_a_log_is_left_out(style: str) -> None:
    text = formatter(style).format(a_record(failure=a_failure(), request="GET /?key=a-secret-in-extra"))
    assert "a-secret-in-extra" not in text
    assert "a-secret-in-a-local-variable" not in text.replace('key = "a-secret-in-a-local-variable"', "")


@pytest.mark.parametrize("style", ["line", "json"])
def test_a_line_of_a_celery_task_names_it(style: str) -> None:
    lines = []

    @app.task(name="tests.say_something")
    def say_something() -> None:
        lines.append(formatter(style).format(a_record()))

    try:
        done = say_something.apply(task_id="t-1")
    finally:
        app.tasks.pop("tests.say_something")
    assert done.successful(), done.result
    if style == "json":
        said = json.loads(lines[0])
        assert (said["task"], said["task_id"]) == ("tests.say_something", "t-1")
    else:
        assert lines[0].endswith("said so [task=tests.say_something task_id=t-1]")
