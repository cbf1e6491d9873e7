from urllib.parse import urlencode

import pytest

pytestmark = pytest.mark.django_db

NODE_FIELDS = {
    "service_id", "node_id", "address", "weight", "admin_state", "tags", "version", "protocol", "status",
    "status_reason", "status_since", "registered_at", "last_heartbeat_at", "lease_expires_at",
    "in_flight", "capabilities",
}  # fmt: skip


def test_a_node_is_shown_as_the_contract_says(agent):
    agent.register()
    [shown] = agent("GET", "nodes").json()["results"]
    assert shown.keys() >= NODE_FIELDS
    assert shown["status_reason"]
    assert agent("GET", "services/doc-summarizer/nodes/n1").json() == shown | {"last_probe": None}
    [service] = agent("GET", "services").json()["results"]
    assert (service["service_id"], service["nodes"]) == ("doc-summarizer", [shown])
    assert agent("GET", "services/doc-summarizer").json() == service


def test_lists_come_in_pages(agent):
    for number in range(5):
        agent.register(f"doc-summarizer/nodes/n{number}")
    seen, cursor = [], ""
    while cursor is not None:
        answer = agent("GET", f"nodes?limit=2&cursor={cursor}").json()
        seen.append([node["node_id"] for node in answer["results"]])
        cursor = answer["next_cursor"]
    assert seen == [["n0", "n1"], ["n2", "n3"], ["n4"]]


@pytest.mark.parametrize("path", ["nodes", "services", "capabilities", "keys"])
@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=501", "limit=x", "limit=-1", "cursor=x", "cursor=WyJhIl0xx", "cursor=W10", "cursor=bnVsbA"],
)
def test_pages_that_cannot_be(operator, path, query):
    answer = operator("GET", f"{path}?{query}")
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["path"] == "/" + query.partition("=")[0]


def test_keys_come_in_pages_newest_first(operator, as_service):
    for number in range(3):
        as_service(f"s{number}")
    seen, cursor = [], ""
    while cursor is not None:
        answer = operator("GET", f"keys?limit=1&cursor={cursor}").json()
        seen += [key["service_id"] or key["username"] for key in answer["results"]]
        cursor = answer["next_cursor"]
    assert seen == ["s2", "s1", "s0", "olga"]


def test_what_is_not_there_is_404(agent):
    for path in ("services/nobody", "capabilities/nothing", "services/doc-summarizer/nodes/n9"):
        answer = agent("GET", path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_capabilities_name_their_providers_with_each_one_s_schemas(agent, as_service):
    agent.register()
    wider = {"name": "file_summary", "input": {"type": "object"}}
    as_service("llm-light").register("llm-light/nodes/a", capabilities=[wider])
    shown = agent("GET", "capabilities/file_summary").json()
    assert [p["service_id"] for p in shown["providers"]] == ["doc-summarizer", "llm-light"]
    assert shown["providers"][0]["input"]["required"] == ["content_type"]
    assert shown["providers"][1]["input"] == {"type": "object"}


def test_a_capability_stays_known_without_a_provider(agent):
    agent.register()
    agent("DELETE", "services/doc-summarizer/nodes/n1")
    assert agent("GET", "capabilities/file_summary").json()["providers"] == []


def test_capabilities_are_found_by_name_description_and_tags_best_first(agent):
    agent.register(
        capabilities=[
            {"name": "translate", "description": "Translates a summary"},
            {"name": "file_summary", "description": "Kurzfassung einer Datei"},
            {"name": "summary", "tags": ["text"]},
            {"name": "weather", "description": "天气 预报"},
        ]
    )

    def found(words):
        return [c["name"] for c in agent("GET", f"capabilities?{urlencode({'q': words})}").json()["results"]]

    assert found("summary") == ["summary", "file_summary", "translate"]
    assert found("file summary") == ["file_summary"]
    assert found("text") == ["summary"]
    assert found("天气") == ["weather"]
    assert found("nothing") == []
    assert len(found("")) == 4


def test_reading_needs_observe(as_service, anybody):
    registers = as_service("doc-summarizer", "register", "dispatch")
    for path in ("nodes", "services", "services/x", "capabilities", "capabilities/x", "services/x/nodes/y"):
        assert registers("GET", path).status_code == 403
        assert anybody("GET", path).status_code == 401
