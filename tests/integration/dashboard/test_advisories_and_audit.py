"""Advisories are acknowledged with a reason; the audit log is filtered and exported."""

import asyncio
import csv
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.test import AsyncClient, Client

from registry.models import AuditEvent
from routing import advisories
from routing.core.advisories import Advisory as Noticed
from routing.core.advisories import Kind
from routing.models import Advisory
from tests.integration.dashboard.sample import a_person, advisories_of_every_kind

pytestmark = pytest.mark.django_db
ADVISORIES = "/admin/routing/advisory/"
AUDIT = "/admin/registry/auditevent/"


def page_of(page: str) -> str:
    """The list itself, without its filters."""
    return page.partition('id="result_list"')[2].partition("</table>")[0]


def act(client: Client, verb: str, *found: Advisory, **more: str) -> Any:
    body = {"action": verb, "index": "0", "_selected_action": [one.pk for one in found], **more}
    return client.post(ADVISORIES, body, follow=True)


@pytest.fixture
def advisory() -> Advisory:
    advisories_of_every_kind()
    return Advisory.objects.get(kind=Kind.TAKES_MOST)


def test_an_advisory_is_acknowledged_with_a_reason(operator: Client, advisory: Advisory) -> None:
    page = act(operator, "acknowledge", advisory).content.decode()
    assert 'name="reason"' in page and "One service takes most" in page
    assert "errors" in act(operator, "acknowledge", advisory, confirmed="1", reason=" ").content.decode()
    assert Advisory.objects.get(pk=advisory.pk).acknowledged_at is None
    act(operator, "acknowledge", advisory, confirmed="1", reason="the others are being built")
    advisory.refresh_from_db()
    assert (advisory.acknowledged_by, advisory.acknowledged_reason) == ("user:olga", "the others are being built")
    event = AuditEvent.objects.get(action="advisory.acknowledge")
    assert (event.target, event.detail["reason"]) == (f"advisory:{advisory.pk}", "the others are being built")
    page = operator.get(f"{ADVISORIES}{advisory.pk}/change/").content.decode()
    assert "the others are being built" in page and 'value="take_back"' in page and 'value="acknowledge"' not in page
    listed = [operator.get(ADVISORIES, {"state": state}).content.decode() for state in ("acknowledged", "stands")]
    assert ["One service takes most" in page_of(page) for page in listed] == [True, False]


def test_the_overview_is_silent_about_what_is_acknowledged(operator: Client, advisory: Advisory) -> None:
    assert "6 advisories stand" in operator.get("/admin/").content.decode()
    act(operator, "acknowledge", advisory, confirmed="1", reason="r")
    assert "5 advisories stand" in operator.get("/admin/").content.decode()


def test_an_acknowledgement_is_taken_back(operator: Client, advisory: Advisory) -> None:
    act(operator, "acknowledge", advisory, confirmed="1", reason="r")
    act(operator, "take_back", advisory)
    assert Advisory.objects.get(pk=advisory.pk).acknowledged_at is None
    assert AuditEvent.objects.filter(action="advisory.take_back").count() == 1


def test_what_was_gone_and_comes_back_asks_anew(operator: Client, advisory: Advisory) -> None:
    act(operator, "acknowledge", advisory, confirmed="1", reason="r")
    now = datetime.now(UTC)
    noticed = [Noticed(Kind.TAKES_MOST, advisory.subject, advisory.facts)]
    advisories.keep(noticed, now, gone_after=timedelta(minutes=5))
    assert Advisory.objects.get(pk=advisory.pk).acknowledged_at is not None, "as long as it lasts it stays so"
    advisories.keep([], now + timedelta(hours=1), gone_after=timedelta(minutes=5))
    advisories.keep(noticed, now + timedelta(hours=2), gone_after=timedelta(minutes=5))
    again = Advisory.objects.get(pk=advisory.pk)
    assert (again.resolved_at, again.acknowledged_at, again.acknowledged_reason) == (None, None, "")


def test_what_is_resolved_is_not_acknowledged(operator: Client, advisory: Advisory) -> None:
    resolved = Advisory.objects.exclude(resolved_at=None).get()
    act(operator, "acknowledge", resolved, confirmed="1", reason="r")
    assert Advisory.objects.get(pk=resolved.pk).acknowledged_at is None


@pytest.mark.parametrize("group", ["viewer", "approver"])
def test_others_cannot_acknowledge(as_person: Any, advisory: Advisory, group: str) -> None:
    client = as_person(group)
    act(client, "acknowledge", advisory, confirmed="1", reason="r")
    assert Advisory.objects.get(pk=advisory.pk).acknowledged_at is None
    assert 'value="acknowledge"' not in client.get(f"{ADVISORIES}{advisory.pk}/change/").content.decode()


# --- Audit log -------------------------------------------------------------------------------------------------------


def an_event(number: int, **fields: Any) -> AuditEvent:
    given = {
        "actor": "user:olga",
        "action": "change",
        "target": f"doc-summarizer/{number}",
        "detail": {"weight": number},
    }
    return AuditEvent.objects.create(**given | fields)


def rows(text: str) -> list[dict[str, str]]:
    assert text.startswith("\ufeff")
    return list(csv.DictReader(StringIO(text[1:])))


def exported(client: Client, **query: str) -> list[dict[str, str]]:
    """What a browser gets: the server is asynchronous, as in production."""
    browser = AsyncClient()
    browser.cookies = client.cookies

    async def get() -> str:
        answer: Any = await browser.get(f"{AUDIT}export.csv", query)
        assert answer.status_code == 200 and answer["Content-Type"].startswith("text/csv")
        assert "attachment" in answer["Content-Disposition"]
        return b"".join([part async for part in answer.streaming_content]).decode()

    return rows(asyncio.run(get()))


@pytest.mark.django_db(transaction=True)
def test_the_log_is_exported_with_its_filters(operator: Client) -> None:
    for number in range(3):
        an_event(number)
    an_event(9, actor="user:root", action="probe", target="=cmd()", detail={"词": "x"})
    told = exported(operator)
    assert [row["target"] for row in told][-4:] == ["'=cmd()", *(f"doc-summarizer/{n}" for n in (2, 1, 0))]
    assert told[-4]["detail"] == '{"词": "x"}' and told[-4]["who"] == "user:root"
    assert {row["action"] for row in exported(operator, did="change")} == {"change"}
    assert [row["target"] for row in exported(operator, who="user:root")] == ["'=cmd()"]
    assert len(exported(operator, q="doc-summarizer/1")) == 1
    assert AuditEvent.objects.filter(action="export audit log", actor="user:olga").count() == 4


@pytest.mark.django_db(transaction=True)
def test_an_export_is_bounded_and_read_in_parts(operator: Client, settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("registry.export.AT_ONCE", 2)
    for number in range(7):
        an_event(number)
    settings.REACH_EXPORT_ROWS = 5
    assert [row["target"] for row in exported(operator, did="change")] == [
        f"doc-summarizer/{n}" for n in (6, 5, 4, 3, 2)
    ]


def test_strangers_export_nothing(client: Client, as_person: Any) -> None:
    assert client.get(f"{AUDIT}export.csv").status_code == 302
    assert as_person(name="nobody").get(f"{AUDIT}export.csv").status_code == 403


def test_the_log_is_filtered_by_person_and_time(viewer: Client) -> None:
    a_person("root")
    old = an_event(1, actor="user:root")
    AuditEvent.objects.filter(pk=old.pk).update(at=datetime(2026, 1, 2, 3, tzinfo=UTC))
    an_event(2)
    page = viewer.get(AUDIT, {"who": "user:root"}).content.decode()
    assert "doc-summarizer/1" in page and "doc-summarizer/2" not in page
    span = {"at_from_0": "2026-01-01", "at_from_1": "00:00", "at_to_0": "2026-01-03", "at_to_1": "00:00"}
    page = viewer.get(AUDIT, span).content.decode()
    assert "doc-summarizer/1" in page and "doc-summarizer/2" not in page
    assert "export.csv?at_from_0=2026-01-01" in page
    page = viewer.get(AUDIT, {"at_to_0": "2026-01-02"}).content.decode()
    assert "doc-summarizer/1" in page and "doc-summarizer/2" not in page
    assert "doc-summarizer/2" in viewer.get(AUDIT, {"at_from_0": "32.13.", "at_from_1": "x"}).content.decode()
