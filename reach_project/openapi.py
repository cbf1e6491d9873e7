"""What the API documentation adds to the generated schema."""

from typing import Any


def summarize(result: dict[str, Any], **_: object) -> dict[str, Any]:
    """Give each operation the first line of its description as its summary: lists show only that."""
    for operations in result["paths"].values():
        for operation in operations.values():
            first, _, rest = operation.get("description", "").partition("\n")
            if first and "summary" not in operation:
                operation["summary"], operation["description"] = first, rest.strip()
    return result
