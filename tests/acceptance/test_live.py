"""A call from its POST to a browser's socket: what an operator's live page sees of it."""

import json
import re
import secrets
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.cookiejar import CookieJar
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.acceptance.agents import NewAgent
from tests.acceptance.instance import Instance
from tests.fakes import answers


def console_of(reach: Any) -> Instance:
    return getattr(reach, "console", reach)


def logged_in(console: Instance) -> str:
    """The administrator's session, as a Cookie header."""
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    url = f"{console.url}/admin/login/"
    page = opener.open(url, timeout=20).read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    known = console.credentials
    form = {"username": known["admin_username"], "password": known["admin_password"], "csrfmiddlewaretoken": token[1]}
    opener.open(url, urllib.parse.urlencode(form).encode(), timeout=20).close()
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in jar)


def watching(console: Instance, path: str, cookie: str) -> ClientConnection:
    address = console.url.replace("http", "ws") + path
    return connect(address, origin=console.url, additional_headers={"Cookie": cookie})


def seen_in(socket: ClientConnection, call: Callable[[], str]) -> list[dict[str, Any]]:
    """All that was told until a call was seen to have ended well. It is called again where nobody knew of the watcher
    yet: where dispatchers are other processes, that takes a moment."""
    told: list[dict[str, Any]] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        call_id = call()
        with suppress(TimeoutError):
            while True:
                told += json.loads(socket.recv(timeout=2))["calls"]
                if (call_id, "succeeded") in {(one["call_id"], one["status"]) for one in told}:
                    return told
    raise AssertionError(f"no call was seen to end; told was {told}")


@pytest.mark.parametrize("what", ["all calls", "one trace"])
def test_a_browser_sees_calls_as_they_are_made(reach: Any, new_agent: NewAgent, what: str):
    console, agent, trace = console_of(reach), new_agent(answers({"done": True})), secrets.token_hex(16)

    def call() -> str:
        agent.call()  # in a trace of its own
        told = agent.call(headers={"traceparent": f"00-{trace}-{'7' * 16}-01"})
        assert told.status == 200, told.body
        return told.json["call_id"]

    path = "/ws/calls" if what == "all calls" else f"/ws/traces/{trace}"
    with watching(console, path, logged_in(console)) as socket:
        told = seen_in(socket, call)
    assert {one["capability"] for one in told} >= {agent.capability}
    assert ({one["trace_id"] for one in told} == {trace}) is (what == "one trace")


@pytest.mark.parametrize("cookie", ["", "sessionid=made-up"])
def test_a_stranger_sees_nothing(reach: Any, cookie: str):
    with pytest.raises(InvalidStatus) as refused, watching(console_of(reach), "/ws/calls", cookie):
        pass
    assert refused.value.response.status_code == 403
