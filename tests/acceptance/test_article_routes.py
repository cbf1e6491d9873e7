"""The article's printed routes, loaded as written, behave as the article says."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.agents import Agent, NewAgent, dispatch, publish, wait_for_impact
from tests.acceptance.instance import Instance
from tests.acceptance.test_errors import leaves_a_call, problem_of
from tests.factories import SUMMARY_INPUT, SUMMARY_OUTPUT
from tests.fakes import answers

DATA = Path(__file__).resolve().parents[1] / "data"
PRINTED = ("summary_routes.yaml", "summary_routes_nested_fallback.yaml")


def explained(reach: Instance, content_type: str) -> dict[str, Any]:
    body = {"capability": "file_summary", "payload": {"content_type": content_type}}
    answer = reach.request("POST", "/api/v1/dispatch/explain", body, key=reach.key)
    assert answer.status == 200
    return answer.json


@pytest.fixture
def summarizers(reach: Instance, new_agent: NewAgent) -> dict[str, Agent]:
    """The article's two services, with its schemas."""
    return {
        name: new_agent(
            answers({"summary": name, "keywords": []}),
            service_id=name,
            capability="file_summary",
            input=SUMMARY_INPUT,
            output=SUMMARY_OUTPUT,
            sample={"content_type": "code"},
        )
        for name in ("doc-summarizer", "llm-light")
    }


@pytest.fixture(params=PRINTED, ids=["fallback for all", "fallback of its own"])
def printed(request: pytest.FixtureRequest, reach: Instance, colleague_key: str) -> Iterator[int]:
    """The live table is the article's 4.3, as it stands in the file; the empty one afterwards."""
    table = yaml.safe_load((DATA / request.param).read_text())
    yield publish(reach, colleague_key, **table)
    publish(reach, colleague_key, routes=[])


def test_the_special_route_is_never_robbed_by_the_general_one(
    reach: Instance, summarizers: dict[str, Agent], printed: int
) -> None:
    reports = [dispatch(reach, "file_summary", {"content_type": "report"}) for _ in range(40)]
    assert {(a.status, a.json["route_id"], a.json["table_revision"]) for a in reports} == {
        (200, "summary_main_route", printed)
    }
    assert {a.json["service_id"] for a in reports} <= set(summarizers)
    why = explained(reach, "report")
    assert why["matched_routes"] == ["summary_main_route", "summary_general_route"]
    assert why["strategy"] == "latency_aware"


def test_everything_else_is_parted_by_weight(reach: Instance, summarizers: dict[str, Agent], printed: int) -> None:
    why = explained(reach, "email")
    assert (why["matched_routes"], why["route_id"]) == (["summary_general_route"], "summary_general_route")
    shares = {c["service_id"]: c["share"] for c in why["candidates"] if c["eligible"]}
    assert shares == {"doc-summarizer": 0.4, "llm-light": 0.6}
    told = [dispatch(reach, "file_summary", {"content_type": "email"}) for _ in range(120)]
    assert {a.json["route_id"] for a in told} == {"summary_general_route"}
    share = Counter(a.json["service_id"] for a in told)["doc-summarizer"] / len(told)
    assert 0.2 < share < 0.6  # 0.4 with a deviation of 0.045: outside once in 10^5 runs


def test_with_no_node_left_the_fallback_answers_503(
    reach: Instance, summarizers: dict[str, Agent], printed: int, request: pytest.FixtureRequest
) -> None:
    for agent in summarizers.values():
        path = f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}"
        assert reach.request("PATCH", path, {"admin_state": "disabled"}, key=reach.key).status == 200
    answer = dispatch(reach, "file_summary", {"content_type": "email"})
    problem = leaves_a_call(reach, answer, 503, "no_available_node", "rejected")
    assert (problem["retry_after_ms"], answer.headers["Retry-After"]) == (500, "1")
    for agent in summarizers.values():
        path = f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}"
        reach.request("PATCH", path, {"admin_state": "enabled"}, key=reach.key)
    assert dispatch(reach, "file_summary", {"content_type": "email"}).status == 200


def test_a_song_fits_no_schema(reach: Instance, summarizers: dict[str, Agent], printed: int) -> None:
    leaves_a_call(reach, dispatch(reach, "file_summary", {"content_type": "song"}), 422, "invalid_payload", "rejected")


def test_what_is_left_of_2_3_is_a_table(reach: Instance, colleague_key: str, new_agent: NewAgent) -> None:
    agent = new_agent(capability="data_query", about_node={"tags": ["prod"]})
    table = yaml.safe_load((DATA / "data_query_route.yaml").read_text())
    publish(reach, colleague_key, routes=table["routes"])
    try:
        assert dispatch(reach, "data_query", tags=["prod", "eu"]).json["route_id"] == "data_query_route"
        untagged = dispatch(reach, "data_query")
        assert (untagged.json["route_id"], untagged.json["service_id"]) == ("auto", agent.service_id)
    finally:
        publish(reach, colleague_key, routes=[])


# --- Four eyes, by HTTP ----------------------------------------------------------------------------------------------


def proposed(reach: Instance, base: int) -> str:
    body = {"title": "t", "base_revision": base, "routes": []}
    return f"/api/v1/route-changes/{reach.request('POST', '/api/v1/route-changes', body, key=reach.key).json['id']}"


def test_the_author_may_not_approve(reach: Instance, colleague_key: str) -> None:
    live = reach.request("GET", "/api/v1/routes", key=reach.key).json["revision"]
    path = proposed(reach, live)
    assert reach.request("POST", f"{path}/submit", {}, key=reach.key).status == 200
    problem_of(reach.request("POST", f"{path}/approve", {}, key=reach.key), 403, "forbidden")
    wait_for_impact(reach, path)
    assert reach.request("POST", f"{path}/approve", {}, key=colleague_key).json["status"] == "approved"
    assert reach.request("POST", f"{path}/withdraw", {}, key=reach.key).json["status"] == "withdrawn"


def test_publishing_on_a_moved_base_is_a_conflict(reach: Instance, colleague_key: str) -> None:
    live = reach.request("GET", "/api/v1/routes", key=reach.key).json["revision"]
    path = proposed(reach, live)
    assert reach.request("POST", f"{path}/submit", {}, key=reach.key).status == 200
    wait_for_impact(reach, path)
    assert reach.request("POST", f"{path}/approve", {}, key=colleague_key).status == 200
    publish(reach, colleague_key, routes=[])
    problem_of(reach.request("POST", f"{path}/publish", {}, key=reach.key), 409, "conflict")
