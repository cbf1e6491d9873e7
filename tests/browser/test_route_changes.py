"""A route change from its draft to its revert, by two people in two browsers, under traffic."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from playwright.sync_api import Page, expect

from routing.rules import load_text
from tests.acceptance.agents import Agent, NewAgent, publish, wait_for_impact
from tests.acceptance.instance import Instance, wait_until
from tests.browser.conftest import Person, SignedIn

IN_USE_WITHIN_S = 2.0
AUTHORS = ("operator", "approver")
"""Both may do everything but one thing: approve what is their own."""


@dataclass
class Traffic:
    """Callers who ask without pause, in a thread with a loop of its own."""

    reach: Instance
    capability: str
    made: list[tuple[float, int, dict[str, Any]]] = field(default_factory=list)
    """When each began, its HTTP status, and what it was told."""
    over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.thread = threading.Thread(target=lambda: asyncio.run(self.callers()), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.over.set()
        self.thread.join(timeout=30)

    async def callers(self) -> None:
        headers = {"Authorization": f"Bearer {self.reach.key}"}
        async with aiohttp.ClientSession(self.reach.url, headers=headers) as session:
            await asyncio.gather(*(self.caller(session) for _ in range(2)))

    async def caller(self, session: aiohttp.ClientSession) -> None:
        body = {"capability": self.capability, "payload": {"kind": "report"}}
        while not self.over.is_set():
            began = time.monotonic()
            async with session.post("/api/v1/dispatch", json=body) as response:
                self.made.append((began, response.status, await response.json(content_type=None)))
            await asyncio.sleep(0.05)

    def since(self, moment: float) -> list[dict[str, Any]]:
        return [body for began, _status, body in list(self.made) if began >= moment]

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [body for _began, status, body in list(self.made) if status != 200]

    def ways(self, since: float) -> set[tuple[str, str]]:
        """By which routes and to whom calls have gone since a moment."""
        assert not self.failed, self.failed[:3]
        return {(call["route_id"], call["service_id"]) for call in self.since(since)}


@pytest.fixture
def agents(new_agent: NewAgent) -> tuple[Agent, Agent]:
    patient = {"lease_ttl_s": 900, "heartbeat_interval_s": 60}  # nobody sends heartbeats for them
    first = new_agent(about_node=patient)
    return first, new_agent(about_node=patient, capability=first.capability)


@pytest.fixture
def traffic(reach: Instance, agents: tuple[Agent, Agent]) -> Iterator[Traffic]:
    traffic = Traffic(reach, agents[0].capability)
    traffic.start()
    wait_until(lambda: len(traffic.made) >= 20, "there is traffic")
    yield traffic
    traffic.stop()


def id_of(page: Page) -> int:
    found = re.search(r"/routechange/(\d+)/change/", page.url)
    assert found, page.url
    return int(found[1])


def open_change(page: Page, reach: Instance, change: int) -> None:
    page.goto(f"{reach.url}/admin/routing/routechange/{change}/change/")


def cookie_post(page: Page, reach: Instance, path: str) -> int:
    """The status of a REST request with the session of somebody's browser."""
    held = {cookie["name"]: cookie["value"] for cookie in page.context.cookies()}
    headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in held.items())}
    return reach.request("POST", f"/api/v1/{path}", {}, headers=headers | {"X-CSRFToken": held["csrftoken"]}).status


def test_two_people_take_a_change_from_draft_to_revert(
    reach: Instance, agents: tuple[Agent, Agent], traffic: Traffic, signed_in: SignedIn, person: Person
) -> None:
    capability, (old, new) = agents[0].capability, (agent.service_id for agent in agents)
    reports, rest, title = f"reports-{old}", f"rest-{old}", f"Reports to {new}"  # nobody else's, a try before neither
    everything = {"op": "put", "id": rest, "match": {"capability": capability}, "priority": 1}
    everything["strategy"] = {"type": "exact", "service": old}
    publish(reach, person("rita", *AUTHORS)["key"], operations=[everything])
    wait_until(lambda: any(call.get("route_id") == rest for call in traffic.since(0)), "the route is in use")
    author, reviewer = signed_in("anna", *AUTHORS), signed_in("rita", *AUTHORS)

    # The author drafts a route with the form: the text follows.
    author.goto(f"{reach.url}/admin/routing/routechange/add/")
    author.fill("#id_title", title)
    author.get_by_role("button", name="New route").click()
    form = author.locator("[data-route-form]")
    form.locator('[data-at="id"]').fill(reports)
    form.locator('[data-at="priority"]').fill("9")
    assert form.locator('[data-capability="text"]').get_attribute("list") == "known-capabilities"
    assert author.locator(f'#known-capabilities option[value="{capability}"]').count() == 1
    assert author.locator(f'#known-services option[value="{new}"]').count() == 1
    form.locator('[data-capability="text"]').fill(capability)
    form.get_by_role("button", name="Add a condition").click()
    row = form.locator('[data-rows="conditions"] .reach-row')
    row.locator('[data-row="path"]').fill("kind")
    row.locator('[data-row="value"]').fill("report")
    form.locator('[data-at="strategy.type"]').select_option("exact")
    form.locator('[data-at="strategy.service"]').fill(new)
    text = author.locator("#id_text")
    expect(text).to_have_value(re.compile(rf"- id: {reports}\n.*input\.kind: report\n.*service: {new}\n", re.DOTALL))
    # …and with the text: the form follows.
    text.fill(text.input_value().replace("priority: 9", "priority: 11"))
    expect(form.locator('[data-at="priority"]')).to_have_value("11")
    author.get_by_role("button", name="Save and submit for review").click()
    expect(author.locator("#decide")).to_be_visible()
    change = id_of(author)

    # She has no button to approve it, and REST refuses her.
    expect(author.locator("#decide")).to_contain_text("nobody may approve their own route change")
    expect(author.get_by_role("button", name="Approve")).to_have_count(0)
    assert cookie_post(author, reach, f"route-changes/{change}/approve") == 403
    anna = person("anna")["key"]
    assert reach.request("POST", f"/api/v1/route-changes/{change}/approve", {}, key=anna).status == 403

    # The reviewer finds it in the inbox, sees what differs and what it would do, and approves.
    reviewer.goto(f"{reach.url}/admin/routing/routechange/inbox/")
    reviewer.get_by_role("link", name=title).click()
    expect(reviewer.locator("#impact")).to_contain_text("calls of the last day would move")
    expect(reviewer.locator('[data-chart="flow-options"] svg')).to_be_visible()
    expect(reviewer.locator('[data-chart="load-options"] svg')).to_be_visible()
    expect(reviewer.locator("#impact")).to_contain_text(f"{rest} → {old}")
    expect(reviewer.locator("#impact")).to_contain_text(f"{reports} → {new}")
    expect(reviewer.locator(".reach-edit ins").filter(has_text=f"always {new}")).to_be_visible()
    sample = reviewer.locator("#impact table a").first
    assert reviewer.request.get(reach.url + str(sample.get_attribute("href"))).status == 200
    reviewer.fill("#comment", "only reports, as meant")
    reviewer.get_by_role("button", name="Approve").click()
    expect(reviewer.locator("#decide")).to_contain_text("1 of 1 approvals")

    # The author publishes: dispatchers use it within two seconds, and no call fails.
    open_change(author, reach, change)
    author.get_by_role("button", name="Publish", exact=True).click()
    expect(author.locator("#watch")).to_be_visible()
    published_at = time.monotonic()  # the page came after it was live in this process
    wait_until(lambda: len(traffic.since(published_at + IN_USE_WITHIN_S)) > 10, "calls go on")
    assert traffic.ways(published_at + IN_USE_WITHIN_S) == {(reports, new)}
    wait_until(lambda: watched(reach, change), "the watch has counted calls")
    expect(author.locator("#watch")).to_contain_text(re.compile(r"[1-9]\d* calls?, 0\.0 % in trouble"))

    # The reviewer takes it back with one click and a reason; the author agrees; it is published.
    open_change(reviewer, reach, change)
    reviewer.fill("#revert-reason", "the new one moves house")
    reviewer.get_by_role("button", name="Revert").click()
    reviewer.wait_for_url(lambda url: f"/{change}/" not in url)
    undo = id_of(reviewer)
    expect(reviewer.locator(".reach-prose")).to_contain_text("the new one moves house")
    wait_for_impact(reach, f"/api/v1/route-changes/{undo}")
    open_change(author, reach, undo)
    author.get_by_role("button", name="Approve").click()
    open_change(reviewer, reach, undo)
    reviewer.get_by_role("button", name="Publish", exact=True).click()
    expect(reviewer.locator("#watch")).to_be_visible()
    reverted_at = time.monotonic()
    wait_until(lambda: len(traffic.since(reverted_at + IN_USE_WITHIN_S)) > 10, "calls go on")
    assert traffic.ways(reverted_at + IN_USE_WITHIN_S) == {(rest, old)}
    open_change(author, reach, change)
    expect(author.get_by_role("link", name=f"route change {undo}", exact=True)).to_be_visible()
    assert not traffic.failed, traffic.failed[:3]
    print(f"{len(traffic.made)} calls, none failed")


def watched(reach: Instance, change: int) -> bool:
    found = reach.request("GET", f"/api/v1/route-changes/{change}", key=reach.key).json["watch"]
    return bool(found["after"] and found["after"].get("", {}).get("calls"))


def test_a_robbed_route_has_to_be_acknowledged_on_the_page(
    reach: Instance, agents: tuple[Agent, Agent], signed_in: SignedIn, person: Person
) -> None:
    capability, (one, two) = agents[0].capability, (agent.service_id for agent in agents)
    specific = {"op": "put", "id": "reports", "match": {"capability": capability, "input.kind": "report"}}
    specific |= {"strategy": {"type": "exact", "service": one}, "priority": 50}
    general = {"op": "put", "id": "everything", "match": {"capability": capability}, "priority": 10}
    general["strategy"] = {"type": "exact", "service": two}
    publish(reach, person("rita", *AUTHORS)["key"], operations=[specific, general])
    for kind in ["report"] * 4 + ["email"] * 3:
        assert agents[0].call({"kind": kind}).status == 200
    base = reach.request("GET", "/api/v1/routes", key=reach.key).json["revision"]
    body = {"title": "upside down", "base_revision": base, "operations": [general | {"priority": 90}]}
    change = reach.request("POST", "/api/v1/route-changes", body, key=person("anna", *AUTHORS)["key"]).json["id"]
    reach.request("POST", f"/api/v1/route-changes/{change}/submit", {}, key=person("anna")["key"])

    # She opens it before anything is known, begins to write, and sees it come in.
    page = signed_in("rita", *AUTHORS)
    open_change(page, reach, change)
    page.fill("#comment", "hm")
    expect(page.locator("#impact")).to_contain_text(
        "reports loses all of its calls to everything: 4 calls of the sample."
    )
    expect(page.locator("#comment")).to_have_value("hm")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("alert")).to_contain_text("routes are shadowed: reports by everything (4 calls)")
    expect(page.locator("#comment")).to_have_value("hm")
    page.get_by_label("I have seen that 1 route loses calls to another").check()
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#history")).to_contain_text("knowing that these lose calls: reports")
    reach.request("POST", f"/api/v1/route-changes/{change}/withdraw", {}, key=person("anna")["key"])


# --- The editor ------------------------------------------------------------------------------------------------------


def test_mistakes_stand_at_their_field_and_nothing_is_lost(reach: Instance, signed_in: SignedIn) -> None:
    page = signed_in("anna", *AUTHORS)
    page.goto(f"{reach.url}/admin/routing/routechange/add/")
    page.fill("#id_title", "a mistake")
    page.get_by_role("button", name="New route").click()
    form = page.locator("[data-route-form]")
    form.locator('[data-capability="text"]').fill("Not A Name")
    place = form.locator('[data-place="match/capability"]')
    expect(place.locator(".reach-remark")).to_contain_text("is neither a capability's name")
    expect(place.locator("input")).to_have_attribute("aria-invalid", "true")
    remark = page.locator("[data-remarks] li").first
    expect(remark).to_contain_text(re.compile(r"line \d+ · route_2 · /routes/\d+/match/capability"))
    page.get_by_role("button", name="Save the draft").click()
    expect(page.locator("#id_title")).to_have_value("a mistake")
    expect(page.locator("[data-route-form] [data-capability=text]")).to_have_value("Not A Name")
    # A text that cannot be read: the form waits, and what was typed stays.
    text = page.locator("#id_text")
    good = text.input_value().replace("Not A Name", "a_name")
    text.fill(good + "\n  - id: [half")
    expect(page.locator("[data-unreadable]")).to_be_visible()
    expect(page.locator("[data-route-form]")).to_have_attribute("disabled", "")
    text.fill(good)
    expect(page.locator("[data-unreadable]")).to_be_hidden()
    expect(page.locator("[data-route-form] [data-capability=text]")).to_have_value("a_name")
    page.get_by_role("button", name="Save the draft").click()
    expect(page.locator("#decide")).to_be_visible()


def test_every_field_of_a_route_survives_the_form(reach: Instance, signed_in: SignedIn) -> None:
    """A route with everything in it is touched in the form: only what was touched differs."""
    route = """\
  - id: everything_in_it
    description: about it
    enabled: false
    priority: 7
    match:
      capability:
        fuzzy: summary of files
        min_score: 0.4
      caller:
        - scheduler
        - user:anna
      input.a.b:
        gte: 1
        lt: 9.5
      input.code: "5"
      input.flag: true
      input.kind:
        - x
        - a, b
        - 5
      labels.te.nant: emea
      tags:
        - prod
      urgency: bulk
    strategy:
      type: weighted_random
      weights:
        one: 3
        two: 1
    fallback_rules:
      - condition: error
        action: route_to
        service: three
      - condition: no_available_node
        action: return_503
        wait_before_retry_ms: 500
    node_tags:
      - gpu
    node_version: ">=1.4,<2"
    timeout_ms: 5000
    retry:
      max_retries: 1
      total_ms: 9000
    allow_callers:
      - scheduler
    canary:
      service: two
      percent: 2.5
      sticky_by: labels.te.nant
    mirror:
      service: three
      percent: 1
"""
    page = signed_in("anna", *AUTHORS)
    page.goto(f"{reach.url}/admin/routing/routechange/add/")
    text = page.locator("#id_text")
    text.fill("routes:\n" + route)
    page.locator(".reach-pick", has_text="everything_in_it").click()
    form = page.locator("[data-route-form]")
    form.locator('[data-at="description"]').fill("about it, touched")
    expect(text).to_have_value(re.compile("touched"))
    touched = text.input_value()
    form.locator('[data-at="description"]').fill("about it")
    expect(text).not_to_have_value(touched)
    assert load_text(text.input_value(), "shown") == load_text("routes:\n" + route, "written")


def test_the_editor_works_with_the_keyboard_and_on_a_small_screen(reach: Instance, signed_in: SignedIn) -> None:
    page = signed_in("anna", *AUTHORS, width=360, height=740, language="zh-CN", dark=True)
    for path in ("routechange/add/", "routechange/inbox/", "route/test/", "routechange/", "route/"):
        page.goto(f"{reach.url}/admin/routing/{path}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, (path, wide)
    page.goto(f"{reach.url}/admin/routing/routechange/add/")
    page.get_by_role("button", name="新建路由").focus()
    page.keyboard.press("Enter")
    expect(page.locator('[data-at="id"]')).to_be_focused()
    page.keyboard.type("by_keyboard")
    page.locator('[data-capability="text"]').focus()
    page.keyboard.type("a_name")
    page.locator('[data-add="services"]').focus()
    page.keyboard.press("Enter")
    page.keyboard.type("nobody-yet")
    expect(page.locator("#id_text")).to_have_value(re.compile(r"by_keyboard(.|\n)*nobody-yet"))
    expect(page.locator("[data-remarks]")).to_contain_text("没有注册过服务 'nobody-yet'")


# --- The tester ------------------------------------------------------------------------------------------------------


def test_a_call_is_tried_by_hand(reach: Instance, agents: tuple[Agent, Agent], signed_in: SignedIn) -> None:
    page = signed_in("anna", *AUTHORS)
    page.goto(f"{reach.url}/admin/routing/route/test/")
    page.fill("#id_capability", agents[0].capability)
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#verdict")).to_contain_text("Where it would go")
    expect(page.locator("#verdict")).to_contain_text(re.compile("/n1"))
