"""Operators act in the console, and it takes effect: drain under traffic, try-it, dead letters; topology is drawn."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.utils import quote
from playwright.sync_api import Page, expect

from tests.acceptance.agents import Agent, NewAgent, call_of, dispatch, ended_call, key_of
from tests.acceptance.instance import Instance, wait_until
from tests.browser.conftest import SignedIn
from tests.browser.test_console import loaded_again, serious
from tests.fakes import answers, fails, in_turn

INPUT = {
    "type": "object",
    "required": ["title", "kind"],
    "additionalProperties": False,
    "properties": {
        "title": {"type": "string", "description": "what it is about"},
        "kind": {"enum": ["report", "email"]},
        "pages": {"type": "integer", "minimum": 1, "maximum": 9},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    },
}


@contextmanager
def traffic(agent: Agent) -> Iterator[list[int]]:
    """Calls of the agent's capability, one after another, until the block is left; their statuses."""
    stop, statuses = threading.Event(), list[int]()

    def call() -> None:
        while not stop.is_set():
            statuses.append(agent.call().status)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        yield statuses
    finally:
        stop.set()
        caller.join(30)


def node_page(page: Page, reach: Instance, agent: Agent) -> None:
    page.goto(f"{reach.url}/admin/registry/node/?q={agent.service_id}")
    page.get_by_role("link", name=f"{agent.service_id}/{agent.node_id}").click()


def test_a_drain_takes_effect_under_traffic(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    first = new_agent(answers("first"))
    second = new_agent(answers("second"), capability=first.capability)
    page = signed_in("olga", "operator")
    with traffic(first) as statuses:
        wait_until(lambda: first.node.invocations and second.node.invocations, "both take calls")
        node_page(page, reach, first)
        page.get_by_role("button", name="Drain…").click()
        asked = page.get_by_role("main")
        expect(asked).to_contain_text(f"{second.service_id}/n1")
        expect(asked).not_to_contain_text("callers get 503")
        page.get_by_role("button", name="Drain", exact=True).click()
        expect(page.get_by_role("main")).to_contain_text("Draining")
        wait_until(lambda: not idle_since(first, second), "the drained one takes no more")
        node_page(page, reach, first)
        page.get_by_role("button", name="Enable…").click()
        page.get_by_role("button", name="Enable", exact=True).click()
        before = len(first.node.invocations)
        wait_until(lambda: len(first.node.invocations) > before, "it takes calls again")
    assert set(statuses) == {200}, "no call failed by it"


def idle_since(drained: Agent, other: Agent) -> int:
    """How many calls the drained one took while the other took twenty."""
    before, others = len(drained.node.invocations), len(other.node.invocations)
    wait_until(lambda: len(other.node.invocations) >= others + 20, "the other takes its calls")
    return len(drained.node.invocations) - before


def test_the_last_provider_is_drained_only_after_a_warning(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn
) -> None:
    agent = new_agent(answers("x"))
    page = signed_in("olga", "operator")
    node_page(page, reach, agent)
    page.get_by_role("button", name="Disable…").click()
    expect(page.get_by_role("main")).to_contain_text("callers get 503")
    page.get_by_role("link", name="Cancel").click()
    expect(page.get_by_role("main")).to_contain_text("Ready")
    assert agent.call().status == 200


def test_a_probe_shows_what_was_asked_and_answered(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    agent = new_agent(answers("x"))
    page = signed_in("olga", "operator")
    node_page(page, reach, agent)
    page.get_by_role("button", name="Probe now…").click()
    page.get_by_role("button", name="Probe now", exact=True).click()
    expect(page.get_by_text("Probed just now")).to_be_visible()


@pytest.mark.parametrize("way", ["fields", "json"])
def test_a_capability_is_tried(reach: Instance, new_agent: NewAgent, signed_in: SignedIn, way: str) -> None:
    agent = new_agent(answers({"said": "here you are"}), input=INPUT, sample={"title": "t", "kind": "email"})
    page = signed_in("olga", "operator")
    page.goto(f"{reach.url}/admin/registry/capability/?q={agent.capability}")
    page.get_by_role("link", name=agent.capability, exact=True).click()
    page.get_by_role("link", name="Try it").click()
    if way == "json":
        page.get_by_label("Write it as JSON").check()
        page.get_by_label("Payload JSON").fill(
            '{"title": "Q3", "kind": "report", "pages": 4, "options": {"deep": true}}'
        )
    else:
        page.get_by_label("title").fill("Q3")
        page.get_by_label("kind").select_option(label="report")
        page.get_by_label("pages").fill("4")
        page.get_by_label("deep").select_option(label="Yes")
    page.get_by_role("button", name="Make the call").click()
    page.wait_for_url("**/admin/traces/*/?call=*")
    call_id = page.url.partition("?call=")[2]
    ended = ended_call(reach, call_id)
    assert (ended["status"], ended["caller"]) == ("succeeded", "user:olga")
    [invocation] = agent.node.invocations
    assert invocation.envelope["payload"] == {"title": "Q3", "kind": "report", "pages": 4, "options": {"deep": True}}
    expect(page.get_by_role("main")).to_contain_text("here you are")  # the trace grows by itself
    expect(page.get_by_role("main")).to_contain_text("Succeeded")


def test_a_viewer_finds_no_verb(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    agent = new_agent(answers("x"))
    page = signed_in("vera", "viewer")
    page.goto(f"{reach.url}/admin/registry/service/{agent.service_id}/change/")
    expect(page.get_by_role("main")).to_contain_text(agent.node_id)
    assert page.locator("main button[name=action]").count() == 0
    page.goto(f"{reach.url}/admin/registry/capability/?q={agent.capability}")
    page.get_by_role("link", name=agent.capability, exact=True).click()
    assert page.get_by_role("link", name="Try it").count() == 0
    page.goto(f"{reach.url}/admin/dead-letters/")
    assert page.get_by_role("button", name="Do the chosen again…").count() == 0


def test_dead_letters_are_done_again_in_bulk(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    key = key_of(reach, "unlucky", "dispatch")
    behave = in_turn(*[fails(400, retryable=False)] * 4, answers("this time"))
    agent = new_agent(behave, idempotent=False)
    failed = [agent.call({"n": n}, key=key).json["call_id"] for n in range(4)]
    page = signed_in("olga", "operator")
    page.goto(f"{reach.url}/admin/dead-letters/?span=1")
    row = page.get_by_role("row").filter(has_text=agent.capability)
    expect(row).to_contain_text("upstream_error")
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Do the chosen again…").click()
    expect(page.get_by_role("main")).to_contain_text("4 calls reached a node")
    page.get_by_label("Also the 4 that may run twice").check()
    page.get_by_role("button", name="Do them again").click()
    progress = page.locator("#progress")
    expect(progress).to_contain_text("4 of 4 looked at", timeout=60_000)
    expect(progress).to_contain_text("Succeeded 4", timeout=60_000)  # the page looks again by itself
    assert {call_of(reach, call_id)["status"] for call_id in failed} == {"failed"}
    again = [invocation.envelope["payload"]["n"] for invocation in agent.node.invocations][4:]
    assert sorted(again) == [0, 1, 2, 3]
    page.goto(f"{reach.url}/admin/dead-letters/?span=1")
    page.get_by_role("row").filter(has_text=agent.capability).get_by_role("link").first.click()
    expect(page.get_by_role("main")).to_contain_text("4 calls were done again already.")


def test_topology_is_drawn_and_leads_around_a_service(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn
) -> None:
    agent = new_agent(answers("x"))
    caller = f"{agent.service_id}-caller"
    key = key_of(reach, caller, "dispatch")
    for _turn in range(3):
        assert dispatch(reach, agent.capability, key=key).status == 200
    page = signed_in("vera", "viewer")
    page.goto(f"{reach.url}/admin/topology/?q={agent.service_id}")
    expect(page.locator("figure[data-drawn='1'] svg")).to_be_visible()
    expect(page.locator("figure svg text").filter(has_text=caller)).to_be_visible()
    row = page.get_by_role("row").filter(has_text=caller)
    expect(row).to_contain_text("3")
    row.get_by_role("link", name=agent.service_id, exact=True).click()
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_contain_text(agent.service_id)
    assert "focus=" in page.url
    page.locator("figure svg path").first.wait_for()


# --- Everybody can use them ------------------------------------------------------------------------------------------


def pages_of(agent: Agent) -> list[str]:
    """The pages where operators act, below /admin/; with a failed call, and one that finds nobody."""
    agent.call({"title": "t", "kind": "email"})
    dispatch(agent.reach, agent.capability, {})
    cause = urlencode({"cause": json.dumps(["upstream_error", agent.capability, agent.service_id])})
    return [
        "registry/node/", f"registry/node/?q={agent.service_id}", "registry/service/",
        f"registry/service/{quote(agent.service_id)}/change/", "registry/capability/",
        f"registry/capability/{quote(agent.capability)}/change/", f"try/{agent.capability}/", "topology/",
        f"topology/?focus={agent.service_id}", "dead-letters/", f"dead-letters/again/?{cause}", "routing/advisory/",
        "registry/auditevent/",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "look",
    [{}, {"dark": True, "language": "zh-CN"}, {"width": 360, "height": 800}, {"width": 2560, "height": 1300}],
    ids=["light", "dark", "narrow", "wide"],
)
@pytest.mark.timeout(300)  # many pages, and others use this machine, too
def test_nothing_keeps_people_from_using_a_page(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn, look: dict[str, Any]
) -> None:
    agent = new_agent(fails(400, retryable=False), input=INPUT, sample={"title": "t", "kind": "email"})
    page = signed_in("olga", "operator", **look)
    found = {}
    for path in pages_of(agent):
        page.goto(f"{reach.url}/admin/{path}")
        page.wait_for_load_state("networkidle")
        found[path] = serious(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than the window"
    assert not any(found.values()), json.dumps(found, indent=1)


@pytest.mark.timeout(300)
def test_a_second_visit_loads_little(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    agent = new_agent(fails(400, retryable=False), input=INPUT, sample={"title": "t", "kind": "email"})
    page = signed_in("olga", "operator")
    for path in pages_of(agent):
        assert 0 < loaded_again(page, f"{reach.url}/admin/{path}") < 300_000, path


def test_the_keyboard_is_enough(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    """A capability is tried without a mouse: every field is reached by Tab, in order."""
    agent = new_agent(answers("x"), input=INPUT, sample={"title": "t", "kind": "email"})
    page = signed_in("olga", "operator")
    page.goto(f"{reach.url}/admin/try/{agent.capability}/")
    page.get_by_label("Write it as JSON").focus()
    reached = []
    for _step in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.name || document.activeElement.tagName"))
    assert reached[:5] == ["field:/title", "field:/kind", "field:/options/deep", "field:/pages", "SUMMARY"]
    page.get_by_label("title").focus()
    page.keyboard.type("Q3")
    page.keyboard.press("Tab")
    page.keyboard.press("r")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Make the call").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/admin/traces/*/?call=*")
    wait_until(lambda: agent.node.invocations, "the call has arrived")
