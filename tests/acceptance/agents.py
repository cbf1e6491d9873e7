"""Agents and callers of an instance: who registers, who calls, what the receipts tell afterwards."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlencode

from tests.acceptance.instance import Answer, Instance, wait_until
from tests.factories import a_capability
from tests.fakes import FakeNode

NewAgent = Callable[..., "Agent"]
numbers = count(1)

TERMINAL = {"succeeded", "failed", "timed_out", "cancelled", "rejected"}


@dataclass
class Agent:
    """A service with one node, at one instance."""

    reach: Instance
    node: FakeNode
    service_id: str
    node_id: str
    capability: str
    key: str
    signing_secret: str
    sample: Any
    """A payload that its schema takes."""

    def call(self, payload: Any = None, *, key: str | None = None, **fields: Any) -> Answer:
        """Ask the reach for this agent's capability."""
        return dispatch(self.reach, self.capability, payload, key=key, **fields)

    def post_receipt(self, call_id: str, *, key: str | None = None, **receipt: Any) -> Answer:
        """What a node has to say of an attempt."""
        body = {"attempt": 1, **receipt}
        return self.reach.request("POST", f"/api/v1/calls/{call_id}/receipts", body, key=key or self.key)

    def is_known_to(self, reach: Instance) -> bool:
        """Whether the dispatcher of that instance has seen it proven ready."""
        body = {"capability": self.capability, "payload": self.sample}
        explained = reach.request("POST", "/api/v1/dispatch/explain", body, key=reach.key).json
        return any(
            one["eligible"] and (one["service_id"], one["node_id"]) == (self.service_id, self.node_id)
            for one in explained["candidates"]
        )

    def leave(self) -> None:
        """Take the node out, where its instance still runs, and end it."""
        if self.reach.is_running:
            self.reach.request("DELETE", f"/api/v1/services/{self.service_id}/nodes/{self.node_id}", key=self.key)
        self.node.close()


def registered(
    reach: Instance,
    node: FakeNode,
    *,
    service_id: str | None = None,
    node_id: str = "n1",
    capability: str | None = None,
    about_node: dict[str, Any] | None = None,
    sample: Any = None,
    **offer: Any,
) -> Agent:
    """The node as a ready agent of that instance; what is not named gets a name that nobody else has."""
    number = next(numbers)
    service_id, capability = service_id or f"agent-{number}", capability or f"task_{number}"
    key = key_of(reach, service_id, "register", "dispatch")
    body = {"address": node.address, "capabilities": [a_capability(capability, **offer)], **(about_node or {})}
    answer = reach.request("PUT", f"/api/v1/services/{service_id}/nodes/{node_id}", body, key=key)
    assert answer.status in (200, 201), answer.body
    agent = Agent(reach, node, service_id, node_id, capability, key, answer.json["signing_secret"], sample or {})
    wait_until(lambda: agent.is_known_to(reach), f"{service_id} is ready")
    return agent


def key_of(reach: Instance, service_id: str, *scopes: str) -> str:
    """A new key of a service."""
    made = reach.request("POST", "/api/v1/keys", {"service_id": service_id, "scopes": list(scopes)}, key=reach.key)
    assert made.status == 201, made.body
    return made.json["key"]


def as_person(reach: Instance, name: str, *groups: str) -> str:
    """The key of a new user in these groups."""
    made = reach.manage("reach_user", "create", name, "--groups", ",".join(groups), "--with-key")
    return json.loads(made.stdout)["key"]


def dispatch(
    reach: Instance,
    capability: str,
    payload: Any = None,
    *,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Answer:
    """`POST /api/v1/dispatch`, as the operator unless `key` says otherwise."""
    body = {"capability": capability, "payload": {} if payload is None else payload, **fields}
    return reach.request("POST", "/api/v1/dispatch", body, key=key or reach.key, headers=headers)


def call_of(reach: Instance, call_id: str) -> dict[str, Any]:
    return reach.request("GET", f"/api/v1/calls/{call_id}", key=reach.key).json


def receipts_of(reach: Instance, call_id: str) -> list[dict[str, Any]]:
    return reach.request("GET", f"/api/v1/calls/{call_id}/receipts", key=reach.key).json["results"]


def kinds_of(reach: Instance, call_id: str) -> list[str]:
    return [receipt["kind"] for receipt in receipts_of(reach, call_id)]


def calls_where(reach: Instance, **filters: Any) -> list[dict[str, Any]]:
    """All calls that the list shows for these filters, page by page."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query = urlencode({"limit": 500, **filters, **({"cursor": cursor} if cursor else {})})
        page = reach.request("GET", f"/api/v1/calls?{query}", key=reach.key).json
        found += page["results"]
        if (cursor := page["next_cursor"]) is None:
            return found


def open_call(agent: Agent, **filters: Any) -> dict[str, Any]:
    """The call that the agent has at work."""
    return wait_until(
        lambda: next(iter(calls_where(agent.reach, capability=agent.capability, status="running", **filters)), None),
        f"a call of {agent.capability} is running",
    )


def publish(reach: Instance, approver_key: str, **proposal: Any) -> int:
    """Take a change of the live table through review to its publication; the new revision."""
    live = reach.request("GET", "/api/v1/routes", key=reach.key).json["revision"]
    body = {"title": "a change", "base_revision": live, **proposal}
    change = reach.request("POST", "/api/v1/route-changes", body, key=reach.key)
    assert change.status == 201, change.body
    path = f"/api/v1/route-changes/{change.json['id']}"
    for move, key in (("submit", reach.key), ("approve", approver_key), ("publish", reach.key)):
        if move == "approve":
            wait_for_impact(reach, path)
        moved = reach.request("POST", f"{path}/{move}", {"acknowledge": True} if move == "approve" else {}, key=key)
        assert moved.status == 200, moved.body
    return moved.json["published_revision"]


def wait_for_impact(reach: Instance, change: str) -> dict[str, Any]:
    """The impact of the change at this path, once a worker has analysed it."""

    def known() -> dict[str, Any] | None:
        impact = reach.request("GET", f"{change}/impact", key=reach.key).json
        return impact if impact["status"] == "ready" else None

    return wait_until(known, "the impact is known")


def submitted(agent: Agent, payload: Any = None, **fields: Any) -> str:
    """The id of a new asynchronous call."""
    answer = agent.call(payload, mode="async", **fields)
    assert answer.status == 202, answer.body
    return answer.json["call_id"]


def ended_call(reach: Instance, call_id: str, timeout_s: float = 30) -> dict[str, Any]:
    """The call, as soon as it has ended."""

    def ended() -> dict[str, Any] | None:
        found = reach.request("GET", f"/api/v1/calls/{call_id}/wait?timeout_s=1", key=reach.key).json
        return found if found["ended_at"] else None

    return wait_until(ended, f"call {call_id} ends", timeout_s)
