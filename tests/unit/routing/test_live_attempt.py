"""What receipts do to an attempt's time: arm it, end it, and leave it alone when it is over."""

import asyncio

from receipts.core.journey import Ended, Outcome
from routing.dispatch import LiveAttempt


async def ended_by(*, deadline_in_s: float, idle_s: float, hears: bool) -> Outcome | None:
    """The verdict on an attempt that nobody answers."""
    deadline_at = asyncio.get_running_loop().time() + deadline_in_s
    try:
        async with asyncio.timeout_at(deadline_at) as scope:
            live = LiveAttempt(scope, deadline_at, idle_s)
            if hears:
                live.hear()
            await asyncio.Event().wait()
    except TimeoutError:
        pass
    return live.verdict()


async def test_one_that_never_reported_is_judged_by_its_deadline_alone():
    outcome = await ended_by(deadline_in_s=0.02, idle_s=0.001, hears=False)
    assert outcome is not None
    assert outcome.ended is Ended.TIMED_OUT


async def test_silence_after_a_sign_of_life_ends_it_before_the_deadline():
    outcome = await ended_by(deadline_in_s=60, idle_s=0.01, hears=True)
    assert outcome is not None
    assert outcome.ended is Ended.SILENT


async def test_a_deadline_before_the_silence_is_up_is_no_silence():
    outcome = await ended_by(deadline_in_s=0.02, idle_s=30, hears=True)
    assert outcome is not None
    assert outcome.ended is Ended.TIMED_OUT


async def test_a_timer_that_rings_a_moment_early_tells_of_no_silence():
    deadline_at = asyncio.get_running_loop().time() + 60
    async with asyncio.timeout_at(deadline_at) as scope:
        live = LiveAttempt(scope, deadline_at, 90)
        live.hear()
        outcome = live.verdict()
    assert outcome is not None
    assert outcome.ended is Ended.TIMED_OUT


async def test_what_is_heard_after_its_end_changes_nothing():
    deadline_at = asyncio.get_running_loop().time() + 60
    async with asyncio.timeout_at(deadline_at) as scope:
        live = LiveAttempt(scope, deadline_at, 1)
    live.hear()
    live.end(None)
    assert live.verdict() is None
