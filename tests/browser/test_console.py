"""The overview, live calls and traces, as people see them on real traffic."""

import json
import re
import secrets
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.acceptance.agents import Agent, NewAgent
from tests.acceptance.instance import Instance
from tests.bed.process import wait_until
from tests.browser.conftest import PATIENCE_MS, SignedIn
from tests.fakes import Behaviour, answers, breaks, fails, says, waits_for, works

AXE = Path(__file__).parent / "axe" / "axe.min.js"
expect.set_options(timeout=PATIENCE_MS)
SOON_MS = 1000
TRIES = 8
"""Of which one has to be quick: others use this machine, too."""


def live_page(signed_in: SignedIn, reach: Instance, **given: Any) -> Page:
    page = signed_in("vera", "viewer", **given)
    page.goto(f"{reach.url}/admin/live/")
    expect(page.locator("#live-state")).to_have_class(re.compile("reach-good"))
    return page


# --- Live calls ------------------------------------------------------------------------------------------------------

NOTE_ROWS = """() => {
  window.seen = {};
  new MutationObserver(changes => {
    for (const change of changes) for (const row of change.addedNodes) {
      if (row.dataset?.call) window.seen[row.dataset.call] ??= Date.now();
    }
  }).observe(document.getElementById("live-rows"), { childList: true });
}"""


def test_a_call_is_seen_within_a_second_of_its_acceptance(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn
) -> None:
    agent = new_agent(works(0.3))
    page = live_page(signed_in, reach)
    page.evaluate(NOTE_ROWS)
    took = []
    for _ in range(TRIES):
        call_id = agent.call().json["call_id"]
        row = page.locator(f'tr[data-call="{call_id}"]')
        expect(row).to_contain_text("Succeeded")
        call = reach.request("GET", f"/api/v1/calls/{call_id}", key=reach.key).json
        accepted_ms = datetime.fromisoformat(call["accepted_at"]).timestamp() * 1000
        took.append(page.evaluate("id => window.seen[id]", call_id) - accepted_ms)
        if took[-1] < SOON_MS:
            break
    assert min(took) < SOON_MS, took
    row.locator("a").click()
    expect(page.locator("#head h1")).to_have_text(agent.capability)


def test_rows_change_where_they_stand_and_a_filter_holds(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn
) -> None:
    gate = threading.Event()
    agent, other = new_agent(waits_for(gate)), new_agent()
    page = live_page(signed_in, reach)
    page.fill("input[name=capability]", agent.capability)
    page.press("input[name=capability]", "Enter")
    expect(page.locator("#live-empty")).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("Live")
    call_id = agent.call(mode="async").json["call_id"]
    other.call()
    row = page.locator(f'tr[data-call="{call_id}"]')
    expect(row).to_contain_text("Running")
    gate.set()
    expect(row).to_contain_text("Succeeded")
    assert page.locator("tr[data-call]").count() == 1


CALL = {
    "trace_id": "a" * 32,
    "parent_call_id": None,
    "mirror_of": None,
    "caller": "scheduler",
    "capability": "storm",
    "status": "succeeded",
    "service_id": "s",
    "node_id": "n",
    "attempts": 1,
    "seq": 5,
    "accepted_at": "2026-01-01T10:00:00+00:00",
    "ended_at": "2026-01-01T10:00:01+00:00",
    "error_code": None,
}


def many(calls: int, left_out: int) -> str:
    """A message of the socket with so many new calls."""
    made = [CALL | {"call_id": f"019f0000-{n:04x}-7000-8000-{secrets.token_hex(6)}"} for n in range(calls)]
    return json.dumps({"calls": made, "left_out": left_out})


def test_a_storm_is_thinned_out_and_says_so(reach: Instance, signed_in: SignedIn) -> None:
    page = signed_in("vera", "viewer")
    sockets: list[WebSocketRoute] = []
    page.route_web_socket(re.compile("/ws/calls$"), lambda socket: sockets.append(socket))
    page.goto(f"{reach.url}/admin/live/")
    expect(page.locator("#live-state")).to_have_text("Live")
    for _ in range(20):
        sockets[0].send(many(100, 300))
        page.wait_for_timeout(50)
    expect(page.locator("#live-share")).to_have_text(re.compile(r"showing 1 of \d+"))
    assert page.locator("tr[data-call]").count() <= 200
    expect(page.locator("#live-share")).to_have_text("")  # when the last of them had their turn
    page.click("#live-pause")
    shown = page.locator("tr[data-call]").count()
    sockets[0].send(many(30, 0))
    expect(page.locator("#live-pause")).to_have_text("Go on (30 waiting)")
    assert page.locator("tr[data-call]").count() == shown
    page.click("#live-pause")
    expect(page.locator("#live-pause")).to_have_text("Pause")


def test_a_lost_connection_leaves_a_mark(reach: Instance, signed_in: SignedIn) -> None:
    page = signed_in("vera", "viewer", language="zh-CN")
    sockets: list[WebSocketRoute] = []
    page.route_web_socket(re.compile("/ws/calls$"), lambda socket: sockets.append(socket))
    page.goto(f"{reach.url}/admin/live/")
    expect(page.locator("#live-state")).to_have_text("实时")
    sockets[0].close(code=1012)
    expect(page.locator(".reach-gap")).to_contain_text("未收到消息")
    expect(page.locator("#live-state")).to_have_text("实时")
    assert len(sockets) == 2
    sockets[1].close(code=4403)
    expect(page.locator("#live-state")).to_contain_text("已无权观看")


# --- A trace ---------------------------------------------------------------------------------------------------------


def test_a_trace_grows_while_it_runs(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    gate = threading.Event()
    parent, child = new_agent(waits_for(gate)), new_agent(works(0.2))
    asked = parent.call(mode="async").json
    page = signed_in("vera", "viewer")
    page.goto(f"{reach.url}/admin/traces/{asked['trace_id']}/")
    rows = page.locator("#waterfall > ol > li")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("Running")
    expect(page.locator("#live-state")).to_have_text("live")
    page.evaluate("window.same = true")
    within = {"trace_id": asked["trace_id"], "parent_call_id": asked["call_id"]}
    told = child.call(key=parent.key, **within)
    assert told.status == 200, told.body
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("Succeeded")
    gate.set()
    expect(rows.first).to_contain_text("Succeeded")
    expect(page.locator("#call")).to_contain_text("echo")
    assert page.evaluate("window.same"), "the page was not loaded anew"


FAILURES: dict[str, tuple[Behaviour, dict[str, Any], dict[str, str]]] = {
    "it fails": (fails(500, "broken", "out of disk"), {}, {"en-GB": "answered 500", "zh-CN": "回应 500"}),
    "its address is retired": (
        says(502, "<html>", "text/html"),
        {},
        {"en-GB": "something before it answered 502", "zh-CN": "502"},
    ),
    "it is half dead": (
        works(30),
        {"timeout_ms": 300},
        {"en-GB": "had not answered by the deadline", "zh-CN": "到截止时间仍未回应"},
    ),
    "it breaks off": (breaks(), {}, {"en-GB": "the connection broke", "zh-CN": "连接"}),
    "it takes all and knows little": (
        fails(422, "not_mine", "this is no report"),
        {},
        {"en-GB": "this is no report", "zh-CN": "this is no report"},
    ),
}
OFFERED: dict[str, dict[str, Any]] = {"it takes all and knows little": {"input": {}}}
"""What the article's incidents leave behind where no other node can help: a node, how it is asked, and what is told."""
WORDS = {"en-GB": ("What to try", "here it began"), "zh-CN": ("可以尝试", "由此开始")}


@pytest.mark.parametrize("language", ["en-GB", "zh-CN"])
def test_the_cause_of_a_failed_call_is_three_clicks_away(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn, language: str
) -> None:
    page = signed_in("vera", "viewer", language=language)
    for incident, (behave, asked, told) in FAILURES.items():
        agent = new_agent(behave, **OFFERED.get(incident, {}))
        assert agent.call(**asked).status >= 500
        page.goto(f"{reach.url}/admin/")
        page.click(f'#newest a:text-is("{agent.capability}")')  # the first click; the other two are not needed
        expect(page.locator("#failure")).to_contain_text(f"{agent.service_id}/{agent.node_id}")
        expect(page.locator("#failure")).to_contain_text(told[language])
        expect(page.locator("#failure")).to_contain_text(WORDS[language][0])
        expect(page.locator("#waterfall")).to_contain_text(WORDS[language][1])


def opens_its_breaker(agent: Agent) -> None:
    """What a storm of retries ends in."""
    wait_until(lambda: agent.call().json["code"] != "upstream_error", "its breaker is open")


def says_it_is_not_ready(agent: Agent) -> None:
    agent.node.ready = {"ready": False, "reason": "no model is loaded"}
    wait_until(lambda: not agent.is_known_to(agent.reach), "it counts as not ready")


NOBODY: dict[str, tuple[Callable[[Agent], None], dict[str, str]]] = {
    "its breaker is open": (opens_its_breaker, {"en-GB": "breaker is open", "zh-CN": "熔断器已打开"}),
    "it is not ready": (says_it_is_not_ready, {"en-GB": "no model is loaded", "zh-CN": "no model is loaded"}),
}


@pytest.mark.parametrize("language", ["en-GB", "zh-CN"])
@pytest.mark.parametrize("incident", NOBODY)
def test_why_nobody_took_a_call_is_three_clicks_away(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn, incident: str, language: str
) -> None:
    page = signed_in("vera", "viewer", language=language)
    befalls, told = NOBODY[incident]
    agent = new_agent(fails(500))
    befalls(agent)
    assert agent.call().status == 503
    page.goto(f"{reach.url}/admin/")
    page.click(f'#newest a:text-is("{agent.capability}") >> nth=0')
    expect(page.locator("#failure")).to_contain_text(WORDS[language][0])
    page.click(f'#failure a:text-is("{agent.service_id}/{agent.node_id}")')
    expect(page.locator("#content")).to_contain_text(told[language])


def test_from_a_cause_by_its_list_to_one_of_its_calls(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn
) -> None:
    agent = new_agent(fails(500))
    for _ in range(3):
        agent.call()
    page = signed_in("vera", "viewer")
    page.goto(f"{reach.url}/admin/?span=15m")
    page.locator("#causes tr", has_text="upstream_error").first.locator("a").first.click()
    page.locator("#result_list tbody a").first.click()
    expect(page.locator("main")).to_contain_text("What to try")


def test_do_again_grows_the_trace(reach: Instance, new_agent: NewAgent, signed_in: SignedIn) -> None:
    agent = new_agent(fails(500))
    failed = agent.call().json
    agent.node.behave = answers({"done": True})
    page = signed_in("olga", "operator")
    page.goto(f"{reach.url}/admin/traces/{failed['trace_id']}/")
    page.locator("#failure").get_by_role("button", name="Do again").click()
    expect(page.locator("#waterfall > ol > li")).to_have_count(2)
    expect(page.locator("#waterfall > ol > li").nth(1)).to_contain_text("Succeeded")
    viewer = signed_in("vera", "viewer")
    viewer.goto(page.url)
    expect(viewer.locator("#failure")).to_be_visible()
    assert viewer.get_by_role("button", name="Do again").count() == 0


# --- Everybody can use them ------------------------------------------------------------------------------------------


def serious(page: Page) -> list[str]:
    """What axe finds that keeps people from using the page, with where."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize(
    "look", [{}, {"dark": True, "language": "zh-CN"}, {"width": 360, "height": 800}], ids=["light", "dark", "narrow"]
)
def test_nothing_keeps_people_from_using_a_page(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn, look: dict[str, Any]
) -> None:
    agent = new_agent(fails(500))
    failed = agent.call().json
    page = signed_in("olga", "operator", **look)
    found = {}
    paths = ("", "live/", f"traces/{failed['trace_id']}/", f"receipts/call/{failed['call_id']}/change/")
    for path in paths:
        page.goto(f"{reach.url}/admin/{path}")
        page.wait_for_load_state("networkidle")
        found[path] = serious(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than the window"
    assert not any(found.values()), json.dumps(found, indent=1)


def loaded_again(page: Page, url: str) -> int:
    """Bytes over the network at the second visit of a page."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    loaded: list[int] = []
    session.on("Network.loadingFinished", lambda event: loaded.append(event["encodedDataLength"]))
    for _visit in range(2):
        loaded.clear()
        page.goto(url)
        page.wait_for_load_state("networkidle")
    session.detach()
    return sum(loaded)


def test_a_second_visit_loads_little(reach: Instance, signed_in: SignedIn) -> None:
    page = signed_in("vera", "viewer")
    for path in ("", "live/"):
        assert 0 < loaded_again(page, f"{reach.url}/admin/{path}") < 300_000, path


def test_the_overview_refreshes_by_itself_unless_paused(
    reach: Instance, new_agent: NewAgent, signed_in: SignedIn
) -> None:
    page = signed_in("vera", "viewer")
    agent = new_agent()
    page.goto(f"{reach.url}/admin/")
    page.get_by_role("button", name="Pause").click()
    agent.call()
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#newest")).to_contain_text(agent.capability)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
