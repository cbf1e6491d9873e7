"""What scripts write into pages is translated, too: the pages of a running reach in a language of brackets.

The crawl of all pages, without a browser, is `tests/integration/dashboard/test_languages.py`.
"""

import json
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from tests.acceptance.agents import dispatch, registered
from tests.acceptance.instance import Instance
from tests.browser.test_console import many
from tests.fakes import FakeNode, answers, fails, in_turn
from tests.integration.dashboard.test_languages import untranslated, write_pseudo_locale


@pytest.fixture(scope="module")
def bracketed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    locale = tmp_path_factory.mktemp("locale")
    write_pseudo_locale(locale)
    environment = {"DJANGO_SETTINGS_MODULE": "tests.browser.pseudo_settings", "REACH_PSEUDO_LOCALE": str(locale)}
    instance = Instance(tmp_path_factory.mktemp("bracketed") / "home", environment)
    try:
        yield instance.start()
    finally:
        instance.remove()


@pytest.fixture
def page(bracketed: Instance, chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(locale="zh-CN", reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{bracketed.url}/admin/login/")
    page.fill("#id_username", bracketed.credentials["admin_username"])
    page.fill("#id_password", bracketed.credentials["admin_password"])
    page.press("#id_password", "Enter")
    page.wait_for_url(lambda url: "/login/" not in url)
    yield page
    context.close()


@pytest.mark.timeout(300)  # many pages, and others use this machine, too
def test_no_page_has_an_untranslated_text(bracketed: Instance, page: Page) -> None:
    node = FakeNode(in_turn(answers({"report": 1}), fails(500, "error", "first")))
    named = {"service_id": "doc-summarizer", "node_id": "a", "capability": "file_summary"}
    agent = registered(bracketed, node, **named, description="summarises")
    failed = [agent.call().json for _ in range(3)][-1]
    dispatch(bracketed, "unheard_of")
    try:
        page.goto(f"{bracketed.url}/admin/")
        paths = page.eval_on_selector_all("nav a, aside a, #nav-sidebar a, a", "links => links.map(a => a.pathname)")
        paths = sorted({path for path in paths if path.startswith("/admin/") and "logout" not in path})
        assert len(paths) > 12
        found = []
        cause = urlencode({"cause": json.dumps(["upstream_error", "file_summary", "doc-summarizer"])})
        for path in [
            *paths,
            f"/admin/traces/{failed['trace_id']}/",
            f"/admin/receipts/call/{failed['call_id']}/change/",
            "/admin/registry/service/doc-summarizer/change/",
            "/admin/registry/capability/file_5Fsummary/change/",
            "/admin/try/file_summary/",
            "/admin/topology/?focus=doc-summarizer",
            f"/admin/dead-letters/again/?{cause}",
        ]:
            page.goto(bracketed.url + path)
            page.wait_for_load_state("networkidle")
            found += [f"{path}: {text}" for text in untranslated(page.content())]
        assert not found, "\n".join(found)
    finally:
        agent.leave()


def test_nothing_that_a_live_page_says_is_untranslated(bracketed: Instance, page: Page) -> None:
    sockets: list[WebSocketRoute] = []
    page.route_web_socket(re.compile("/ws/calls$"), lambda socket: sockets.append(socket))
    page.goto(f"{bracketed.url}/admin/live/")
    tools = page.locator("#live-tools")
    expect(tools).to_contain_text("⟦Live⟧")
    for _ in range(5):
        sockets[0].send(many(20, 300).replace("storm", "file_summary"))
    expect(tools).to_contain_text("⟦showing 1 of")
    said = [page.content()]
    page.click("#live-pause")
    sockets[0].send(many(5, 0).replace("storm", "file_summary"))
    expect(tools).to_contain_text("waiting⟧")
    said.append(page.content())
    sockets[0].close(code=1012)
    expect(page.locator(".reach-gap")).to_be_visible()
    said.append(page.content())
    sockets[1].close(code=4403)
    expect(tools).to_contain_text("⟦You may not watch")
    said.append(page.content())
    found = [text for one in said for text in untranslated(one)]
    assert not found, "\n".join(found)
