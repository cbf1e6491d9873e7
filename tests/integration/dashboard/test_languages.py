"""Every text of ours can be said in another language, and is said in Chinese.

The crawl gives every text of ours a pseudo translation, ⟦text⟧, walks through all pages, and looks for words outside
such brackets that nobody chose freely.
"""

import gettext as gnu
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from babel.messages.catalog import Catalog
from django.contrib.auth.models import User
from django.test import Client
from django.utils import translation
from django.utils.translation import trans_real

from dashboard.management.commands import reach_messages
from receipts.wording import PROBLEM
from registry.models import AuditEvent, Node
from routing.models import Advisory
from tests.integration.dashboard.sample import a_call

pytestmark = pytest.mark.django_db
IN_CHINESE = {"HTTP_ACCEPT_LANGUAGE": "zh-hans"}


def test_the_catalogue_is_complete_and_compiled() -> None:
    assert reach_messages.mistakes(reach_messages.up_to_date()) == []


def test_chinese_keeps_every_placeholder() -> None:
    holder = re.compile(r"%\((\w+)\)s|\{\}|</?\w+")
    for message in reach_messages.up_to_date():
        if message.id:
            said = message.string if isinstance(message.string, str) else message.string[0]
            plural = message.id if isinstance(message.id, str) else message.id[-1]
            assert sorted(holder.findall(said)) == sorted(holder.findall(plural)), message.id


@pytest.mark.parametrize(("path", "words"), [("/", "接下来的三步"), ("/admin/login/", "欢迎回到")])
def test_pages_speak_the_reader_s_language(client: Client, path: str, words: str) -> None:
    assert words in client.get(path, **IN_CHINESE).content.decode()


def test_the_language_is_switched_and_remembered(administrator: Client) -> None:
    administrator.post("/i18n/setlang/", {"language": "zh-hans", "next": "/admin/registry/node/"})
    assert "注册中心" in administrator.get("/admin/registry/node/").content.decode()


# --- The crawl -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pseudo_locale(tmp_path: Path, settings: Any) -> Iterator[None]:
    """Chinese whose texts of ours are ⟦…⟧; what Django says stays Chinese."""
    write_pseudo_locale(tmp_path)
    settings.LOCALE_PATHS = [tmp_path]
    forget_catalogues()
    yield
    forget_catalogues()
    translation.activate("en")


def write_pseudo_locale(path: Path) -> None:
    folder = path / "zh_Hans" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    pseudo = Catalog(locale="zh_Hans", fuzzy=False)
    for message in reach_messages.up_to_date():
        if message.id:
            told = message.id if isinstance(message.id, str) else message.id[-1]
            edges = re.fullmatch(r"(\s*)(.*?)(\s*)", told, re.DOTALL)
            assert edges
            said = f"{edges[1]}⟦{edges[2]}⟧{edges[3]}"
            pseudo.add(message.id, said if isinstance(message.id, str) else (said,), context=message.context)
    (folder / "django.mo").write_bytes(reach_messages.as_mo(pseudo))
    with (folder / "django.mo").open("rb") as file:
        assert gnu.GNUTranslations(file).gettext("Nodes") == "⟦Nodes⟧"


def forget_catalogues() -> None:
    trans_real._translations = {}  # type: ignore[attr-defined]


class Reader(HTMLParser):
    """What a page says to people: its text, and the attributes that are read out or shown."""

    SPOKEN = ("title", "placeholder", "aria-label", "alt", "data-label")
    SILENT = ("script", "style", "code", "pre", "textarea", "noscript")
    VOID = ("input", "br", "img", "meta", "link", "hr", "source", "path", "circle", "rect", "option", "wbr")

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.attributes: list[str] = []
        self.links: list[str] = []
        self.silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        if not self.silent:
            self.attributes += [given[name] for name in self.SPOKEN if given.get(name)]
            if tag == "input" and given.get("type") in ("submit", "button"):
                self.attributes.append(given.get("value", ""))
        is_icon = "material-symbols-outlined" in given.get("class", "").split()
        if tag not in self.VOID and (self.silent or tag in self.SILENT or is_icon):
            self.silent.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.silent and self.silent[-1] == tag:
            self.silent.pop()

    def handle_data(self, data: str) -> None:
        if not self.silent and data.strip():
            self.said.append(data.strip())


FREE = re.compile(
    r"""
    Agent-Reach | English | STAGING | staging | OpenAPI | CSS | JSON | UTC | REST | SHA-256 | /readyz
    | https?://\S+ | /reach/\w+ | k_\w+ | user:\w+ | node:\S+ | [0-9a-f]{8,} (?:-[0-9a-f]+)* | [\w-]+/[a-f]\b
    | route_change:\d+ | zh-hans | \ben\b | (?:GET|POST)[ ] | LDAP | Mac
    | \bp95\b | \b(?:Control|Command|esc)\b | \b[KMGT]B\b
    | (?:User-group|Group-permission)[ ]relationships?(?::[ ]\w+[ ]object)?
    """,
    re.VERBOSE,
)
"""Names of products and standards, ids, addresses: the same in every language.

Also keys of keyboards, and the names that Django itself gives to its join tables.
"""
DATA = {
    # what the sample's agents and people chose
    "doc", "summarizer", "llm", "scheduler", "file_summary", "summarises", "docs", "prod", "data_query", "gpu",
    "report", "ann", "ben", "olga", "root", "vera", "admin", "operator", "approver", "viewer", "first", "second",
    "third", "why", "fine", "later", "for", "page", "new", "example", "org", "unheard_of",
    # keys and values of audit rows, codes and words of the wire: shown as they are, in every language
    "address", "owner", "scopes", "dispatch", "observe", "register", "operate", "admin_state", "draining", "weight",
    "status", "reason", "digest", "title", "base_revision", "comment", "revision", "changed", "drain_s", "groups",
    "upstream_error", "no_available_node", "code", "kind", "succeeded", "action", "retry", "epoch", "route_id", "auto",
    "reach-http", "reach", "http", "live", "ready", "invoke", "normal", "error", "next_route", "fallback_rules",
    "registered_by", "file_", "file_path", "caller", "urgency", "tags", "labels", "input", "database", "broker",
    "snapshot", "user",
    "server", "disabled", "enabled", "not_ready", "s1", "i1", *PROBLEM, "allow_callers", "rate_limit",
    "max_concurrency", "timeout_ms", "worker", "beat", "make", "run", "manage", "py", "reach_serve", "p50", "p95",
    "p99", "curl", "message", "timed_out",
    # kinds of strategies, keys and units as routes are written
    "exact", "weighted_random", "latency_aware", "least_loaded", "cost_aware", "sticky", "fuzzy",
    "trace_id", "ms", "capability",
}  # fmt: skip


BETWEEN = "\x1f"


def untranslated(page: str) -> list[str]:
    """Words on a page that are neither ours in brackets, nor Chinese, nor somebody's data."""
    reader = Reader()
    reader.feed(page)
    found = []
    for text in outside_brackets(BETWEEN.join(reader.said + reader.attributes)).split(BETWEEN):
        rest = FREE.sub(" ", text)
        words = [word for word in re.findall(r"[A-Za-z][\w'’-]+", rest) if word not in DATA and not is_rule_part(word)]
        if words:
            found.append(f"{text!r}: {words}")
    return found


def outside_brackets(text: str) -> str:
    """What stands outside ⟦…⟧; one text may hold another, and tags."""
    while (shorter := re.sub(r"⟦[^⟦⟧]*⟧", " ", text)) != text:
        text = shorter
    return text


def is_rule_part(word: str) -> bool:
    """Names within the sample's routes: r0, input.kind …"""
    return bool(re.fullmatch(r"r\d|\w+'|kind|gone|one|ne|doc-summarizer|report-agent|reach-http", word))


def pages_from(client: Client, start: list[str]) -> Iterator[tuple[str, str]]:
    """Every page of the admin that links lead to."""
    seen, waiting = set(start), list(start)
    while waiting:
        path = waiting.pop()
        answer = client.get(path, follow=True)
        assert answer.status_code == 200, (path, answer.status_code)
        page = answer.content.decode()
        yield path, page
        reader = Reader()
        reader.feed(page)
        for link in reader.links:
            target = link.partition("#")[0]
            known = place_of(target)
            is_page = target.startswith("/admin/") and "logout" not in target and "export.csv" not in target
            if is_page and known not in seen:
                seen.add(known)
                waiting.append(target)


def place_of(target: str) -> str:
    """What is one page to the crawl: filters in all their combinations show nothing that each alone does not."""
    place, _mark, query = re.sub(r"[?&](p|o|_changelist_filters|e)=[^&]*", "", target).partition("?")
    asked = query.split("&")
    return place + "?" + (query if len(asked) < 2 else "&".join(sorted(one.partition("=")[0] for one in asked)))


def speak_chinese(client: Client) -> None:
    client.post("/i18n/setlang/", {"language": "zh-hans", "next": "/"})


def complaints(pages: Iterator[tuple[str, str]]) -> tuple[list[str], int]:
    found, many = [], 0
    for path, page in pages:
        many += 1
        found += [f"{path}: {text}" for text in untranslated(page)]
    return found, many


def test_no_page_of_a_reach_in_use_has_an_untranslated_text(
    administrator: Client, in_use: None, pseudo_locale: None
) -> None:
    speak_chinese(administrator)
    found, many = complaints(pages_from(administrator, ["/admin/", "/admin/auth/user/", "/admin/registry/"]))
    assert many > 60
    assert found == []


def test_no_empty_page_has_an_untranslated_text(administrator: Client, pseudo_locale: None) -> None:
    AuditEvent.objects.all().delete()
    speak_chinese(administrator)
    found, many = complaints(pages_from(administrator, ["/admin/", "/admin/registry/node/"]))
    assert many > 15
    assert found == []


ASKED_FIRST = ("give_weight_back", "drain", "disable", "enable", "probe_now")


def test_nothing_that_an_action_answers_is_untranslated(
    administrator: Client, in_use: None, pseudo_locale: None
) -> None:
    speak_chinese(administrator)
    a_call(90, capability="unheard_of", status="rejected", error='{"code": "unknown_capability", "detail": "d"}')
    node = Node.objects.order_by("pk")[0]
    here = f"/admin/registry/node/{node.pk}/change/"
    posts: list[tuple[str, dict[str, Any]]] = [
        ("/admin/registry/node/", {"action": verb, "_selected_action": node.pk, "index": 0, "next": path, **more})
        for verb, more in (
            ("set_weight", {}),
            ("set_weight", {"confirmed": 1, "weight": 9999}),
            ("set_weight", {"confirmed": 1, "weight": 7}),
            ("give_weight_back", {}),
            *((verb, more) for verb in ASKED_FIRST for more in ({}, {"confirmed": 1})),
            ("remove", {}),
            ("remove", {"confirmed": 1, "drain_s": 30}),
            ("drain", {}),
            ("", {}),
        )
        for path in ("", here)
    ]
    advisory = Advisory.objects.filter(resolved_at=None)[0]
    posts += [
        ("/admin/routing/advisory/", {"action": verb, "_selected_action": advisory.pk, "index": 0, **more})
        for verb, more in (
            ("acknowledge", {}),
            ("acknowledge", {"confirmed": 1, "reason": ""}),
            ("acknowledge", {"confirmed": 1, "reason": "later"}),
            ("take_back", {}),
            ("take_back", {}),
        )
    ]
    cause = json.dumps(["upstream_error", "file_summary", "doc-summarizer"])
    posts += [
        ("/admin/try/file_summary/", {}),
        ("/admin/try/file_summary/", {"raw": "1", "json": "{"}),
        ("/admin/try/file_summary/", {"raw": "1", "json": '{"file_path": "for"}', "timeout_s": "x"}),
        ("/admin/try/file_summary/", {"raw": "1", "json": '{"file_path": "for"}'}),
        ("/admin/dead-letters/again/", {}),
        ("/admin/dead-letters/again/", {"cause": cause}),
        ("/admin/dead-letters/again/", {"cause": cause, "risky": "1"}),
        ("/admin/registry/apikey/add/", {"service_id": "Bad Name", "scopes": []}),
        ("/admin/registry/apikey/add/", {"service_id": "report", "scopes": ["dispatch"], "lifetime": "30"}),
        ("/admin/auth/user/add/", {"username": "new", "password1": "1", "password2": "2"}),
    ]
    found = []
    for path, body in posts:
        answer = administrator.post(path, body, follow=True)
        assert answer.status_code in (200, 422)
        found += [f"{path} {body}: {text}" for text in untranslated(answer.content.decode())]
    assert found == []


def test_neither_the_first_page_nor_the_way_in_and_out_has_an_untranslated_text(
    client: Client, pseudo_locale: None
) -> None:
    speak_chinese(client)
    User.objects.create_user("olga", password="a long enough passphrase")
    pages = [
        client.get("/"),
        client.get("/admin/login/"),
        client.post("/admin/login/", {"username": "olga", "password": "wrong"}),
        client.post("/admin/login/", {"username": "olga", "password": "a long enough passphrase"}),
    ]
    assert [text for page in pages for text in untranslated(page.content.decode())] == []
