"""Who may read `/metrics`, and that it answers whatever the database does."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from registry.auth import Key, digest_of, keyring


@pytest.fixture
def counting() -> Iterator[None]:
    from reach_project import metrics

    metrics.start("all")
    yield
    metrics.stop()


@pytest.fixture
def keys(counting: None) -> Iterator[None]:
    """Two keys in memory, as the snapshot would have put them there; nothing can be looked up."""

    async def nobody(_digest: str) -> None:
        return None

    was, fetch = keyring._keys, keyring.fetch
    keyring.replace(
        {
            digest_of("may-observe"): Key("a", "prometheus", None, None, frozenset({"observe"})),
            digest_of("may-call"): Key("b", "caller", None, None, frozenset({"dispatch"})),
        }
    )
    keyring.fetch = nobody
    yield
    keyring.replace(was)
    keyring.fetch = fetch


def asked(key: str | None = None) -> tuple[int, str, str]:
    """Status, content type and text of `/metrics`, asked of the application itself: no database is within reach."""
    from reach_project.asgi import application

    headers = [(b"host", b"127.0.0.1")] + ([(b"authorization", f"Bearer {key}".encode())] if key else [])
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": "/metrics", "raw_path": b"/metrics", "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if sent or gone.is_set():
            await asyncio.Event().wait()
        gone.set()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    uvloop.run(application(scope, receive, send))
    content_type = {name.lower(): value for name, value in sent[0]["headers"]}[b"content-type"].decode()
    return sent[0]["status"], content_type, b"".join(message.get("body", b"") for message in sent[1:]).decode()


def test_a_key_that_may_observe(keys: None) -> None:
    status, content_type, text = asked("may-observe")
    assert (status, content_type.partition(";")[0]) == (200, "text/plain")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"reach_calls", "reach_attempts", "reach_calls_in_flight", "reach_refusals", "reach_build_info"} <= names
    assert {"process_cpu_seconds", "python_info"} <= names


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("nobody-knows-this", 401), ("may-call", 403)])
def test_everybody_else_is_refused(keys: None, key: str | None, status: int) -> None:
    told, content_type, _text = asked(key)
    assert (told, content_type) == (status, "application/problem+json")


@pytest.mark.parametrize("key", [None, "nobody-knows-this", "may-call"])
def test_public_when_the_operator_says_so(keys: None, settings: Any, key: str | None) -> None:
    settings.REACH_METRICS_PUBLIC = True
    assert asked(key)[0] == 200


def test_refusals_are_counted(keys: None) -> None:
    before = refused("unauthenticated")
    asked("nobody-knows-this")
    assert refused("unauthenticated") == before + 1


def refused(code: str) -> float:
    _status, _type, text = asked("may-observe")
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "reach_refusals_total" and sample.labels["code"] == code
    ]
    return found[0] if found else 0
