"""`make screenshots`: an instance of its own with sample agents and traffic, and pictures of its main pages.

    python docs/screenshots/take.py [FOLDER] [--dark] [--width N] [--only NAME…]

Every agent below answers at once; what fails, fails on purpose, so that the pages show more than success.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp import web
from PIL import Image
from playwright.async_api import Page, async_playwright

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from reach_project import embedded  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MOST_BYTES = 150_000
COLOURS = 256
START_TIMEOUT_S = 120
LANGUAGES = {"en-GB": "", "zh-CN": ".zh"}

Answer = Callable[[dict[str, Any]], Awaitable[web.Response]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="pictures of these pages, not of all")
    chosen = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("make screenshots needs Chromium: install it (apt-get install chromium) and try again")
    home = Path(tempfile.mkdtemp(prefix="reach-screenshots-"))
    os.chmod(home, 0o755)
    try:
        asyncio.run(take_all(home, browser, chosen))
    finally:
        embedded.remove(home)
        shutil.rmtree(home, ignore_errors=True)


async def take_all(home: Path, browser: str, chosen: argparse.Namespace) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "REACH_HOME": str(home), "REACH_PORT": str(port), "REACH_ENVIRONMENT": "staging", "REACH_DRAIN_S": "1",
        "REACH_ADVISE_INTERVAL_S": "5", "REACH_ADVISE_SAMPLE": "4000",
    }  # fmt: skip
    environment.pop("DATABASE_URL", None)
    manage = [sys.executable, str(CHECKOUT / "manage.py")]
    server = subprocess.Popen(
        [*manage, "reach_serve"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(url) as session:
            await ready(session, server)
            known = json.loads((home / "credentials.json").read_text())
            made = subprocess.run(
                [*manage, "reach_user", "create", "mei.lin", "--groups", "operator,approver", "--with-key"],
                env=environment, check=True, capture_output=True, text=True,
            )  # fmt: skip
            colleague = json.loads(made.stdout)
            sample = Sample(session, known["operator_key"], colleague["key"])
            await take_watching(url, browser, known, EMPTY, chosen, {"": (1440, False)})
            await sample.make()
            await sample.busy()
            subprocess.run([*manage, "shell", "-c", UP_SINCE_YESTERDAY], env=environment, check=True)
            await act(url, browser, known, sample)
            await take_watching(url, browser, known, await acting(sample), chosen, VARIANTS)
            await take_watching(url, browser, known, {"topology.wide": "/admin/topology/"}, chosen, {"": (2560, False)})
            reviews = await changes_of_every_kind(sample)
            await take_watching(url, browser, known, await watched(sample), chosen, VARIANTS)
            await take(url, browser, known, sample, chosen)
            await take_reviews(url, browser, colleague, reviews, chosen)
            await sample.leave()
    finally:
        server.terminate()
        server.wait()


async def ready(session: aiohttp.ClientSession, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit("the instance did not start; run `make run` to see why")
        try:
            async with session.get("/readyz") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.3)
    sys.exit(f"the instance was not ready within {START_TIMEOUT_S} s")


# --- Sample agents and traffic ---------------------------------------------------------------------------------------

TEXT = {"type": "string"}
SUMMARY = {
    "name": "file_summary",
    "version": "1.4.0",
    "description": "Summarises a document and names its keywords",
    "input": {
        "type": "object",
        "required": ["file_path", "content_type"],
        "properties": {"file_path": TEXT, "content_type": {"type": "string", "enum": ["report", "email", "code"]}},
    },
    "output": {"type": "object", "properties": {"summary": TEXT, "keywords": {"type": "array", "items": TEXT}}},
    "cost_level": "medium",
    "rate_limit": 50,
    "idempotent": True,
    "tags": ["documents"],
}

WIDER = {"input": {"type": "object", "required": ["file_path"], "properties": {"file_path": TEXT, "question": TEXT}}}


def capability(name: str, description: str, required: list[str], **more: Any) -> dict[str, Any]:
    properties = dict.fromkeys(required, TEXT)
    schema = {"type": "object", "required": required, "properties": properties}
    return {"name": name, "version": "1.0.0", "description": description, "input": schema, **more}


class Sample:
    """A handful of agents, and the calls that they and others make."""

    def __init__(self, session: aiohttp.ClientSession, operator_key: str, colleague_key: str):
        self.session, self.key, self.colleague_key = session, operator_key, colleague_key
        self.caller_key = ""
        self.runners: list[web.AppRunner] = []
        self.failing: set[str] = set()
        self.call_id = self.failed_call_id = self.order_path = ""

    async def make(self) -> None:
        self.caller_key = (await self.ask("POST", "keys", service_id="scheduler", scopes=["dispatch", "observe"]))[
            "key"
        ]
        report = capability("report_answer", "Answers a question about the figures", ["question"], cost_level="high")
        query = capability("data_query", "Runs a read-only SQL query", ["sql"], cost_level="low", idempotent=True)
        check = capability("permission_check", "Says which fields somebody may see", ["user"], timeout_tier="light")
        ticket = capability("ticket_create", "Records an anomaly", ["title"], allow_callers=["report-agent"])
        await self.agent("doc-summarizer", "a", [SUMMARY], self.summary, tags=["prod", "zone:a"], weight=100)
        await self.agent("doc-summarizer", "b", [SUMMARY], self.summary, tags=["prod", "zone:b"], weight=60)
        await self.agent("llm-light", "a", [SUMMARY | {"version": "0.9.1", "rate_limit": None, **WIDER}], self.summary)
        await self.agent("data-query", "a", [query], self.rows, tags=["prod"], max_concurrency=16)
        await self.agent("data-query", "b", [query], self.rows, tags=["prod"], max_concurrency=16)
        await self.agent("permission-check", "a", [check], self.rows)
        await self.agent("ticket-writer", "a", [ticket], self.rows)
        await self.agent("ticket-writer", "b", [ticket], self.rows, ready=False)
        await self.agent("report-agent", "a", [report], self.report, requires=["data_query", "chart_render"])
        await self.ask("PATCH", "services/data-query/nodes/b", admin_state="draining")
        await self.ask("PATCH", "services/doc-summarizer/nodes/b", weight=20)
        await self.routes()
        await self.traffic()

    async def agent(
        self, service: str, node: str, capabilities: list[Any], answer: Answer, *, ready: bool = True, **more: Any
    ) -> None:
        async def invoke(request: web.Request) -> web.Response:
            envelope = await request.json()
            return await answer(envelope | {"me": f"{service}/{node}", "my_key": self.colleague_key})

        async def readiness(_request: web.Request) -> web.Response:
            return web.json_response(
                {"ready": True} if ready else {"ready": False, "reason": "the mail server is away"}
            )

        app = web.Application()
        app.router.add_post("/reach/invoke", invoke)
        app.router.add_get("/reach/live", lambda _request: asyncio.sleep(0, web.Response()))
        app.router.add_post("/reach/ready", readiness)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.runners.append(runner)
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        body = {"address": address, "capabilities": capabilities, "lease_ttl_s": 600, "version": "1.4.2", **more}
        status = await self.ask("PUT", f"services/{service}/nodes/{node}", **body)
        while status["status"] == "starting":
            await asyncio.sleep(0.1)
            status = await self.ask("GET", f"services/{service}/nodes/{node}")

    async def summary(self, envelope: dict[str, Any]) -> web.Response:
        if envelope["me"] in self.failing:
            return web.json_response({"error": {"code": "model_away", "message": "no GPU is free"}}, status=503)
        await asyncio.sleep(0.15)
        return web.json_response({"output": {"summary": "Revenue grew by 12 % on …", "keywords": ["revenue", "Q3"]}})

    async def rows(self, envelope: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.06)
        payload = envelope["payload"]
        if "DROP" in str(payload):
            error = {"code": "refused", "message": "only SELECT is allowed", "retryable": False}
            return web.json_response({"error": error}, status=400)
        return web.json_response({"output": {"rows": [["north", 1280], ["south", 940]], "for": payload}})

    async def report(self, envelope: dict[str, Any]) -> web.Response:
        for name, payload in (
            ("permission_check", {"user": "u-17"}),
            ("data_query", {"sql": "SELECT region, sum(amount) FROM orders GROUP BY 1"}),
            ("ticket_create", {"title": "South is 27 % below plan"}),
        ):
            await self.dispatch(
                name, payload, key=self.report_key, parent_call_id=envelope["call_id"], trace_id=envelope["trace_id"]
            )
        return web.json_response({"output": {"answer": "North leads; a ticket was opened for South."}})

    async def routes(self) -> None:
        def rule(route_id: str, priority: int, match: dict[str, Any], strategy: dict[str, Any], **more: Any) -> Any:
            return {"id": route_id, "priority": priority, "match": match, "strategy": strategy, **more}

        routes = [
            rule(
                "summary_main_route", 90,
                {"capability": "file_summary", "tags": ["prod"], "input.content_type": "report"},
                {"type": "latency_aware", "services": ["doc-summarizer", "llm-light"]},
                description="Reports go to whoever is quickest",
            ),
            rule(
                "summary_general_route", 50, {"capability": "file_*"},
                {"type": "weighted_random", "weights": {"doc-summarizer": 40, "llm-light": 60}},
                fallback_rules=[
                    {"condition": "no_available_node", "action": "return_503", "wait_before_retry_ms": 500}
                ],
            ),
            rule(
                "queries_of_the_night", 20, {"capability": "data_query", "urgency": "bulk"},
                {"type": "least_loaded", "services": ["data-query"]}, enabled=False,
            ),
        ]  # fmt: skip
        title = "Reports to the quickest, the rest by weight"
        change = await self.ask("POST", "route-changes", title=title, base_revision=0, routes=routes)
        await self.ask("POST", f"route-changes/{change['id']}/submit")
        while (await self.ask("GET", f"route-changes/{change['id']}/impact"))["status"] != "ready":
            await asyncio.sleep(0.2)
        await self.ask("POST", f"route-changes/{change['id']}/approve", key=self.colleague_key, comment="Looks right")
        await self.ask("POST", f"route-changes/{change['id']}/publish")

    async def traffic(self) -> None:
        made = await self.ask("POST", "keys", service_id="report-agent", scopes=["dispatch"])
        self.report_key = made["key"]
        for number in range(14):
            payload = {"file_path": f"/reports/{number}.pdf", "content_type": "email" if number % 3 else "report"}
            await self.dispatch("file_summary", payload, tags=["prod"], labels={"tenant": "emea"})
        self.failing.add("doc-summarizer/a")
        self.failing.add("doc-summarizer/b")
        payload = {"file_path": "/reports/q3.pdf", "content_type": "report"}
        retried = [await self.dispatch("file_summary", payload, tags=["prod"]) for _ in range(8)]
        self.failing.add("llm-light/a")
        failed = await self.dispatch("file_summary", payload, tags=["prod"])
        self.failing.clear()
        await self.dispatch("file_summary", {"content_type": "poem"})
        await self.dispatch("unheard_of", {})
        await self.dispatch("ticket_create", {"title": "x"})
        await self.dispatch("data_query", {"sql": "DROP TABLE orders"})
        self.failed_call_id = failed["call_id"]
        twice = [answer["call_id"] for answer in retried if answer.get("attempts", 0) > 1]
        answer = await self.dispatch("report_answer", {"question": "How did Q3 go?"}, session_id="s-204")
        self.trace_call_id = answer["call_id"]
        self.call_id = twice[0] if twice else answer["call_id"]

    async def busy(self) -> None:
        """More callers, so that there is something to be seen of who calls whom and what fails."""
        keys = {}
        for caller in ("mail-watcher", "night-batch", "help-desk"):
            keys[caller] = (await self.ask("POST", "keys", service_id=caller, scopes=["dispatch"]))["key"]
        for number in range(24):
            file = {"file_path": f"/mail/{number}.eml", "content_type": "email"}
            await self.dispatch("file_summary", file, key=keys["mail-watcher"])
            sql = "SELECT count(*) FROM tickets" if number % 6 else "DROP TABLE tickets"
            await self.dispatch("data_query", {"sql": sql}, key=keys["night-batch"])
        for number in range(6):
            asked = {"question": f"How many tickets of week {number}?"}
            await self.dispatch("report_answer", asked, key=keys["help-desk"], session_id="s-205")
            await self.dispatch("file_summary", {"content_type": "poem"}, key=keys["help-desk"])
        self.failing |= {"doc-summarizer/a", "doc-summarizer/b", "llm-light/a"}
        for number in range(3):
            await self.dispatch("file_summary", {"file_path": f"/{number}.c", "content_type": "code"})
        self.failing.clear()

    async def dispatch(self, name: str, payload: Any, *, key: str | None = None, **more: Any) -> Any:
        body = {"capability": name, "payload": payload, **more}
        return await self.ask("POST", "dispatch", key=key or self.caller_key, may_fail=True, **body)

    async def ask(self, method: str, path: str, *, key: str | None = None, may_fail: bool = False, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        given = None if method == "GET" else body
        async with self.session.request(method, f"/api/v1/{path}", json=given, headers=headers) as answer:
            document = await answer.json(content_type=None)
            if answer.status >= 400 and not may_fail:
                sys.exit(f"{method} {path}: {answer.status} {document}")
            return document

    async def leave(self) -> None:
        for runner in self.runners:
            await runner.cleanup()


# --- Route changes ---------------------------------------------------------------------------------------------------


async def changes_of_every_kind(sample: Sample) -> dict[str, int]:
    """Changes at every stage, made of the traffic above: their ids by what they are good for."""
    for number in range(46):
        payload = {"file_path": f"/mail/{number}.eml", "content_type": "report" if number % 3 else "email"}
        await sample.dispatch("file_summary", payload, tags=["prod"], labels={"tenant": "emea"})
    routes = {route["id"]: route for route in (await sample.ask("GET", "routes"))["routes"]}

    async def propose(title: str, operations: list[Any], *moves: str, key: str | None = None, **more: Any) -> int:
        body = {"title": title, "base_revision": (await sample.ask("GET", "routes"))["revision"], **more}
        change = await sample.ask("POST", "route-changes", key=key, **body, operations=operations)
        for move in moves:
            while move == "approve" and (await impact(change["id"]))["status"] != "ready":
                await asyncio.sleep(0.2)
            other = sample.key if key else sample.colleague_key
            await sample.ask("POST", f"route-changes/{change['id']}/{move}", key=other if move == "approve" else key)
        return change["id"]

    async def impact(change: int) -> Any:
        return await sample.ask("GET", f"route-changes/{change}/impact")

    night = routes["queries_of_the_night"]
    canary = routes["summary_main_route"] | {"canary": {"service": "llm-light", "percent": 10, "sticky_by": "trace_id"}}
    published = await propose(
        "A tenth of the reports to the light model", [{"op": "put", **canary}], "submit", "approve", "publish",
        auto_revert=True,
    )  # fmt: skip
    for number in range(30):
        payload = {"file_path": f"/reports/{number}.pdf", "content_type": "report"}
        await sample.dispatch("file_summary", payload, tags=["prod"], labels={"tenant": "emea"})
    general = routes["summary_general_route"] | {"priority": 95}
    judged = await propose(
        "The general rule first", [{"op": "put", **general}, {"op": "delete", "id": night["id"]}], "submit",
        description="One rule for all summaries is easier to explain. Nobody has asked for the one of the night.",
    )  # fmt: skip
    await sample.ask(
        "POST", f"route-changes/{judged}/comment", key=sample.colleague_key, comment="Do the reports lose their own?"
    )
    await propose("Queries at night, again", [{"op": "put", **night, "enabled": True}], "submit")
    mine = sample.colleague_key
    await propose("Tickets may take longer", [TICKETS], "submit", "approve", key=mine)
    draft = await propose("Contracts have a route of their own", [CONTRACTS], key=mine)
    while (await impact(judged))["status"] != "ready":
        await asyncio.sleep(0.2)
    return {"published": published, "judged": judged, "draft": draft}


TICKETS = {
    "op": "put", "id": "tickets", "match": {"capability": "ticket_create"}, "strategy": {"type": "least_loaded"},
    "timeout_ms": 20_000,
}  # fmt: skip
CONTRACTS = {
    "op": "put", "id": "contracts", "priority": 95,
    "match": {"capability": "file_summary", "input.content_type": ["report", "email"], "labels.tenant": "legal"},
    "strategy": {"type": "weighted_random", "weights": {"doc-summarizer": 80, "llm-lite": 20}},
    "fallback_rules": [{"condition": "error", "action": "next_route"}],
}  # fmt: skip


# --- Acting ----------------------------------------------------------------------------------------------------------

EMPTY = {
    "overview.empty": "/admin/", "live.empty": "/admin/live/", "nodes.empty": "/admin/registry/node/",
    "services.empty": "/admin/registry/service/", "capabilities.empty": "/admin/registry/capability/",
    "topology.empty": "/admin/topology/", "dead-letters.empty": "/admin/dead-letters/",
    "advisories.empty": "/admin/routing/advisory/",
}  # fmt: skip
UP_SINCE_YESTERDAY = """
from datetime import timedelta
from registry.models import Node, StatusChange
for number, node in enumerate(Node.objects.order_by("service_id", "node_id")):
    known = list(StatusChange.objects.filter(node=node).order_by("pk"))
    bad = [(200 + 31 * number, "suspect"), (196 + 31 * number, "not_ready"), (150 + 31 * number, "ready")]
    drained = [(40 + number, "draining"), (30 + number, "ready")]
    spells = [(26 * 60, "ready"), *(bad if number % 3 == 1 else []), *(drained if number % 4 == 2 else [])]
    for minutes, status in spells:
        StatusChange.objects.create(node=node, at=known[0].at - timedelta(minutes=minutes), status=status)
    for one in known:  # again, so that they come after
        one.delete()
        one.pk = None
        one.save(force_insert=True)
"""
"""A history for the strips: the nodes of the sample are seconds old."""


async def act(url: str, browser: str, known: dict[str, str], sample: Sample) -> None:
    """What an operator does before the pictures: acknowledge an advisory, and order failed calls anew."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = await (await chromium.new_context(locale="en-GB")).new_page()
        await sign_in(page, url, known)
        await page.goto(f"{url}/admin/dead-letters/")
        await page.locator("tr", has_text="invalid_payload").locator("input[name=cause]").check()
        await page.click("form .reach-primary")
        await page.click("form .reach-primary")
        await page.wait_for_selector("[data-over]")
        sample.order_path = page.url.removeprefix(url)
        while True:
            await page.goto(f"{url}/admin/routing/advisory/")
            if await page.locator("#result_list tbody tr").count() > 1:
                break
            await page.wait_for_timeout(1000)
        await page.locator("#result_list tbody a[href*='/change/']").last.click()
        await page.click("button[value=acknowledge]")
        await page.fill("textarea[name=reason]", "Known: the second provider comes next month")
        await page.click("form .reach-primary")
        await chromium.close()


async def acting(sample: Sample) -> dict[str, str]:
    """The pages where operators act on nodes, services, capabilities and failures."""
    ids = {f"{one['service_id']}/{one['node_id']}": one for one in (await sample.ask("GET", "nodes"))["results"]}
    assert ids, "there are nodes to be seen"
    cause = urlencode({"cause": json.dumps(["upstream_error", "file_summary", "doc-summarizer"])})
    return {
        "nodes": "/admin/registry/node/",
        "node": "/admin/registry/node/?q=ticket-writer",
        "drain": "/admin/registry/node/?q=llm-light",
        "services": "/admin/registry/service/",
        "service": "/admin/registry/service/doc-summarizer/change/",
        "capabilities": "/admin/registry/capability/",
        "capability": "/admin/registry/capability/file_5Fsummary/change/",
        "try-it": "/admin/try/file_summary/",
        "topology": "/admin/topology/",
        "dead-letters": "/admin/dead-letters/",
        "dead-letters.again": f"/admin/dead-letters/again/?{cause}",
        "dead-letters.order": sample.order_path,
        "advisories": "/admin/routing/advisory/",
        "audit": "/admin/registry/auditevent/",
    }


# Where a picture is not of the page itself, but of one that it leads to: what is clicked, one after the other.
ON_THE_WAY = {"node": ["#result_list tbody a"], "drain": ["#result_list tbody a", "button[value=drain]"]}


async def sign_in(page: Page, url: str, person: dict[str, str]) -> None:
    await page.goto(f"{url}/admin/login/")
    await page.fill("#id_username", person["admin_username"])
    await page.fill("#id_password", person["admin_password"])
    await page.press("#id_password", "Enter")
    await page.wait_for_url(lambda address: "/login/" not in address)


# --- Watching --------------------------------------------------------------------------------------------------------

VARIANTS = {"": (1440, False), ".dark": (1440, True), ".narrow": (360, False)}
"""What a picture's name ends in → width, and whether it is dark."""


async def watched(sample: Sample) -> dict[str, str]:
    """The pages that show how calls go."""

    async def trace_of(call_id: str) -> str:
        return str((await sample.ask("GET", f"calls/{call_id}"))["trace_id"])

    return {
        "overview": "/admin/",
        "live": "/admin/live/",
        "waterfall": f"/admin/traces/{await trace_of(sample.trace_call_id)}/",
        "failure": f"/admin/traces/{await trace_of(sample.failed_call_id)}/",
    }


async def take_watching(
    url: str,
    browser: str,
    known: dict[str, str],
    pages: dict[str, str],
    chosen: argparse.Namespace,
    variants: dict[str, tuple[int, bool]],
) -> None:
    if not (pages := wanted(pages, chosen)):
        return
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for locale, suffix in LANGUAGES.items():
            for variant, (width, dark) in variants.items():
                context = await chromium.new_context(
                    viewport={"width": width, "height": 900}, locale=locale, reduced_motion="reduce",
                    color_scheme="dark" if dark else "light",
                )  # fmt: skip
                page = await context.new_page()
                page.on("console", lambda message: message.type == "error" and print("browser:", message.text))
                await sign_in(page, url, known)
                for name, path in pages.items():
                    await page.goto(url + path)
                    for selector in ON_THE_WAY.get(name, []):
                        await page.locator(selector).first.click()
                    await page.wait_for_load_state("networkidle")
                    height = await page.evaluate("Math.min(2400, document.documentElement.scrollHeight)")
                    await page.set_viewport_size({"width": width, "height": max(900, height)})
                    await page.wait_for_timeout(300)
                    save(await page.screenshot(), chosen.folder / f"{name}{suffix}{variant}.png")
                    await page.set_viewport_size({"width": width, "height": 900})
                await context.close()
        await chromium.close()


# --- Pictures --------------------------------------------------------------------------------------------------------


async def take(url: str, browser: str, known: dict[str, str], sample: Sample, chosen: argparse.Namespace) -> None:
    pages = {
        "calls": "/admin/receipts/call/",
        "call": f"/admin/receipts/call/{sample.failed_call_id}/change/",
        "trace": f"/admin/receipts/call/{sample.trace_call_id}/change/",
        "routes": "/admin/routing/route/",
    }
    pages = wanted(pages, chosen)
    if chosen.only and not pages:
        return
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for locale, suffix in LANGUAGES.items():
            context = await chromium.new_context(
                viewport={"width": chosen.width, "height": 900 if chosen.width > 600 else 860},
                locale=locale,
                color_scheme="dark" if chosen.dark else "light",
                reduced_motion="reduce",
            )
            page = await context.new_page()
            page.on("console", lambda message: message.type == "error" and print("browser:", message.text))

            async def shot(name: str, page: Page = page, suffix: str = suffix) -> None:
                await page.wait_for_load_state("networkidle")
                save(await page.screenshot(), chosen.folder / f"{name}{suffix}.png")

            await page.goto(url)
            await shot("start")
            await page.goto(f"{url}/admin/")
            await shot("login")
            await page.fill("#id_username", known["admin_username"])
            await page.fill("#id_password", known["admin_password"])
            await page.press("#id_password", "Enter")
            await page.wait_for_url("**/admin/")
            for name, path in pages.items():
                await page.goto(url + path)
                await shot(name)
            await context.close()
        await chromium.close()


REVIEW_VARIANTS = {"": (1440, False), ".dark": (1440, True), ".narrow": (400, False), ".narrow.dark": (400, True)}
"""What a picture's name ends in → width, and whether it is dark."""


async def take_reviews(
    url: str, browser: str, person: dict[str, str], reviews: dict[str, int], chosen: argparse.Namespace
) -> None:
    """The pages where changes are drafted and judged, whole, by somebody who may: light and dark, wide and narrow."""
    changes = "/admin/routing/routechange"
    pages = {
        "inbox": f"{changes}/inbox/",
        "change": f"{changes}/{reviews['judged']}/change/",
        "published": f"{changes}/{reviews['published']}/change/",
        "editor": f"{changes}/{reviews['draft']}/edit/",
        "tester": f"/admin/routing/route/test/?change={reviews['judged']}&capability=file_summary",
    }
    if not (pages := wanted(pages, chosen)):
        return
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for locale, suffix in LANGUAGES.items():
            for variant, (width, dark) in REVIEW_VARIANTS.items():
                context = await chromium.new_context(
                    viewport={"width": width, "height": 900}, locale=locale, reduced_motion="reduce",
                    color_scheme="dark" if dark else "light",
                )  # fmt: skip
                page = await context.new_page()
                page.on("console", lambda message: message.type == "error" and print("browser:", message.text))
                await page.goto(f"{url}/admin/login/")
                await page.fill("#id_username", person["username"])
                await page.fill("#id_password", person["password"])
                await page.press("#id_password", "Enter")
                await page.wait_for_url(lambda address: "/login/" not in address)
                for name, path in pages.items():
                    await page.set_viewport_size({"width": width, "height": 900})
                    await page.goto(url + path)
                    if name == "tester":
                        await page.fill("#id_payload", '{"file_path": "/q3.pdf", "content_type": "report"}')
                        await page.fill("#id_tags", "prod")
                        await page.click("main button, #content form .reach-primary")
                    await page.wait_for_load_state("networkidle")
                    height = await page.evaluate("document.documentElement.scrollHeight")
                    await page.set_viewport_size({"width": width, "height": max(900, height)})  # nothing sticks midway
                    await page.wait_for_timeout(300)
                    save(await page.screenshot(), chosen.folder / f"{name}{suffix}{variant}.png")
                await context.close()
        await chromium.close()


def wanted(pages: dict[str, str], chosen: argparse.Namespace) -> dict[str, str]:
    return {name: path for name, path in pages.items() if not chosen.only or name in chosen.only}


def save(picture: bytes, path: Path) -> None:
    """A small PNG: a palette is enough for pages without photographs, if it keeps the few dots of red and amber."""
    colours = COLOURS
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        image = Image.open(BytesIO(picture)).convert("RGB")
        image = image.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        image.save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES or colours <= 8:
            print(f"{path}  {path.stat().st_size // 1024} KiB")
            return
        colours //= 2


if __name__ == "__main__":
    main()
