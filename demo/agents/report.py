"""Answers questions about orders: has the numbers fetched, looks for what does not belong, has it written down."""

import sys
from typing import Any

from agent_reach import AgentClient, Capability, Context, TaskFailed, UpstreamError

from demo import anomalies, questions

SHOWN = 20

client = AgentClient("report", node_id=sys.argv[1], requires=["data_query", "write_ticket"])
client.register_capability(
    Capability(
        name="report_question",
        description="A question about orders, such as: weekly revenue by region. 关于订单的提问，例如：每周各地区收入",
        input_schema={
            "type": "object",
            "required": ["question"],
            "properties": {"question": {"type": "string", "minLength": 3, "maxLength": 500}},
            "additionalProperties": False,
        },
        output_schema={"type": "object", "required": ["rows", "anomalies"]},
        examples=[{"question": "weekly revenue by region"}],
        tags=["report", "sales"],
    )
)


@client.handle("report_question")
async def report_question(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    query = questions.understood(payload["question"])
    if query is None:
        raise TaskFailed("not_understood", "it names nothing that can be measured; try: weekly revenue by region")
    asked = {"measures": query.measures, "by": query.by, "where": query.where}
    try:
        data = await ctx.call("data_query", asked | ({"top": query.top} if query.top else {}))
    except UpstreamError as exc:  # say it in the words of the agent that refused
        error = exc.upstream or {}
        raise TaskFailed(error.get("code", exc.code), error.get("message", exc.detail)) from exc
    await ctx.progress(0.7, f"{len(data['rows'])} rows")
    strange = anomalies.found(data["rows"], measure=query.measures[0], by=query.by)
    ticket = None
    if strange:
        findings = [one.sentence for one in strange]
        ticket = (await ctx.call("write_ticket", {"subject": payload["question"], "findings": findings}))["ticket"]
    return {
        "question": payload["question"],
        "query": asked,
        "row_count": len(data["rows"]),
        "rows": data["rows"][:SHOWN],
        "anomalies": [one._asdict() for one in strange],
        "ticket": ticket,
    }


client.start()
