"""Callers who ask without a pause, and what the registry and the receipts tell of it afterwards."""

import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from tests.acceptance.agents import Agent, calls_where, dispatch, receipts_of
from tests.acceptance.incidents.report import Report
from tests.acceptance.instance import Answer, Instance


class Callers:
    """So many threads, each asking `at` for a capability as soon as its last call is answered.

    The report counts the answers by the node that gave them, in columns that begin with `name`.
    """

    def __init__(
        self, at: Instance, capability: str, report: Report, *, threads: int = 6, name: str = "", **asked: Any
    ):
        self.at, self.capability, self.report, self.name, self.asked = at, capability, report, name, asked
        self.answers: list[Answer] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]

    def _ask(self) -> None:
        while not self._over.is_set():
            answer = dispatch(self.at, self.capability, **self.asked)
            self.answers.append(answer)
            by = answer.json["node_id"] if answer.status == 200 else str(answer.status)
            self.report.count(f"{self.name}{by}")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)


def epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def history_of(agent: Agent) -> list[dict[str, Any]]:
    """How the node's status has changed, oldest first."""
    path = f"/api/v1/services/{agent.service_id}/nodes/{agent.node_id}/history"
    return agent.reach.request("GET", path, key=agent.reach.key).json["results"][::-1]


def told(report: Report, agent: Agent) -> list[str]:
    """Put a node's history into the report; the statuses."""
    changes = history_of(agent)
    for change in changes:
        report.note(f"{agent.node_id} is {change['status']} {change['reason']}".strip(), epoch_s(change["at"]))
    return [change["status"] for change in changes]


def second_attempts(agent: Agent, kind: str, is_of: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The receipts of this kind that calls of the capability have which took more than one attempt, in time order."""
    calls = [call for call in calls_where(agent.reach, capability=agent.capability) if call["attempts"] > 1]
    found = [r | {"call_id": call["call_id"]} for call in calls for r in receipts_of(agent.reach, call["call_id"])]
    return sorted((r for r in found if r["kind"] == kind and is_of(r)), key=lambda receipt: receipt["at"])
