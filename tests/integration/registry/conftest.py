"""A real node over HTTP, keys of every kind, and a client that speaks JSON."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

SUMMARY = {
    "name": "file_summary",
    "version": "1.0.0",
    "description": "Summarises a file",
    "input": {
        "type": "object",
        "properties": {"content_type": {"type": "string", "enum": ["report", "email", "code"]}},
        "required": ["content_type"],
    },
    "output": {"type": "object", "properties": {"summary": {"type": "string"}}},
}


class NodeServer(ThreadingHTTPServer):
    """A node whose answers a test sets; it remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.live: tuple[int, bytes] = (200, b"{}")
        self.ready: tuple[int, bytes] = (200, b'{"ready": true}')
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.hang = threading.Event()
        self.hangs_at: set[str] = set()
        self.pieces_apart_s = 0.0
        self.never_ends_at: set[str] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: NodeServer

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        if self.path in self.server.hangs_at:
            self.server.hang.wait(10)
            return
        status, text = self.server.live if self.path.endswith("live") else self.server.ready
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        if self.path not in self.server.never_ends_at:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        for piece in (text[:5], text[5:]):
            self.wfile.write(piece)
            self.server.hang.wait(self.server.pieces_apart_s)
        if self.path in self.server.never_ends_at:
            self.server.hang.wait(10)

    do_GET = do_POST = answer

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def node_server() -> Iterator[NodeServer]:
    with NodeServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.hang.set()
        server.shutdown()
        thread.join()


class Api:
    """JSON in and out as one key's owner."""

    def __init__(self, key: str | None):
        self.client = Client(raise_request_exception=True)
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.client.generic(
            method, f"/api/v1/{path}", data, content_type="application/json", headers=self.headers | headers
        )

    def register(self, path: str = "doc-summarizer/nodes/n1", **body: Any) -> HttpResponse:
        declaration = {"address": "http://127.0.0.1:1", "capabilities": [SUMMARY]} | body
        return self("PUT", f"services/{path}", declaration)


MakeApi = Callable[..., Api]


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def as_service(db: None) -> MakeApi:
    from registry import services  # a conftest is read before the apps are

    def make(service_id: str = "doc-summarizer", *scopes: str) -> Api:
        wanted = scopes or ("register", "dispatch", "observe")
        return Api(services.create_service_key(service_id, wanted, by="test").text)

    return make


@pytest.fixture
def as_user(db: None) -> MakeApi:
    from registry import services

    def make(*groups: str, name: str = "olga") -> Api:
        user, _password = services.create_user(name, groups, by="test")
        return Api(services.create_user_key(user, ("register", "dispatch", "observe", "operate"), by="test").text)

    return make


@pytest.fixture
def agent(as_service: MakeApi) -> Api:
    return as_service()


@pytest.fixture
def operator(as_user: MakeApi) -> Api:
    return as_user("operator")


@pytest.fixture
def anybody() -> Api:
    return Api(None)
