"""The trickle: a playlist of calls as a front desk would make them, over and over, with what can go wrong in it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from agent_reach import AsyncReachClient, ReachError

PAUSE_S = 0.75
SUMMARY_TIMEOUT_MS = 3_000


@dataclass(frozen=True)
class Scene:
    """One call, or several at the same moment."""

    capability: str
    payload: dict[str, Any]
    story: str
    user: str = "ana"
    timeout_ms: int | None = None
    at_once: int = 1


def asks(question: str, story: str, user: str = "ana") -> Scene:
    return Scene("report_question", {"question": question}, story, user)


def summary(file_path: str, content_type: str, story: str = "a summary") -> Scene:
    payload = {"file_path": file_path, "content_type": content_type}
    return Scene("file_summary", payload, story, timeout_ms=SUMMARY_TIMEOUT_MS)


def search(text: str, at_once: int = 1) -> Scene:
    return Scene(
        "docs_search", {"text": text}, "searches that meet at a node which takes one at a time", at_once=at_once
    )


FIRST = asks("weekly revenue by region", "a report question")
PLAYLIST = (
    FIRST,
    summary("README.md", "report"),
    search("who may approve a route change", at_once=3),
    asks("每周各渠道订单", "a report question, in Chinese"),
    summary("docs/calls.md", "code", "a long document, on the node with the slow disk"),
    asks("monthly margin by product", "a field that this user may not see", user="ben"),
    summary("README.zh-CN.md", "report"),
    search("没有节点可用时怎么办"),
    asks("top 5 customers by revenue", "a report question without anomalies", user="ben"),
    summary("docs/routes.md", "email", "a long document, on the node with the slow disk"),
    summary("docs/minutes-of-monday.md", "report", "a file that is not there"),
    asks("weekly quantity by region", "a report question"),
    search("what happens when the database is away", at_once=3),
    summary("docs/operations.md", "poem", "a payload that does not fit the schema"),
    summary("docs/operations.md", "email", "a long document, on the node with the slow disk"),
    asks("weekly revenue by product", "a report question", user="chen"),
    Scene("file_sumary", {"file_path": "README.md"}, "a capability that nobody has: misspelt"),
    summary("docs/configuration.md", "report"),
    asks("what is the meaning of life", "a question that cannot be understood"),
    Scene(
        "permission_check",
        {"user": "front-desk", "fields": ["margin"]},
        "a caller whom the capability does not allow",
    ),
)


@dataclass
class Traffic:
    """Plays the list until it is cancelled. `say` gets a line for the first call of each kind of ending."""

    reach: AsyncReachClient
    say: Callable[[str], object]
    endings: Counter[str] = field(default_factory=Counter)

    async def play(self) -> None:
        async with asyncio.TaskGroup() as at_work:
            for scene in cycle(PLAYLIST):
                for _ in range(scene.at_once):
                    at_work.create_task(self.call(scene))
                await asyncio.sleep(PAUSE_S)

    async def call(self, scene: Scene) -> None:
        """One call to its end, whatever that is."""
        try:
            options = {"labels": {"user": scene.user}, "timeout_ms": scene.timeout_ms}
            result = await self.reach.dispatch(scene.capability, scene.payload, **options)  # type: ignore[arg-type]
            call_id, ending, why = result.call_id, result.status, ""
            if result.attempts > 1:
                self.note("retried", call_id, scene.story, f"attempt {result.attempts} succeeded")
        except ReachError as exc:
            why = str(exc.upstream.get("message")) if exc.upstream else exc.detail
            call_id, ending = exc.call_id or "", await self.ending_of(exc)
        self.note(ending, call_id, scene.story, why)

    async def ending_of(self, exc: ReachError) -> str:
        """The status of the refused call; the code of the problem where there is no call."""
        if exc.call_id is None:
            return exc.code
        try:
            return (await self.reach.wait(exc.call_id, 0)).status
        except ReachError:
            return exc.code

    def note(self, ending: str, call_id: str, story: str, why: str) -> None:
        self.endings[ending] += 1
        if self.endings[ending] == 1:
            self.say(f"  first {ending:<10} agent-reach trace {call_id}   {story}{why and ': '}{why}")


def told(endings: Counter[str]) -> str:
    """How the calls ended, in a line."""
    retried = endings["retried"]
    ended = ", ".join(f"{many} {ending}" for ending, many in endings.most_common() if ending != "retried")
    return f"{endings.total() - retried} calls: {ended}" + (f"; {retried} after a retry" if retried else "")
