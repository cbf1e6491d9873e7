"""The console in the system's Chromium: `signed_in("mei", "operator")` is a page of a browser of her own.

Playwright's blocking interface keeps an event loop in this thread for as long as it runs. So it runs for one file at a
time, tests here are plain functions, and what needs a loop or the ORM has a thread or a process of its own.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.acceptance.conftest import new_agent, reach
from tests.acceptance.instance import Instance

__all__ = ["new_agent", "reach"]

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 30_000
"""Machines are shared: a page that takes longer than this is broken."""

Person = Callable[..., dict[str, str]]
SignedIn = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"))
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def person(reach: Instance) -> Person:
    """A user of the shared instance, made when first asked for: `person("mei", "operator")["key"]`."""
    known: dict[str, dict[str, str]] = {}

    def find(name: str, *groups: str) -> dict[str, str]:
        if name not in known:
            made = reach.manage("reach_user", "create", name, "--groups", ",".join(groups or ["viewer"]), "--with-key")
            known[name] = json.loads(made.stdout)
        return known[name]

    return find


@pytest.fixture
def signed_in(reach: Instance, person: Person, chromium: Browser) -> Iterator[SignedIn]:
    """Pages of people who are signed in, each in a browser context of its own.

    What a browser complains of fails the test: a script that the policy forbids, an exception, a missing file.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        refused_on_purpose = message.location["url"].endswith("/move/")
        if message.type == "error" and not refused_on_purpose:
            complaints.append(message.text)

    def make(
        name: str, *groups: str, language: str = "en-GB", width: int = 1280, height: int = 900, dark: bool = False
    ) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            locale=language,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", listen)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{reach.url}/admin/login/")
        page.fill("#id_username", name)
        page.fill("#id_password", person(name, *groups)["password"])
        page.press("#id_password", "Enter")
        page.wait_for_url(lambda url: "/login/" not in url)
        return page

    yield make
    for context in contexts:
        context.close()
    assert not complaints, complaints
