"""Finds the paragraph that answers best. Each node can do one search at a time, and says "not now" to a second one.

Like many an agent it does not declare that as its `max_concurrency`: what nobody has declared is met by retries.
"""

import sys
import threading
import time
from typing import Any

from agent_reach import AgentClient, Capability, Refuse, ThreadContext

from demo import documents, summaries

PAUSE_S = 0.01  # between two documents: a search must not starve the machine

searching = threading.Lock()

client = AgentClient("docs-search", node_id=sys.argv[1])
client.register_capability(
    Capability(
        name="docs_search",
        description="The paragraph of the documentation that shares most words with a question",
        input_schema={
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "minLength": 2}},
            "additionalProperties": False,
        },
        output_schema={"type": "object", "required": ["file_path", "sentence"]},
        timeout_tier="light",
        idempotent=True,
    )
)


@client.handle("docs_search")
def docs_search(payload: dict[str, Any], ctx: ThreadContext) -> dict[str, Any]:
    if not searching.acquire(blocking=False):
        raise Refuse("a search is under way here")
    try:
        return best_sentence(payload["text"])
    finally:
        searching.release()


def best_sentence(text: str) -> dict[str, Any]:
    wanted = set(summaries.terms(text))
    best = (0, "", "")
    for file_path in documents.every():
        for sentence in summaries.sentences(documents.read(file_path)):
            best = max(best, (len(wanted & set(summaries.terms(sentence))), file_path, sentence))
        time.sleep(PAUSE_S)
    return {"file_path": best[1], "sentence": best[2], "shared": best[0]}


client.start()
