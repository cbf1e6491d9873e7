"""Reads a document of this repository and says what matters in it. One of its nodes sits on a slow disk."""

import asyncio
import sys
from typing import Any

from agent_reach import AgentClient, Capability, Context

from demo import documents, summaries
from demo.agents import SUMMARY_INPUT, SUMMARY_OUTPUT

SLOW_S_PER_CHARACTER = 0.001
node_id, is_slow = sys.argv[1], "slow" in sys.argv[2:]

client = AgentClient("doc-summarizer", node_id=node_id, tags=["slow-disk"] if is_slow else [])
client.register_capability(
    Capability(
        name="file_summary",
        description="The main sentences and keywords of a document. 文档摘要与关键词",
        input_schema=SUMMARY_INPUT,
        output_schema=SUMMARY_OUTPUT,
        idempotent=True,
        examples=[{"file_path": "README.md", "content_type": "report"}],
    )
)


@client.handle("file_summary")
async def file_summary(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    text = documents.read(payload["file_path"])
    if is_slow:
        await ctx.progress(0.1, f"reading {len(text)} characters from a slow disk")
        await asyncio.sleep(len(text) * SLOW_S_PER_CHARACTER)
    return {"summary": summaries.summary(text), "keywords": summaries.keywords(text)}


client.start()
