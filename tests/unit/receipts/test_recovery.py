"""What becomes of a call whose process is gone, from its receipts alone."""

import pytest

from receipts.core.recovery import Seen, Takeover, progress_of, takeover


def seen(kind: str, attempt: int | None = None, node: str = "a/1") -> Seen:
    service_id, _slash, node_id = node.partition("/")
    return Seen(kind, attempt, service_id, node_id, None)


ACCEPTED = [seen("accepted"), seen("routed")]
OUT = [*ACCEPTED, seen("forwarded", 1)]
FAILED = [*OUT, seen("attempt_failed", 1), seen("retry_scheduled", 1)]


@pytest.mark.parametrize(
    ("receipts", "idempotent", "plain"),
    [
        pytest.param(ACCEPTED, Takeover.GO_ON, Takeover.GO_ON, id="nothing was sent"),
        pytest.param(OUT, Takeover.REPEAT, Takeover.FOLLOW, id="sent, nothing heard"),
        pytest.param([*OUT, seen("running", 1)], Takeover.FOLLOW, Takeover.FOLLOW, id="sent, and it reports"),
        pytest.param([*OUT, seen("acknowledged", 1)], Takeover.FOLLOW, Takeover.FOLLOW, id="sent and acknowledged"),
        pytest.param(FAILED, Takeover.GO_ON, Takeover.GO_ON, id="failed, resting before the next"),
        pytest.param(
            [*FAILED, seen("routed"), seen("forwarded", 2)], Takeover.REPEAT, Takeover.FOLLOW, id="the second is out"
        ),
        pytest.param(
            [*OUT, seen("running", 1), seen("attempt_failed", 1), seen("forwarded", 2)],
            Takeover.REPEAT,
            Takeover.FOLLOW,
            id="what the first reported says nothing of the second",
        ),
        pytest.param(
            [*OUT, seen("recovered"), seen("running", 1)], Takeover.FOLLOW, Takeover.FOLLOW, id="taken over once before"
        ),
    ],
)
def test_takeover(receipts, idempotent, plain):
    progress = progress_of(receipts)
    for is_idempotent, expected in ((True, idempotent), (False, plain)):
        facts = {"idempotent": is_idempotent, "deadline_millis": 100, "repeat_until_millis": 100}
        assert takeover(progress, **facts, now_millis=99) is expected
        assert takeover(progress, **facts, now_millis=100) is Takeover.EXPIRE


def test_what_cannot_be_repeated_any_more_is_followed():
    """Its node may have done the work: whether it did, a late receipt may still tell."""
    facts = {"idempotent": True, "deadline_millis": 100, "repeat_until_millis": 50}
    assert takeover(progress_of(OUT), **facts, now_millis=49) is Takeover.REPEAT
    assert takeover(progress_of(OUT), **facts, now_millis=50) is Takeover.FOLLOW
    assert takeover(progress_of(FAILED), **facts, now_millis=50) is Takeover.GO_ON


def test_progress_names_the_failed_and_the_open_attempt():
    progress = progress_of([*FAILED, seen("routed"), seen("forwarded", 2, "b/1")])
    assert [(f.attempt, f.service_id) for f in progress.failed] == [(1, "a")]
    assert progress.open is not None and (progress.open.attempt, progress.open.service_id) == (2, "b")
