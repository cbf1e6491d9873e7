"""What a schema marks is hidden wherever a call is shown."""

import pytest

from registry.core.sensitive import HIDDEN, masked, masked_error, sensitive_paths

SECRET = {"type": "string", "x-reach-sensitive": True}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "pin": SECRET}}


@pytest.mark.parametrize(
    ("schema", "payload", "shown"),
    [
        pytest.param({}, {"pin": "1"}, {"pin": "1"}, id="nothing is marked"),
        pytest.param(SECRET, {"a": 1}, HIDDEN, id="the whole payload"),
        pytest.param(PERSON, {"name": "Ann", "pin": "1"}, {"name": "Ann", "pin": HIDDEN}, id="one value"),
        pytest.param(
            {"properties": {"who": PERSON}},
            {"who": {"name": "Ann", "pin": [1]}, "pin": "free"},
            {"who": {"name": "Ann", "pin": HIDDEN}, "pin": "free"},
            id="deeper",
        ),
        pytest.param({"properties": {"n": {"items": PERSON}}}, {"n": [{"pin": 1}]}, {"n": HIDDEN}, id="in a list"),
        pytest.param({"properties": {"who": PERSON}}, {"who": "Ann, 1"}, {"who": HIDDEN}, id="sent in another shape"),
        pytest.param(PERSON, {"name": "Ann"}, {"name": "Ann"}, id="not there"),
        pytest.param({"properties": {"who": PERSON}}, {"who": None}, {"who": None}, id="null"),
    ],
)
def test_masked(schema, payload, shown):
    assert masked(payload, sensitive_paths(schema)) == shown


def test_the_document_itself_stays_as_it_is():
    payload = {"pin": "1"}
    masked(payload, sensitive_paths(PERSON))
    assert payload == {"pin": "1"}


@pytest.mark.parametrize(
    ("place", "hides"),
    [
        ("/payload/pin", True),
        ("/payload/pin/0", True),
        ("/payload", True),
        ("/payload/name", False),
        ("/output", False),
    ],
)
def test_errors_quote_nothing_that_is_hidden(place, hides):
    error = {"code": "invalid_payload", "detail": f"it does not fit: {place}: 'x' is short"}
    error |= {"errors": [{"path": place, "message": "'x' is short"}]}
    told = masked_error(error, sensitive_paths(PERSON), root="/payload")
    assert ("'x'" in str(told)) is not hides
    assert told["errors"][0]["path"] == place
