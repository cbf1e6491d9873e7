"""What a caller asks for, parsed once: every mistake is named by its place."""

import contextlib
import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.envelope import UNREAD, CallEnvelope, digest_of, parse_envelope
from receipts.core.trace_context import ParentSpan
from registry.core.strict_json import is_deeper
from registry.errors import InvalidRequest

ASKED = {"capability": "file_summary", "payload": {"content_type": "report"}}


def parsed(body: Any, **headers: Any) -> CallEnvelope:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_envelope(
        content, caller="report-agent", received_at_millis=5, max_depth=64, max_context_bytes=16_384, **headers
    )


def test_the_least_that_can_be_asked():
    envelope = parsed(ASKED)
    assert (envelope.capability, envelope.payload, envelope.caller) == (
        "file_summary",
        ASKED["payload"],
        "report-agent",
    )
    assert (envelope.urgency, envelope.timeout_ms, envelope.idempotency_key) == ("normal", None, None)
    assert (envelope.tags, envelope.labels, envelope.context) == (frozenset(), {}, {})


def test_an_intent_stands_in_place_of_a_capability():
    envelope = parsed({"intent": "总结这份报告", "payload": {}})
    assert (envelope.intent, envelope.capability) == ("总结这份报告", UNREAD)


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ({}, "/capability"),
        ({"capability": "file_summary", "intent": "summarize"}, "/intent"),
        ({"intent": ""}, "/intent"),
        ({"intent": " \n"}, "/intent"),
        ({"intent": "x" * 257}, "/intent"),
        ({"intent": 5}, "/intent"),
        ({"capability": "?"}, "/capability"),
    ],
)
def test_exactly_one_of_capability_and_intent(wanted, path):
    with pytest.raises(InvalidRequest) as caught:
        parsed({"payload": {}, **wanted})
    assert [error["path"] for error in caught.value.errors] == [path]


def test_a_repeated_intent_is_the_same_request_whatever_it_was_read_as():
    asked = parsed({"intent": "summarize", "payload": {}})
    read, read_later = replace(asked, capability="file_summary"), replace(asked, capability="file_digest")
    assert read.request_digest == read_later.request_digest != parsed(ASKED).request_digest


def test_everything_that_can_be_asked():
    parent = "01890a5d-ac96-774b-bcce-b302099a8057"
    envelope = parsed(
        ASKED
        | {
            "tags": ["prod", "prod"],
            "urgency": "bulk",
            "timeout_ms": 1,
            "idempotency_key": "order-77",
            "mode": "sync",
            "callback_url": None,
            "trace_id": "ab" * 16,
            "parent_call_id": parent,
            "labels": {"tenant": "emea"},
            "session_id": "s",
            "context": {"turn": 3},
            "max_retries": 0,
            "retry_base_delay_ms": 10,
            "something_newer": True,
        }
    )
    assert envelope.tags == {"prod"}
    assert (envelope.trace_id, envelope.parent_call_id) == ("ab" * 16, UUID(parent))
    assert (envelope.labels, envelope.session_id, envelope.context) == ({"tenant": "emea"}, "s", {"turn": 3})
    assert (envelope.max_retries, envelope.retry_base_delay_ms, envelope.timeout_ms) == (0, 10, 1)


@pytest.mark.parametrize("payload", [None, 0, "", [], False, {}], ids=repr)
def test_any_json_is_a_payload(payload):
    assert parsed(ASKED | {"payload": payload}).payload == payload


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"payload": None}, "/capability"),
    ({"capability": "file_summary"}, "/payload"),
    (ASKED | {"capability": 5}, "/capability"),
    (ASKED | {"capability": "Not A Name"}, "/capability"),
    (ASKED | {"capability": ""}, "/capability"),
    (ASKED | {"capability": "x" * 64}, "/capability"),
    (ASKED | {"tags": "prod"}, "/tags"),
    (ASKED | {"tags": [1]}, "/tags/0"),
    (ASKED | {"tags": [""]}, "/tags/0"),
    (ASKED | {"urgency": "now"}, "/urgency"),
    (ASKED | {"timeout_ms": 0}, "/timeout_ms"),
    (ASKED | {"timeout_ms": -1}, "/timeout_ms"),
    (ASKED | {"timeout_ms": "60"}, "/timeout_ms"),
    (ASKED | {"timeout_ms": 1.5}, "/timeout_ms"),
    (ASKED | {"timeout_ms": True}, "/timeout_ms"),
    (ASKED | {"timeout_ms": 10**30}, "/timeout_ms"),
    (ASKED | {"idempotency_key": ""}, "/idempotency_key"),
    (ASKED | {"idempotency_key": "k" * 257}, "/idempotency_key"),
    (ASKED | {"idempotency_key": 7}, "/idempotency_key"),
    (ASKED | {"mode": "later"}, "/mode"),
    (ASKED | {"callback_url": "https://billing.test/done"}, "/callback_url"),
    (ASKED | {"mode": "async", "callback_url": "x" * 2049}, "/callback_url"),
    (ASKED | {"trace_id": "xyz"}, "/trace_id"),
    (ASKED | {"trace_id": "AB" * 16}, "/trace_id"),
    (ASKED | {"trace_id": "0" * 32}, "/trace_id"),
    (ASKED | {"trace_id": "ab" * 16 + "\n"}, "/trace_id"),
    (ASKED | {"trace_id": 5}, "/trace_id"),
    (ASKED | {"parent_call_id": "no uuid"}, "/parent_call_id"),
    (ASKED | {"labels": {"tenant": 5}}, "/labels"),
    (ASKED | {"labels": {"": "x"}}, "/labels"),
    (ASKED | {"labels": []}, "/labels"),
    (ASKED | {"labels": {str(n): "x" for n in range(33)}}, "/labels"),
    (ASKED | {"session_id": ""}, "/session_id"),
    (ASKED | {"context": []}, "/context"),
    (ASKED | {"context": {"x": "y" * 16_400}}, "/context"),
    (ASKED | {"max_retries": -1}, "/max_retries"),
    (ASKED | {"retry_base_delay_ms": "soon"}, "/retry_base_delay_ms"),
]


@pytest.mark.parametrize(("body", "path"), WRONG, ids=lambda value: str(value)[-60:])
def test_a_mistake_is_named_by_its_place(body, path):
    with pytest.raises(InvalidRequest) as refused:
        parsed(body)
    assert refused.value.errors[0]["path"].startswith(path)


NOT_TAKEN = {
    "empty": b"",
    "not JSON": b"{capability: 1}",
    "half": json.dumps(ASKED).encode()[:-1],
    "two documents": json.dumps(ASKED).encode() * 2,
    "a list": b"[]",
    "a number": b"5",
    "NaN": b'{"capability": "a", "payload": NaN}',
    "Infinity": b'{"capability": "a", "payload": -Infinity}',
    "a number out of range": b'{"capability": "a", "payload": 1e999}',
    "a lone surrogate": rb'{"capability": "a", "payload": "\ud800"}',
    "a lone surrogate as key": rb'{"capability": "a", "payload": {"\udc00": 1}}',
    "a lone low surrogate": rb'{"capability": "a", "payload": "\udc00x"}',
    "NUL": rb'{"capability": "a", "payload": "a\u0000b"}',
    "NUL as key": rb'{"capability": "a", "payload": {"\u0000": 1}}',
    "NUL in a label": rb'{"capability": "a", "payload": 1, "labels": {"a": "\u0000"}}',
    "a raw NUL": b'{"capability": "a", "payload": "a\x00b"}',
    "invalid UTF-8": b'{"capability": "a", "payload": "\xff\xfe"}',
    "overlong UTF-8": b'{"capability": "a", "payload": "\xc0\xaf"}',
    "UTF-16": json.dumps(ASKED).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(ASKED).encode(),
    "deep lists": b'{"capability": "a", "payload": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep objects": b'{"capability": "a", "payload": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    "deep and never closed": b"[" * 500_000,
    "a string of escaped quotes that never ends": b"[" * 100 + b'"' + rb"\"" * 400_000,
    "NUL behind much else": b'{"capability": "a", "payload": [' + b"0," * 400_000 + rb'"\u0000"]}',
    "NUL behind escaped backslashes": rb'{"capability": "a", "payload": "\\\\\u0000"}',
    "invalid UTF-8 in an unknown field": b'{"capability": "a", "payload": 1, "x": "\xff"}',
    "deep in an unknown field": b'{"capability": "a", "payload": 1, "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
}


@pytest.mark.parametrize("body", NOT_TAKEN.values(), ids=NOT_TAKEN.keys())
def test_what_is_not_plain_json_is_refused(body):
    with pytest.raises(InvalidRequest):
        parsed(body)


def test_the_text_of_an_escape_is_no_nul():
    assert parsed(rb'{"capability": "a", "payload": "\\u0000"}').payload == "\\u0000"


JSON = st.recursive(
    st.none() | st.sampled_from(["", "[{", '"', "\\", '\\"', "]}", "\x00", "\\u0000"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["", "[", '"', "\\"]), inner, max_size=3)
    ),
    max_leaves=20,
)


def nesting(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(nesting, inner), default=0)


@given(JSON, st.booleans())
def test_the_depth_of_a_text_is_that_of_its_value(value, spaced):
    text, depth = json.dumps(value, indent=1 if spaced else None).encode(), nesting(value)
    assert not is_deeper(text, depth)
    assert depth == 0 or is_deeper(text, depth - 1)


@pytest.mark.parametrize("payload", ["[" * 100 + '"', '"' * 1001, "\\" * 1001, '["' * 500])
def test_brackets_in_text_are_not_nesting_whatever_surrounds_them(payload):
    assert parsed(ASKED | {"payload": payload}).payload == payload


def test_brackets_in_text_are_not_nesting():
    assert parsed(ASKED | {"payload": '[{"\\' * 10_000}).payload == '[{"\\' * 10_000


def test_the_deepest_nesting_allowed():
    payload: Any = 1
    for _level in range(63):
        payload = [payload]
    assert parsed(ASKED | {"payload": payload}).payload == payload
    with pytest.raises(InvalidRequest, match="nested deeper than 64"):
        parsed(ASKED | {"payload": [payload]})


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(body):
    with contextlib.suppress(InvalidRequest):
        parsed(body)


def test_headers_stand_in_for_fields_and_fields_win():
    trace = f"00-{'cd' * 16}-{'1' * 16}-01"
    assert parsed(ASKED, traceparent=trace).trace_id == "cd" * 16
    assert parsed(ASKED | {"trace_id": "ab" * 16}, traceparent=trace).trace_id == "ab" * 16
    assert parsed(ASKED, idempotency_key="h").idempotency_key == "h"
    assert parsed(ASKED | {"idempotency_key": "b"}, idempotency_key="h").idempotency_key == "b"


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'CD' * 16}-{'1' * 16}-01"])
def test_a_malformed_traceparent_is_ignored(header):
    assert parsed(ASKED, traceparent=header).trace_id is None


def test_what_makes_two_requests_the_same():
    one = parsed(b'{"capability":"a","payload":{"x":1,"y":[1,2]},"tags":["p","q"],"labels":{"b":"2","a":"1"}}')
    same = parsed(
        b'{"labels":{"a":"1","b":"2"},"tags":["q","p"],"payload":{"y":[1,2],"x":1},"capability":"a","timeout_ms":9}'
    )
    assert one.request_digest == same.request_digest
    for other in (
        {"capability": "b"},
        {"payload": {"x": 1, "y": [2, 1]}},
        {"tags": ["p"]},
        {"labels": {"a": "1"}},
    ):
        changed = {
            "capability": "a",
            "payload": {"x": 1, "y": [1, 2]},
            "tags": ["p", "q"],
            "labels": {"a": "1", "b": "2"},
        }
        assert parsed(changed | other).request_digest != one.request_digest


def test_a_digest_tells_values_apart():
    assert len({digest_of(v) for v in (1, "1", True, None, [1], {"1": 1}, 1.5)}) == 7


def test_a_document_may_hold_many_containers_but_not_any_number():
    def asked(items: str) -> bytes:
        return b'{"capability": "file_summary", "payload": [%s]}' % items.encode()

    assert len(parsed(asked(",".join(["[]"] * 40_000))).payload) == 40_000
    assert parsed(asked('"' + "[" * 60_000 + '"')).payload == ["[" * 60_000]
    with pytest.raises(InvalidRequest, match="arrays and objects"):
        parsed(asked(",".join(["[]"] * 50_000)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ParentSpan("a" * 32, "b" * 16, False), id="its own trace"),
        pytest.param({"trace_id": "a" * 32}, ParentSpan("a" * 32, "b" * 16, False), id="the body says the same"),
        pytest.param({"trace_id": "c" * 32}, None, id="the body names another trace"),
    ],
)
def test_the_span_above(fields: dict[str, str], expected: ParentSpan | None) -> None:
    body = json.dumps({"capability": "c", "payload": {}, **fields}).encode()
    envelope = parse_envelope(
        body,
        caller="a",
        received_at_millis=0,
        max_depth=8,
        max_context_bytes=99,
        traceparent=f"00-{'a' * 32}-{'b' * 16}-00",
    )
    assert envelope.parent_span == expected


@pytest.mark.parametrize(
    ("mode", "prefer", "is_async"),
    [
        pytest.param(None, "", False, id="says nothing"),
        pytest.param("sync", "", False, id="sync"),
        pytest.param("async", "", True, id="async"),
        pytest.param(None, "respond-async", True, id="the header"),
        pytest.param(None, 'wait=10, Respond-Async; q="x"', True, id="among others"),
        pytest.param(None, "no-respond-async, wait=10", False, id="something else"),
    ],
)
def test_whether_somebody_waits(mode: str | None, prefer: str, is_async: bool) -> None:
    body = ASKED | ({} if mode is None else {"mode": mode})
    assert parsed(body, prefer=prefer).is_async is is_async
