"""The cheap one: the first sentence of a document stands for all of it."""

import sys
from typing import Any

from agent_reach import AgentClient, Capability, Context, TaskFailed

from demo import documents, summaries
from demo.agents import SUMMARY_INPUT, SUMMARY_OUTPUT

client = AgentClient("headline-summarizer", node_id=sys.argv[1])
client.register_capability(
    Capability(
        name="file_summary",
        description="The first sentence of a document",
        input_schema=SUMMARY_INPUT,
        output_schema=SUMMARY_OUTPUT,
        cost_level="low",
        timeout_tier="light",
        idempotent=True,
    )
)


@client.handle("file_summary")
async def file_summary(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    found = summaries.sentences(documents.read(payload["file_path"]))
    if not found:
        raise TaskFailed("no_prose", f"{payload['file_path']} has no sentence")
    return {"summary": found[0], "keywords": summaries.keywords(found[0], 3)}


client.start()
