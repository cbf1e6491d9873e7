"""Knows who may see which fields. Only the data-query agent may ask."""

import json
import sys
from pathlib import Path
from typing import Any

from agent_reach import AgentClient, Capability, Context

PEOPLE = Path(__file__).parents[1] / "data" / "people.json"

client = AgentClient("permission-check", node_id=sys.argv[1])
client.register_capability(
    Capability(
        name="permission_check",
        description="Whether a user may see these fields",
        input_schema={
            "type": "object",
            "required": ["user", "fields"],
            "properties": {"user": {"type": "string"}, "fields": {"type": "array", "items": {"type": "string"}}},
            "additionalProperties": False,
        },
        output_schema={"type": "object", "required": ["allowed"], "properties": {"allowed": {"type": "boolean"}}},
        cost_level="low",
        timeout_tier="light",
        idempotent=True,
        allow_callers=["data-query"],
    )
)


@client.handle("permission_check")
def permission_check(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    rules = json.loads(PEOPLE.read_text())  # read anew, so that an edit counts at once
    seen = rules["may_see"].get(payload["user"], [])
    refused = [name for name in payload["fields"] if name in rules["hidden"] and name not in seen]
    return {"allowed": not refused, "refused": refused, "why": "; ".join(rules["hidden"][name] for name in refused)}


client.start()
