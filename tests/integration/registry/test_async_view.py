"""The async view by itself: who is let in, what is answered, and that the lean way touches neither thread nor ORM."""

import asyncio
import gc
import time
import weakref

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.test import RequestFactory

from registry.auth import Key, digest_of, keyring
from registry.errors import InvalidRequest
from registry.http import AsyncAPIView, json_response

KEY = Key("k_1", "report", None, None, frozenset({"dispatch"}))


class Hot(AsyncAPIView):
    scopes = {"POST": "dispatch", "GET": ("observe", "operate")}

    async def post(self, request, name="you"):
        if request.body == b"bad":
            raise InvalidRequest("bad", [{"path": "/x", "message": "bad"}])
        if request.body == b"bug":
            raise ZeroDivisionError
        return json_response({"caller": request.auth.caller, "hello": name})

    async def get(self, request):
        return json_response({})


view = Hot.as_view()


@pytest.fixture
def known_key():
    keyring.replace({digest_of("secret"): KEY})
    yield
    keyring.replace({})
    keyring.fetch = None


def asked(method="POST", body=b"{}", authorization="Bearer secret", lean=True):
    made = RequestFactory().generic(method, "/", body, content_type="application/json")
    if authorization:
        made.META["HTTP_AUTHORIZATION"] = authorization
    made.lean = lean
    return made


def answer(request, **kwargs):
    async def once():
        try:
            return await view(request, **kwargs)
        finally:
            if not request.lean:  # stock Django does so after each request
                await sync_to_async(connections.close_all)()

    return asyncio.run(once())


def test_a_known_key_is_let_in_without_the_database(known_key):
    response = answer(asked(), name="agent")
    assert response.content == b'{"caller":"report","hello":"agent"}'


@pytest.mark.parametrize(
    ("request_made", "status", "code"),
    [
        (lambda: asked(authorization=None), 401, "unauthenticated"),
        (lambda: asked(authorization="Bearer wrong"), 401, "unauthenticated"),
        (lambda: asked(authorization="Basic x"), 401, "unauthenticated"),
        (lambda: asked("GET"), 403, "forbidden"),
        (lambda: asked("PUT"), 405, "method_not_allowed"),
        (lambda: asked("OPTIONS"), 405, "method_not_allowed"),
        (lambda: asked(body=b"bad"), 400, "invalid_request"),
    ],
)
def test_refusals_are_problems(known_key, request_made, status, code):
    response = answer(request_made())
    assert response.status_code == status
    assert f'"code":"{code}"'.encode() in response.content


def test_a_bug_is_left_to_rise(known_key):
    with pytest.raises(ZeroDivisionError):
        answer(asked(body=b"bug"))


def test_a_key_that_memory_lacks_is_fetched_on_the_loop(known_key):
    async def fetch(digest):
        return KEY if digest == digest_of("brand new") else None

    keyring.fetch = fetch
    assert answer(asked(authorization="Bearer brand new")).status_code == 200
    assert answer(asked(authorization="Bearer wrong")).status_code == 401


def test_the_lean_way_uses_no_thread(known_key, monkeypatch):
    def no_thread(*args, **kwargs):
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", no_thread)
    monkeypatch.setattr("registry.http.sync_to_async", no_thread)
    assert answer(asked()).status_code == 200
    assert answer(asked(body=b"bad")).status_code == 400


@pytest.mark.parametrize("made", [asked, lambda: asked(body=b"bad"), lambda: asked("GET"), lambda: asked("PUT")])
def test_a_request_ends_with_its_answer(known_key, made):
    """Nothing ties it to itself: what only the collector finds stays for thousands of requests."""
    gc.disable()
    try:
        request = made()
        still_there = weakref.ref(request)
        answer(request)
        del request
        assert still_there() is None
    finally:
        gc.enable()


def test_it_is_cheap(known_key):
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer secret"), (b"content-type", b"application/json")],
    }

    async def cost_us(times=2000):
        started = time.process_time()
        for _ in range(times):
            request = ASGIRequest(scope, None)
            request._body, request.lean = b"{}", True
            await view(request)
        return (time.process_time() - started) / times * 1e6

    assert min(asyncio.run(cost_us()) for _ in range(3)) < 200, "measured 45 µs; far more means a hop crept in"


@pytest.mark.django_db(transaction=True)
def test_under_stock_django_keys_and_sessions_are_looked_up_in_a_thread(settings):
    from django.contrib.sessions.backends.db import SessionStore

    from registry import services

    text = services.create_service_key("report", ["dispatch"], by="test").text
    assert answer(asked(authorization=f"Bearer {text}", lean=False)).status_code == 200
    assert answer(asked(authorization=None, lean=False)).status_code == 401
    user, _password = services.create_user("olga", ["operator"], by="test")
    request = asked(authorization=None, lean=False)
    request.user, request.session, request._dont_enforce_csrf_checks = user, SessionStore(), True
    assert answer(request).content == b'{"caller":"user:olga","hello":"you"}'
