"""The console dispatches nothing: what operators order there is done by the workers, by way of the database."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.acceptance.agents import NewAgent, ended_call
from tests.acceptance.instance import wait_until
from tests.bed.topology import Topology
from tests.fakes import answers, fails, in_turn

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


class Operator:
    """The administrator's browser at the console, without scripts."""

    def __init__(self, reach: Topology):
        self.url, self.opener = reach.console.url, build_opener(HTTPCookieProcessor(CookieJar()))
        known = reach.credentials
        self.post("/admin/login/", username=known["admin_username"], password=known["admin_password"])

    def get(self, path: str) -> str:
        with self.opener.open(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def post(self, path: str, **fields: str) -> str:
        """Fill in the form that is found there; where that leads."""
        found = TOKEN.search(self.get(path))
        assert found, path
        body = urlencode({"csrfmiddlewaretoken": found[1], **fields}).encode()
        with self.opener.open(self.url + path, body, timeout=60) as answer:
            return answer.geturl().removeprefix(self.url)


@pytest.fixture
def operator(reach: Topology) -> Operator:
    return Operator(reach)


@contextmanager
def without_dispatchers(reach: Topology) -> Iterator[None]:
    for dispatcher in reach.dispatchers:
        dispatcher.pause()
    try:
        yield
    finally:
        for dispatcher in reach.dispatchers:
            dispatcher.resume()


def test_a_capability_is_tried_from_the_console(reach: Topology, new_agent: NewAgent, operator: Operator) -> None:
    schema = {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}}
    agent = new_agent(answers("done"), at=reach, input=schema, sample={"title": "t"})
    there = operator.post(f"/admin/try/{agent.capability}/", **{"field:/title": "Q3"})
    call_id = there.partition("?call=")[2]
    ended = ended_call(reach, call_id)
    assert (ended["status"], ended["caller"], ended["output"]) == ("succeeded", "user:admin", "done")
    assert "Succeeded" in operator.get(there)


def test_dead_letters_are_done_again_while_no_dispatcher_answers(
    reach: Topology, new_agent: NewAgent, operator: Operator
) -> None:
    agent = new_agent(in_turn(fails(400, retryable=False), answers("this time")), at=reach, idempotent=True)
    failed = agent.call().json["call_id"]
    cause = f'["upstream_error", "{agent.capability}", "{agent.service_id}"]'
    with without_dispatchers(reach):
        there = operator.post(f"/admin/dead-letters/again/?{urlencode({'cause': cause, 'span': '1'})}", cause=cause)
        assert "/orders/" in there
        wait_until(lambda: len(agent.node.invocations) == 2, "it is done again")
        wait_until(lambda: "Succeeded" in operator.get(there), "the order's page says so")
    assert ended_call(reach, failed)["status"] == "failed"
