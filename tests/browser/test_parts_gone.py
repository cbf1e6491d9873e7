"""The console without dispatchers, and calls without a console."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.agents import Agent, registered
from tests.bed.topology import Topology
from tests.fakes import FakeNode


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    topology = Topology(tmp_path_factory.mktemp("parts") / "home", {"REACH_LIVE_BEAT_S": "1"}, dispatchers=1, workers=1)
    try:
        yield topology.start()
    finally:
        topology.remove()


@pytest.fixture(scope="module")
def agent(parts: Topology) -> Iterator[Agent]:
    made = registered(parts, FakeNode(), about_node={"lease_ttl_s": 600})  # type: ignore[arg-type]  # as good as an instance
    yield made
    made.node.close()


@pytest.fixture
def page(parts: Topology, chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(locale="en-GB", reduced_motion="reduce")
    page = context.new_page()
    known = parts.credentials
    page.goto(f"{parts.console.url}/admin/login/")
    page.fill("#id_username", known["admin_username"])
    page.fill("#id_password", known["admin_password"])
    page.press("#id_password", "Enter")
    page.wait_for_url(lambda url: "/login/" not in url)
    yield page
    context.close()


def test_the_console_is_killed_and_calls_go_on(parts: Topology, agent: Agent, page: Page) -> None:
    page.goto(f"{parts.console.url}/admin/live/")
    expect(page.locator("#live-state")).to_have_text("Live")
    parts.console.kill()
    expect(page.locator("#live-state")).to_contain_text("Connection lost")
    assert [agent.call().status for _ in range(20)] == [200] * 20
    parts.console.start()
    expect(page.locator(".reach-gap")).to_contain_text("nothing was heard", timeout=60_000)
    expect(page.locator("#live-state")).to_have_text("Live")


def test_no_dispatcher_is_alive_and_the_console_says_so(parts: Topology, agent: Agent, page: Page) -> None:
    call = agent.call().json
    parts.dispatchers[0].kill()
    page.goto(f"{parts.console.url}/admin/")
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("No dispatcher is alive: nobody takes calls.", timeout=60_000)  # its lease runs out
    expect(page.locator("#newest")).to_contain_text(agent.capability)
    page.goto(f"{parts.console.url}/admin/traces/{call['trace_id']}/")
    expect(page.locator("#call")).to_contain_text(call["call_id"])
    page.goto(f"{parts.console.url}/admin/registry/node/")
    expect(page.locator("#result_list")).to_contain_text(agent.service_id)
    parts.dispatchers[0].start()
    page.goto(f"{parts.console.url}/admin/")
    expect(verdict).not_to_contain_text("No dispatcher")
    assert agent.call().status == 200
