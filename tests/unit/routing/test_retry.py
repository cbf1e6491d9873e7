"""Whether an attempt may be repeated, and after how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipts.core.journey import Ended, Outcome
from routing.core.retry import backoff_ms, may_repeat

HARMLESS = "harmless"  # may always be repeated
SAFE = "safe"  # may be repeated when the capability is idempotent
NEVER = "never"

TABLE = [
    pytest.param(Outcome(Ended.NOT_STARTED), HARMLESS, id="not started"),
    pytest.param(Outcome(Ended.NOT_STARTED, retryable=True), HARMLESS, id="not started, retryable"),
    pytest.param(Outcome(Ended.NOT_STARTED, retryable=False), NEVER, id="not started, but the node says never"),
    pytest.param(Outcome(Ended.BROKEN), SAFE, id="broken connection"),
    pytest.param(Outcome(Ended.BROKEN, retryable=False), NEVER, id="broken, but the node says never"),
    pytest.param(Outcome(Ended.SILENT), SAFE, id="fell silent"),
    pytest.param(Outcome(Ended.FAILED, retryable=True), SAFE, id="failed, retryable"),
    pytest.param(Outcome(Ended.FAILED, retryable=False), NEVER, id="failed, not retryable"),
    pytest.param(Outcome(Ended.FAILED), NEVER, id="failed, nothing said"),
    pytest.param(Outcome(Ended.TIMED_OUT), NEVER, id="the deadline has passed"),
    pytest.param(Outcome(Ended.INVALID_OUTPUT), NEVER, id="an output that will not get better"),
    pytest.param(Outcome(Ended.TOO_LARGE), NEVER, id="an answer that will not get smaller"),
]


@pytest.mark.parametrize(("outcome", "verdict"), TABLE)
def test_what_may_be_repeated(outcome, verdict):
    assert may_repeat(outcome, idempotent=True) is (verdict in (HARMLESS, SAFE))
    assert may_repeat(outcome, idempotent=False) is (verdict is HARMLESS)


@given(
    ended=st.sampled_from(Ended),
    retryable=st.sampled_from([None, True, False]),
    status=st.integers(100, 599) | st.none(),
)
def test_what_is_not_idempotent_is_repeated_only_if_it_had_not_started(ended, retryable, status):
    outcome = Outcome(ended, retryable=retryable, http_status=status)
    assert may_repeat(outcome, idempotent=False) is (ended is Ended.NOT_STARTED and retryable is not False)


@given(retry=st.integers(1, 10), base_ms=st.integers(0, 60_000), chance=st.floats(0, 1, exclude_max=True))
def test_the_rest_doubles_and_is_scattered_by_half_of_itself(retry, base_ms, chance):
    middle = base_ms * 2 ** (retry - 1)
    assert middle * 0.5 - 1 <= backoff_ms(retry, base_ms=base_ms, chance=chance) <= middle * 1.5 + 1


def test_the_first_rest_is_the_base_delay_on_average():
    assert backoff_ms(1, base_ms=100, chance=0.5) == 100
    assert backoff_ms(2, base_ms=100, chance=0.5) == 200


def test_there_is_no_retry_before_the_first():
    with pytest.raises(ValueError, match="retry 0"):
        backoff_ms(0, base_ms=100, chance=0.5)
