"""Runs the queries: real SQL, read only, and only on fields that the asking user may see."""

import sys
from typing import Any

from agent_reach import AgentClient, Capability, Context, TaskFailed

from demo import sales

NAME_OF_DIMENSION = {"enum": list(sales.DIMENSIONS)}
table = sales.opened()

client = AgentClient("data-query", node_id=sys.argv[1], requires=["permission_check"])
client.register_capability(
    Capability(
        name="data_query",
        description="Measures of the orders, grouped and filtered",
        input_schema={
            "type": "object",
            "required": ["measures"],
            "properties": {
                "measures": {"type": "array", "items": {"enum": list(sales.MEASURES)}, "minItems": 1},
                "by": {"type": "array", "items": NAME_OF_DIMENSION, "uniqueItems": True},
                "where": {
                    "type": "object",
                    "propertyNames": NAME_OF_DIMENSION,
                    "additionalProperties": {"type": "string"},
                },
                "top": {"type": "integer", "minimum": 1, "maximum": 1000},
            },
            "additionalProperties": False,
        },
        output_schema={"type": "object", "required": ["rows"], "properties": {"rows": {"type": "array"}}},
        cost_level="low",
        timeout_tier="light",
        idempotent=True,
        examples=[{"measures": ["revenue"], "by": ["week", "region"]}],
    )
)


@client.handle("data_query")
async def data_query(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    query = sales.Query(**payload)
    user = ctx.labels.get("user", "somebody unnamed")
    verdict = await ctx.call("permission_check", {"user": user, "fields": query.fields})
    if not verdict["allowed"]:
        raise TaskFailed("field_refused", f"{user} may not see {' and '.join(verdict['refused'])}: {verdict['why']}")
    return {"rows": sales.answer(table, query)}


@client.ready_check
def the_table_answers() -> bool:
    return bool(sales.answer(table, sales.Query(["orders"])))


client.start()
