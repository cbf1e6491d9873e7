"""What a receiver makes of a callback."""

import base64
import json
import time

import pytest

from agent_reach import NotSigned, _wire, read_callback

KEY = b"0123456789abcdef01234567"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
BODY = json.dumps(
    {
        "call_id": "01890a5d-ac96-774b-bcce-b302099a8057",
        "trace_id": "a" * 32,
        "status": "failed",
        "output": None,
        "error": {"code": "upstream_error", "detail": "it broke"},
        "accepted_at": "2026-01-31T12:00:00Z",
        "ended_at": "2026-01-31T12:00:01.500000Z",
    }
).encode()


def headers(*, age_s: float = 0, name: str = "webhook-{}") -> dict[str, str]:
    timestamp = str(int(time.time() - age_s))
    signed = {
        "id": "c.callback",
        "timestamp": timestamp,
        "signature": _wire.signature(KEY, "c.callback", timestamp, BODY),
    }
    return {name.format(key): value for key, value in signed.items()}


@pytest.mark.parametrize("name", ["webhook-{}", "Webhook-{}", "WEBHOOK-{}"])
def test_a_signed_one_is_read(name: str):
    given = {key if name != "WEBHOOK-{}" else key.upper(): value for key, value in headers(name=name).items()}
    told = read_callback(BODY, given, SECRET)
    assert (told.status, told.ended, told.duration_ms) == ("failed", True, 1500)
    assert told.error is not None and told.error["code"] == "upstream_error"


@pytest.mark.parametrize(
    ("body", "age_s", "other", "secret"),
    [
        pytest.param(BODY + b" ", 0, {}, SECRET, id="another body"),
        pytest.param(BODY, 0, {}, "whsec_" + base64.b64encode(b"another").decode(), id="another secret"),
        pytest.param(BODY, 0, {"webhook-id": "other"}, SECRET, id="another id"),
        pytest.param(BODY, 400, {}, SECRET, id="too old"),
        pytest.param(BODY, -400, {}, SECRET, id="from the future"),
    ],
)
def test_any_other_is_not(body: bytes, age_s: float, other: dict[str, str], secret: str):
    with pytest.raises(NotSigned):
        read_callback(body, headers(age_s=age_s) | other, secret)


def test_one_without_a_signature_is_not():
    with pytest.raises(NotSigned):
        read_callback(BODY, {}, SECRET)


def test_its_age_is_not_looked_at_where_clocks_are_wrong():
    assert read_callback(BODY, headers(age_s=86_400), SECRET, tolerance_s=None).status == "failed"
