"""One file a service: `python -m demo.agents.NAME NODE_ID`, with REACH_ADDR and REACH_API_KEY in the environment."""

SUMMARY_INPUT = {
    "type": "object",
    "required": ["file_path", "content_type"],
    "properties": {"file_path": {"type": "string"}, "content_type": {"enum": ["report", "email", "code"]}},
    "additionalProperties": False,
}
SUMMARY_OUTPUT = {
    "type": "object",
    "required": ["summary", "keywords"],
    "properties": {"summary": {"type": "string"}, "keywords": {"type": "array", "items": {"type": "string"}}},
}
