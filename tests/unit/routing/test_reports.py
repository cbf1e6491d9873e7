"""What a node says line by line: the pieces it comes in do not matter, there is one last word, mistakes are named."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.journey import Ended, Outcome
from routing.core.reports import Lines, Report, running_detail

RUNNING = b'{"kind":"running","progress":0.4,"message":"page 20/50"}'
DONE = b'{"kind":"succeeded","output":{"pages":50}}'


def told_of(*pieces: bytes, max_bytes: int = 1000) -> list[Report | Outcome]:
    """Everything that these pieces tell, up to the last word."""
    lines = Lines(max_bytes)
    told: list[Report | Outcome] = []
    for piece in pieces:
        told += lines.feed(piece)
        if told and isinstance(told[-1], Outcome):
            return told
    return told + lines.end()


def end_of(*pieces: bytes, max_bytes: int = 1000) -> Outcome:
    *_before, end = told_of(*pieces, max_bytes=max_bytes)
    assert isinstance(end, Outcome)
    return end


@given(st.lists(st.integers(0, 200), max_size=12))
def test_it_does_not_matter_in_which_pieces_it_comes(cuts: list[int]) -> None:
    whole = b"\n".join([RUNNING, b'{"kind":"running"}', b"", '{"kind":"running","message":"第二页"}'.encode(), DONE])
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    pieces = [whole[a:b] for a, b in pairwise(places)]
    *running, end = told_of(*pieces)
    assert [running_detail(report) for report in running if isinstance(report, Report)] == [
        {"progress": 0.4, "message": "page 20/50"},
        None,
        {"message": "第二页"},
    ]
    assert end == Outcome(Ended.SUCCEEDED, output={"pages": 50})


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n", b"\n\n  \n"], ids=repr)
def test_the_last_line_needs_no_end(ending: bytes) -> None:
    assert end_of(DONE + ending).output == {"pages": 50}


def test_what_follows_the_last_word_is_not_read() -> None:
    assert told_of(DONE + b"\n[not a line") == [Outcome(Ended.SUCCEEDED, output={"pages": 50})]


def test_a_failure_in_the_nodes_own_words() -> None:
    end = end_of(b'{"kind":"failed","error":{"code":"oom","message":"out of memory","retryable":false}}\n')
    assert (end.ended, end.reason, end.retryable) == (Ended.FAILED, "reported oom – out of memory", False)
    assert end.error == {"code": "oom", "message": "out of memory", "retryable": False}


@pytest.mark.parametrize("content", [b"", RUNNING + b"\n", RUNNING, b"\n\n"], ids=repr)
def test_without_a_last_word_the_attempt_is_broken(content: bytes) -> None:
    assert end_of(content).ended is Ended.BROKEN


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[]",
        b'"running"',
        b"{}",
        b'{"kind":"accepted"}',
        b'{"kind":"succeeded"}',
        b'{"kind":"failed"}',
        b'{"kind":"running","progress":1.5}',
        b'{"kind":"running","progress":NaN}',
        b'{"kind":"running","message":"\xff"}',
        b'{"kind":"running","message":"' + b"x" * 5000 + b'"}',
        b'{"kind":"succeeded","output":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_malformed_line_is_told_by_its_number(line: bytes) -> None:
    *running, end = told_of(RUNNING + b"\n\n" + line + b"\n" + DONE, max_bytes=10_000)
    assert len(running) == 1 and isinstance(end, Outcome)
    assert end.ended is Ended.INVALID_OUTPUT and end.reason.startswith("line 3 of its answer is no receipt: ")


@pytest.mark.parametrize("pieces", [1, 7], ids=["at once", "in pieces"])
@pytest.mark.parametrize("ending", [b"\n", b""], ids=["whole", "endless"])
def test_a_line_has_a_largest_size(pieces: int, ending: bytes) -> None:
    line = RUNNING + b"\n" + json.dumps({"kind": "succeeded", "output": "x" * 100}).encode() + ending
    step = -(-len(line) // pieces)
    end = end_of(*(line[n : n + step] for n in range(0, len(line), step)), max_bytes=100)
    assert (end.ended, end.reason) == (Ended.TOO_LARGE, "line 2 of its answer is larger than 100 bytes")


def test_an_output_may_be_null() -> None:
    assert end_of(b'{"kind":"succeeded","output":null}') == Outcome(Ended.SUCCEEDED)
