"""Evidence of the last day read from the database, and advisories kept as rows."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from receipts import retention
from routing import advisories
from routing.core.advisories import Advisory as Noticed
from routing.core.advisories import Kind
from routing.core.tables import Tables
from routing.models import Advisory
from tests.factories import a_node, an_offer, tables
from tests.integration.dashboard.sample import a_call
from tests.integration.dashboard.sample import a_node as registered_node

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)
TURN = timedelta(minutes=5)
NOTHING = Noticed(Kind.MANY_CHANGES, "", {"changes": 11, "most": 10})


@pytest.fixture
def two_services() -> Tables:
    """One narrow, one catch-all."""
    narrow = an_offer(input={"type": "object", "required": ["file_path"]})
    return tables(a_node("doc-summarizer", narrow), a_node("llm"))


def test_what_is_read_of_the_last_day(two_services: Tables, settings: Any) -> None:
    settings.REACH_ADVISE_SAMPLE = 24 * 5
    for number in range(8):
        a_call(number)
    big = json.dumps({"payload": "x" * advisories.PAYLOAD_BYTES, "urgency": "normal", "tags": []})
    a_call(20, request=big)
    refused = {"status": "rejected", "service_id": None, "node_id": None, "error": '{"code": "rate_limited"}'}
    a_call(21, **refused)
    registered_node("caller", requires=["weather"])
    found = advisories.gather(two_services, datetime.now(UTC))
    assert len(found.sample) == 5 - 1, "the newest of the hour, but what is too large"
    assert found.sample[0].payload == {"file_path": "/a"}
    assert {call.service_id for call in found.sample} == {"doc-summarizer", None}
    assert found.limited == {"file_summary": 1}
    assert found.requires == {"caller": {"weather"}}
    assert found.table_changes == 0
    assert advisories.gather(two_services, datetime.now(UTC) + timedelta(days=2)).sample == []


def test_two_schemas_that_take_the_same_calls_are_advised_and_told_by_rest(two_services: Tables) -> None:
    for number in range(6):
        a_call(number)
    now = datetime.now(UTC)
    assert [one.kind for one in advisories.look(two_services, now)] == [Kind.BOTH_ACCEPT]
    stranger = APIClient()
    assert stranger.get("/api/v1/advisories").status_code in (401, 403)
    [told] = observed("/api/v1/advisories")
    assert told["kind"] == "both_accept"
    assert told["message"].startswith(
        "doc-summarizer and llm declare different input schemas for file_summary, and both accept 6 of 6 sampled"
    )
    assert "distinct `required` fields" in told["remedy"]
    assert (told["resolved_at"], told["facts"]["calls"]) == (None, 6)
    assert observed("/api/v1/advisories?resolved=true") == []


def observed(path: str) -> list[dict[str, Any]]:
    from tests.integration.routing.conftest import a_person

    client = APIClient()
    client.force_login(a_person(f"viewer-{path[-4:]}", "viewer"))
    answer = client.get(path)
    assert answer.status_code == 200, answer.content
    return json.loads(answer.content)["results"]


def test_what_lasts_is_one_row_and_what_is_gone_is_resolved_after_a_while() -> None:
    def look(minutes: int, *found: Noticed) -> Advisory:
        advisories.keep(found, NOW + timedelta(minutes=minutes), gone_after=3 * TURN)
        return Advisory.objects.get()

    look(0, NOTHING)
    lasting = look(5, Noticed(Kind.MANY_CHANGES, "", {"changes": 12, "most": 10}))
    assert (lasting.first_seen_at, lasting.last_seen_at) == (NOW, NOW + TURN)
    assert lasting.facts["changes"] == 12
    assert look(20).resolved_at is None, "a sample may miss it once"
    assert look(25).resolved_at == NOW + timedelta(minutes=25)
    back = look(60, NOTHING)
    assert (back.first_seen_at, back.resolved_at) == (NOW + timedelta(minutes=60), None)


def test_resolved_ones_go_with_retention(settings: Any) -> None:
    settings.REACH_RETENTION_DAYS = 30
    long_ago = NOW - timedelta(days=31)
    for kind, resolved_at in ((Kind.TAKES_MOST, long_ago), (Kind.UNREACHED, None), (Kind.UNPROVIDED, NOW)):
        Advisory.objects.create(
            kind=kind, subject="s", first_seen_at=long_ago, last_seen_at=long_ago, resolved_at=resolved_at
        )
    assert retention.forget(NOW).deleted["advisories"] == 1
    assert set(Advisory.objects.values_list("kind", flat=True)) == {"unreached", "unprovided"}
    [shown] = [row for row in retention.stored(NOW) if row.kind.name == "advisories"]
    assert shown.oldest == NOW
