"""How a call ended, in words that survive being stored."""

import pytest

from receipts.core.ending import Ending, ending_of
from receipts.core.lifecycle import TERMINAL, CallStatus, ending
from receipts.rows import json_of

STORED = [
    Ending("no_available_node", "nobody", retry_after_ms=500),
    Ending("upstream_error", "a/1: broke", upstream={"code": "oom"}, outcome_unknown=True),
    Ending("invalid_payload", "bad", errors=({"path": "/payload", "message": "is required"},)),
    Ending("deadline_exceeded", "late", outcome_unknown=True),
]


@pytest.mark.parametrize("end", STORED, ids=lambda end: str(end.code))
def test_a_failure_is_read_back_as_it_was_stored(end):
    assert ending_of(json_of(end.document()).decode(), None) == end


@pytest.mark.parametrize("output", [None, 0, False, "", [], {"summary": "fine"}], ids=repr)
def test_a_success_is_read_back_with_its_output(output):
    assert ending_of(None, json_of(output).decode()) == Ending(None, output=output)


def test_facts_that_do_not_apply_are_left_out():
    assert Ending("forbidden", "no").document() == {"code": "forbidden", "detail": "no"}


@pytest.mark.parametrize(
    ("code", "attempted", "status"),
    [
        (None, True, "succeeded"),
        ("no_available_node", False, "rejected"),
        ("no_available_node", True, "failed"),
        ("invalid_payload", False, "rejected"),
        ("upstream_error", True, "failed"),
        ("invalid_output", True, "failed"),
        ("deadline_exceeded", True, "timed_out"),
        ("deadline_exceeded", False, "timed_out"),
        ("cancelled", True, "cancelled"),
    ],
)
def test_the_status_of_an_ending(code, attempted, status):
    assert ending(code, attempted=attempted) == status
    assert CallStatus(status) in TERMINAL
