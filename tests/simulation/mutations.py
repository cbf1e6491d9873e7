"""Mistakes put into production code, one at a time: if the rules of `watch` are worth something, each breaks one."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import receipts.journal
import routing.core.plan
import routing.dispatch
import routing.engine
import routing.health
from receipts.core.lifecycle import ending
from receipts.core.recovery import Takeover
from receipts.errors import CallNotFound
from routing.core.plan import Stop
from routing.health import NodeLoad

Mutation = Callable[[], AbstractContextManager[Any]]


def replacing(place: Any, name: str, make: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Put what `make` makes of the original in its place."""
    return patch.object(place, name, make(getattr(place, name)))


@contextmanager
def all_of(*mutations: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for mutation in mutations:
            stack.enter_context(mutation)
        yield


# --- Breakers and retries --------------------------------------------------------------------------------------------


def breaker_never_closes() -> AbstractContextManager[Any]:
    """The success of a trial changes nothing."""

    def make(original: Any) -> Any:
        def after_attempt(breaker: Any, rules: Any, **facts: Any) -> Any:
            if breaker.opened_at_s is not None and facts["began_s"] >= breaker.since_s:
                facts["failed"] = True
            return original(breaker, rules, **facts)

        return after_attempt

    return replacing(routing.health, "after_attempt", make)


def breaker_stops_nobody() -> AbstractContextManager[Any]:
    return all_of(
        patch.object(NodeLoad, "shut", lambda load: {}), patch.object(NodeLoad, "is_open", lambda load, key: False)
    )


def budget_ignored() -> AbstractContextManager[Any]:
    return patch.object(NodeLoad, "retry_refusal", lambda load, service_id: None)


def no_jitter() -> AbstractContextManager[Any]:
    def make(original: Any) -> Any:
        return lambda retry, *, base_ms, chance: original(retry, base_ms=base_ms, chance=0.5)

    return replacing(routing.core.plan, "backoff_ms", make)


def unsafe_is_repeated() -> AbstractContextManager[Any]:
    """What may have worked is tried again, whatever its capability declares."""

    def make(original: Any) -> Any:
        return lambda outcome, *, idempotent: original(outcome, idempotent=True)

    return replacing(routing.core.plan, "may_repeat", make)


def retry_after_the_deadline() -> AbstractContextManager[Any]:
    """Further attempts know neither the deadline nor the 30 s."""

    def decided(original: Any) -> Any:
        def decide(journey: Any, parts: Any) -> Any:
            step = original(journey, parts)
            if isinstance(step, Stop) and step.ending.code in ("deadline_exceeded", "upstream_error") and journey.tried:
                first = journey.first_forwarded_at_millis or 0
                return routing.core.plan.next_step(
                    journey, parts.tables, parts.load, parts.policy, now_millis=first, chance=parts.chance.random
                )
            return step

        return decide

    return all_of(replacing(routing.dispatch, "decide", decided), late_writes_are_sent())


def late_writes_are_sent() -> AbstractContextManager[Any]:
    """The second look does not look at the time: a write that took long is sent all the same."""

    def make(original: Any) -> Any:
        def second_look(journey: Any, attempt: Any, parts: Any, *, now_millis: int) -> Any:
            return original(journey, attempt, parts, now_millis=journey.first_forwarded_at_millis or 0)

        return second_look

    return replacing(routing.dispatch, "second_look", make)


# --- Durability and fencing ------------------------------------------------------------------------------------------


def no_fencing() -> AbstractContextManager[Any]:
    """Whoever once held a call goes on writing to it."""

    def make(original: Any) -> Any:
        def move(journal: Any, row: Any, receipts: Any, give_up_at: float | None = None) -> Any:
            row.owner = row.epoch = row.step = None
            return original(journal, row, receipts, give_up_at)

        return move

    return replacing(receipts.journal.Journal, "move", make)


def forwarded_after_sending() -> AbstractContextManager[Any]:
    """The first attempt and every further one leave before they are on disk."""

    def accepted(original: Any) -> Any:
        async def accept(journal: Any, row: Any, receipts: Any) -> Any:
            if row.async_rank is not None:  # that is no attempt yet
                return await original(journal, row, receipts)
            asyncio.ensure_future(original(journal, row, receipts)).add_done_callback(quietly)
            return None

        return accept

    def begun(original: Any) -> Any:
        async def begin_attempt(*given: Any) -> bool:
            asyncio.ensure_future(original(*given)).add_done_callback(quietly)
            return True

        return begin_attempt

    return all_of(
        replacing(receipts.journal.Journal, "accept", accepted), replacing(routing.dispatch, "begin_attempt", begun)
    )


def quietly(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()


def told_before_it_is_written() -> AbstractContextManager[Any]:
    def make(original: Any) -> Any:
        async def close(call: Any, journey: Any, end: Any, why: Any, node: Any, attempts: int, parts: Any) -> Any:
            writing = asyncio.ensure_future(original(call, journey, end, why, node, attempts, parts))
            writing.add_done_callback(quietly)
            status = ending(end.code, attempted=attempts > 0)
            return routing.dispatch.result_of(journey, status, end, why, node, duration_ms=0, attempts=attempts)

        return close

    return replacing(routing.dispatch, "close", make)


# --- Recovery --------------------------------------------------------------------------------------------------------


def nobody_takes_over() -> AbstractContextManager[Any]:
    async def claim_orphans(journal: Any, limit: int) -> list[Any]:
        return []

    return patch.object(routing.engine, "claim_orphans", claim_orphans)


def adoption_removed() -> AbstractContextManager[Any]:
    """An attempt that may still be at work is not waited for but made again."""

    def make(original: Any) -> Any:
        def takeover(*given: Any, **facts: Any) -> Takeover:
            action = original(*given, **facts)
            return Takeover.REPEAT if action is Takeover.FOLLOW else action

        return takeover

    def repeated(original: Any) -> Any:
        return lambda outcome, *, idempotent: original(outcome, idempotent=idempotent or outcome.ours)

    return all_of(replacing(routing.engine, "takeover", make), replacing(routing.core.plan, "may_repeat", repeated))


def lease_never_expires() -> AbstractContextManager[Any]:
    def make(original: Any) -> Any:
        def init(journal: Any, *given: Any, **facts: Any) -> None:
            original(journal, *given, **facts)
            journal.lease = (*journal.lease[:-1], 1e9)

        return init

    return replacing(receipts.journal.Journal, "__init__", make)


def waits_are_not_woken() -> AbstractContextManager[Any]:
    """Neither by a notification nor by the net behind it."""

    async def ended_call(call_id: Any, parts: Any, *, until: Any = None) -> Any:
        await asyncio.get_running_loop().create_future()
        raise CallNotFound("never")

    return patch.object(routing.dispatch, "ended_call", ended_call)


def places_are_not_given_back() -> AbstractContextManager[Any]:
    """A node stays in flight for ever where its attempt was given up before it was sent."""
    return patch.object(NodeLoad, "give_back", lambda load, chosen: None)


# --- Asynchronous calls ----------------------------------------------------------------------------------------------


def nobody_looks_for_who_waits() -> AbstractContextManager[Any]:
    """No engine, neither by a notification nor by the net behind it."""

    async def what_is_due(journal: Any) -> dict[str, bool]:
        return {"calls": False, "callbacks": False}

    return all_of(
        patch.object(routing.engine, "what_is_due", what_is_due),
        patch.object(routing.engine.Engine, "notice", lambda engine, payload: None),
    )


def given_back_is_not_written() -> AbstractContextManager[Any]:
    """A call that should have let others have a turn is held, and nobody carries it."""

    async def give_back(journal: Any, held: Any) -> None:
        pass

    return patch.object(routing.engine, "give_back", give_back)


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        breaker_never_closes,
        breaker_stops_nobody,
        budget_ignored,
        no_jitter,
        unsafe_is_repeated,
        retry_after_the_deadline,
        no_fencing,
        forwarded_after_sending,
        told_before_it_is_written,
        nobody_takes_over,
        adoption_removed,
        lease_never_expires,
        waits_are_not_woken,
        places_are_not_given_back,
        nobody_looks_for_who_waits,
        given_back_is_not_written,
    )
}
