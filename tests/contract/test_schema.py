"""The published description of the API is valid OpenAPI 3.1 and names every endpoint of the contract."""

import json
from typing import Any

import jsonschema_rs
import pytest
from drf_spectacular.validation import validate_schema

PATHS = {
    "/api/v1/dispatch": {"post"},
    "/api/v1/dispatch/explain": {"post"},
    "/api/v1/calls": {"get"},
    "/api/v1/calls/{call_id}": {"get"},
    "/api/v1/calls/{call_id}/receipts": {"get", "post"},
    "/api/v1/calls/{call_id}/wait": {"get"},
    "/api/v1/calls/{call_id}/cancel": {"post"},
    "/api/v1/calls/{call_id}/redispatch": {"post"},
    "/api/v1/traces/{trace_id}": {"get"},
    "/api/v1/stats": {"get"},
    "/api/v1/services": {"get"},
    "/api/v1/services/{service_id}": {"get"},
    "/api/v1/services/{service_id}/nodes/{node_id}": {"get", "put", "patch", "delete"},
    "/api/v1/services/{service_id}/nodes/{node_id}/heartbeat": {"post"},
    "/api/v1/services/{service_id}/nodes/{node_id}/probe": {"post"},
    "/api/v1/nodes": {"get"},
    "/api/v1/capabilities": {"get"},
    "/api/v1/capabilities/{name}": {"get"},
    "/api/v1/keys": {"get", "post"},
    "/api/v1/keys/{key_id}": {"delete"},
    "/api/v1/routes": {"get"},
    "/api/v1/route-revisions": {"get"},
    "/api/v1/route-revisions/{number}": {"get"},
    "/api/v1/route-changes": {"get", "post"},
    "/api/v1/route-changes/{change_id}": {"get", "patch"},
    **{f"/api/v1/route-changes/{{change_id}}/{move}": {"post"}
       for move in ("submit", "approve", "reject", "withdraw", "publish", "rebase", "revert", "comment")},
    "/api/v1/route-changes/{change_id}/impact": {"get"},
}  # fmt: skip


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    from drf_spectacular.generators import SchemaGenerator
    from drf_spectacular.renderers import OpenApiJsonRenderer

    generated = SchemaGenerator().get_schema(request=None, public=True)
    return json.loads(OpenApiJsonRenderer().render(generated, renderer_context={}))


def test_it_is_openapi_3_1(document: dict[str, Any]):
    assert document["openapi"].startswith("3.1")
    validate_schema(document)


@pytest.mark.parametrize(("path", "methods"), PATHS.items())
def test_every_endpoint_is_described(document: dict[str, Any], path: str, methods: set[str]):
    assert methods <= document["paths"][path].keys()


def test_operations_have_names_of_their_own(document: dict[str, Any]):
    names = [
        operation["operationId"]
        for item in document["paths"].values()
        for method, operation in item.items()
        if method in {"get", "post", "put", "patch", "delete"}
    ]
    assert len(names) == len(set(names))


def schemas_in(value: Any) -> list[dict[str, Any]]:
    """Every schema of request bodies and answers."""
    if isinstance(value, dict):
        own = [value["schema"]] if isinstance(value.get("schema"), dict) else []
        return own + [found for inner in value.values() for found in schemas_in(inner)]
    return [found for inner in value for found in schemas_in(inner)] if isinstance(value, list) else []


def test_every_schema_within_is_a_json_schema(document: dict[str, Any]):
    found = schemas_in(document["paths"])
    assert found
    for schema in found:
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
