"""Writes down what somebody has to look at: one ticket a subject, in a real database that both nodes share."""

import contextlib
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

from agent_reach import AgentClient, Capability, Refuse, ThreadContext

LEDGER = Path(os.environ["DEMO_HOME"]) / "tickets.sqlite3"
TABLE = """
CREATE TABLE IF NOT EXISTS tickets (
    ticket INTEGER PRIMARY KEY, subject TEXT NOT NULL UNIQUE, findings TEXT NOT NULL,
    first_call TEXT NOT NULL, last_call TEXT NOT NULL, seen INTEGER NOT NULL DEFAULT 1)
"""
WRITE = """
INSERT INTO tickets (subject, findings, first_call, last_call) VALUES (?, ?, ?, ?)
ON CONFLICT (subject) DO UPDATE SET findings = excluded.findings, last_call = excluded.last_call, seen = seen + 1
RETURNING ticket, seen
"""

client = AgentClient("tickets", node_id=sys.argv[1])
client.register_capability(
    Capability(
        name="write_ticket",
        description="Record an anomaly; the same subject again only counts up",
        input_schema={
            "type": "object",
            "required": ["subject", "findings"],
            "properties": {
                "subject": {"type": "string"},
                "findings": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            },
            "additionalProperties": False,
        },
        output_schema={"type": "object", "required": ["ticket"], "properties": {"ticket": {"type": "integer"}}},
        timeout_tier="light",
    )
)


def ledger() -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(LEDGER, timeout=0.5, isolation_level=None))


@client.handle("write_ticket")
def write_ticket(payload: dict[str, Any], ctx: ThreadContext) -> dict[str, Any]:
    findings = json.dumps(payload["findings"], ensure_ascii=False)
    with ledger() as session:
        try:
            [(ticket, seen)] = session.execute(
                WRITE, (payload["subject"], findings, ctx.call_id, ctx.call_id)
            ).fetchall()
        except sqlite3.OperationalError as exc:  # locked: nothing was written, so another node may try
            raise Refuse(f"the ledger is taken: {exc}") from exc
    ctx.logger.info("ticket %s seen %s times", ticket, seen)
    return {"ticket": ticket, "is_new": seen == 1, "seen": seen}


with ledger() as prepared:
    prepared.execute("PRAGMA journal_mode = WAL")
    prepared.execute(TABLE)
client.start()
