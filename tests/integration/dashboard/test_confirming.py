"""Before an operator's verb is done, a page says which calls go where."""

from typing import Any

import pytest
from django.test import Client

from registry.core.node import Health
from registry.models import AuditEvent, Node
from tests.integration.dashboard.sample import SUMMARY, a_call, a_node

pytestmark = pytest.mark.django_db
NODES = "/admin/registry/node/"


def a_ready_node(service_id: str, node_id: str, **body: Any) -> Node:
    node = a_node(service_id, node_id, **body)
    Node.objects.filter(pk=node.pk).update(health=Health.READY, health_reason="")
    return node


def asked(client: Client, verb: str, *nodes: Node) -> str:
    body = {"action": verb, "index": "0", "_selected_action": [node.pk for node in nodes]}
    answer = client.post(NODES, body)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("verb", ["drain", "enable", "disable", "set_weight", "give_weight_back", "probe_now"])
def test_nothing_is_done_before_it_is_confirmed(operator: Client, verb: str) -> None:
    node = a_ready_node("doc-summarizer", "a")
    before = Node.objects.values().get()
    page = asked(operator, verb, node)
    assert 'name="confirmed"' in page and "doc-summarizer/a" in page
    assert Node.objects.values().get() == before
    assert not AuditEvent.objects.exists()


def test_a_drain_says_who_is_left(operator: Client) -> None:
    first, _second = a_ready_node("doc-summarizer", "a"), a_ready_node("doc-summarizer", "b")
    a_ready_node("llm", "x", capabilities=[SUMMARY, SUMMARY | {"name": "other"}])
    page = asked(operator, "drain", first)
    assert "2: " in page and "doc-summarizer/b" in page and "llm/x" in page
    assert "nobody" not in page


@pytest.mark.parametrize("verb", ["drain", "disable", "remove"])
def test_what_is_lost_is_said_first_and_loudly(operator: Client, verb: str) -> None:
    node = a_ready_node("doc-summarizer", "a", capabilities=[SUMMARY, SUMMARY | {"name": "a_shared_one"}])
    a_ready_node("llm", "x", capabilities=[SUMMARY | {"name": "a_shared_one"}])
    page = asked(operator, verb, node)
    assert "callers get 503" in page
    assert page.index("<td>file_summary</td>") < page.index("<td>a_shared_one</td>")


def test_a_weight_stands_beside_the_others(operator: Client) -> None:
    node = a_ready_node("doc-summarizer", "a", weight=300)
    a_ready_node("doc-summarizer", "b", weight=100)
    page = asked(operator, "set_weight", node)
    assert "75 %" in page and "25 %" in page


def test_the_calls_that_will_move_are_counted(operator: Client) -> None:
    node = a_ready_node("doc-summarizer", "a")
    for number in range(3):
        a_call(number)
    page = asked(operator, "drain", node)
    assert "3 calls in the last hour, 100 % of its service" in page
