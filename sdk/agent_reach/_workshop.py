"""Where handlers run: slots, duplicates, signs of life, and the end of each task."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_reach import _wire
from agent_reach._context import BaseContext, Context, Dispatch, ThreadContext, enter
from agent_reach._handlers import Handler, in_thread, name_of
from agent_reach._memory import Memory
from agent_reach._outbox import Delivery, Outbox, Receipt
from agent_reach._tracing import handler_span
from agent_reach._wire import Ending, failure
from agent_reach.errors import InvalidPayload, NotJson, ReachError, Refuse, TaskFailed
from agent_reach.models import Envelope

log = logging.getLogger("agent_reach")

OVERDUE_S = 1.0
"""A task that is at work so long after its deadline is stuck."""
WorkKey = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Job:
    """One run of a handler, and every attempt that waits for it. Moments are of the monotonic clock."""

    envelope: Envelope
    attempt: int
    """The latest attempt: the one that Agent-Reach listens to."""
    alive_s: float
    """When the handler last showed that it goes on: began, reported progress or made a call of its own."""
    ended: asyncio.Future[Ending]
    attempts: set[int] = field(default_factory=set)
    context: BaseContext | None = None
    task: asyncio.Task[None] | None = None
    stopped: str = ""
    """Why it was told to stop, if it was: "cancelled" or "node_stopped"."""

    def stop(self, why: str) -> None:
        """Set `ctx.cancelled`, and interrupt the handler if it is one of the event loop."""
        self.stopped = why
        if self.context is not None:
            self.context.cancelled.set()
        if self.task is not None and (why == "node_stopped" or isinstance(self.context, Context)):
            self.task.cancel()


class Workshop:
    """Belongs to one event loop."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        outbox: Outbox,
        dispatch: Dispatch,
        *,
        max_concurrency: int,
        running_interval_s: float,
        stalled_after_s: float,
    ):
        self.handlers = handlers
        self.is_closing = False
        self._outbox, self._dispatch = outbox, dispatch
        self._max_concurrency = max_concurrency
        self._running_interval_s, self._stalled_after_s = running_interval_s, stalled_after_s
        self._jobs: dict[str, Job] = {}
        self._by_key: dict[WorkKey, Job] = {}
        self._memory = Memory()

    @property
    def in_flight(self) -> int:
        return len(self._jobs)

    def take(self, envelope: Envelope) -> Job | Ending:
        """Join what is at work, answer what has been done, refuse what cannot be done, or begin.

        Nothing is awaited between looking and beginning, so no attempt can run twice.
        """
        key = work_key(envelope)
        if (job := self._joinable(envelope, key)) is not None:
            return job
        for known in ((envelope.call_id, envelope.attempt), envelope.call_id, key):
            if known is not None and (ending := self._memory.recall(known)) is not None:
                return ending
        if self.is_closing:
            return failure(503, "stopping", "this node is stopping and takes no new task", retryable=True)
        if time.monotonic() >= envelope.deadline_s:
            return failure(504, "deadline_exceeded", "the task had expired when it arrived", retryable=False)
        handler = self.handlers.get(envelope.capability)
        if handler is None:
            return failure(503, "unknown_capability", f"{envelope.capability} is not offered here", retryable=True)
        if len(self._jobs) >= self._max_concurrency:
            return failure(429, "busy", f"all {self._max_concurrency} slots are taken", retryable=True)
        try:
            payload = handler.accept(envelope.payload)
        except InvalidPayload as exc:
            return failure(422, exc.code, sentence(exc), retryable=False, errors=exc.errors)
        return self._begin(envelope, key, handler, payload)

    def _joinable(self, envelope: Envelope, key: WorkKey | None) -> Job | None:
        """The run that does this very work already. Another attempt at the same call takes it over."""
        if (job := self._jobs.get(envelope.call_id)) is not None:
            job.attempt = max(job.attempt, envelope.attempt)
            job.attempts.add(envelope.attempt)
            return job
        same = self._by_key.get(key) if key is not None else None
        return same if same is not None and not same.stopped else None

    def _begin(self, envelope: Envelope, key: WorkKey | None, handler: Handler, payload: Any) -> Job:
        loop = asyncio.get_running_loop()
        job = Job(envelope, envelope.attempt, time.monotonic(), loop.create_future(), {envelope.attempt})

        async def report(progress: float | None, message: str | None) -> None:
            job.alive_s = time.monotonic()
            await self._report(job, progress, message)

        async def call(capability: str, payload: Any, options: Any, traceparent: str | None) -> Any:
            job.alive_s = time.monotonic()
            try:
                return await self._dispatch(capability, payload, options, traceparent)
            finally:
                job.alive_s = time.monotonic()

        kind = Context if handler.is_async else ThreadContext
        headers = _wire.trace_headers(envelope.trace_id, envelope.call_id, envelope.attempt, envelope.traceparent)
        job.context = kind(envelope, report, call, headers)
        self._jobs[envelope.call_id] = job
        if key is not None:
            self._by_key[key] = job
        job.task = loop.create_task(self._work(job, key, handler, payload, job.context))
        return job

    async def _work(self, job: Job, key: WorkKey | None, handler: Handler, payload: Any, context: BaseContext) -> None:
        loop = asyncio.get_running_loop()
        beats = loop.create_task(self._beat(job))
        over = loop.call_later(max(0.0, job.envelope.deadline_s - time.monotonic()), context.cancelled.set)
        try:
            ending = await run(job, handler, payload, context)
        finally:
            beats.cancel()
            over.cancel()
            del self._jobs[job.envelope.call_id]
            if key is not None and self._by_key.get(key) is job:
                del self._by_key[key]
        self._remember(job, key, ending)
        job.ended.set_result(ending)

    def _remember(self, job: Job, key: WorkKey | None, ending: Ending) -> None:
        """Each attempt is never run again; a whole call, or key, only when it succeeded: a failure may be retried."""
        for attempt in job.attempts:
            self._memory.remember((job.envelope.call_id, attempt), ending)
        if ending.succeeded:
            self._memory.remember(job.envelope.call_id, ending)
            if key is not None:
                self._memory.remember(key, ending)

    async def _report(self, job: Job, progress: float | None, message: str | None) -> None:
        attempt = job.attempt
        body = _wire.running_receipt(attempt, progress, message)
        delivery = await self._outbox.post(Receipt(job.envelope.call_id, attempt, body, is_last=False))
        self._note(job, attempt, delivery)

    async def _beat(self, job: Job) -> None:
        """Say that the task is at work, again and again, until Agent-Reach does not want to hear it any more."""
        while True:
            await asyncio.sleep(self._running_interval_s)
            attempt = job.attempt
            if self._note(job, attempt, await self._outbox.beat(job.envelope.call_id, attempt)):
                return

    def _note(self, job: Job, attempt: int, delivery: Delivery) -> bool:
        """Tell the handler when its result is not wanted any more; whether that is so."""
        is_over = delivery is Delivery.REFUSED and attempt == job.attempt
        if is_over and job.context is not None:
            job.context.cancelled.set()
        return is_over

    def cancel(self, call_id: str, attempt: int | None) -> bool:
        """Stop a task whose caller does not want it any more; False when it is not at work here."""
        job = self._jobs.get(call_id)
        if job is None or (attempt is not None and attempt != job.attempt):
            return False
        job.stop("cancelled")
        return True

    def is_stalled(self) -> bool:
        """Whether every slot is taken and none of the tasks goes on."""
        now = time.monotonic()
        return len(self._jobs) >= self._max_concurrency and all(self._is_stuck(job, now) for job in self._jobs.values())

    def _is_stuck(self, job: Job, now: float) -> bool:
        """Past its deadline; or silent for half of its budget, and for `stalled_after_s` at least."""
        quiet_s = now - job.alive_s
        is_overdue = now > job.envelope.deadline_s + OVERDUE_S
        return is_overdue or quiet_s > max(self._stalled_after_s, job.envelope.budget_s / 2)

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let what is at work finish for so long, then stop it."""
        self.is_closing = True
        at_work = {job.task for job in self._jobs.values() if job.task is not None}
        if at_work:
            log.info("%d tasks at work may finish, for at most %g s", len(at_work), timeout_s)
            await asyncio.wait(at_work, timeout=timeout_s)
        left = list(self._jobs.values())
        for job in left:
            log.warning("call %s was stopped: it did not finish in time", job.envelope.call_id)
            job.stop("node_stopped")
        tasks = {job.task for job in left if job.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)


def work_key(envelope: Envelope) -> WorkKey | None:
    """What makes two calls the same work: caller, capability, idempotency key and payload; None without a key."""
    if envelope.idempotency_key is None:
        return None
    return (envelope.caller, envelope.capability, envelope.idempotency_key, _wire.digest_of(envelope.payload))


async def run(job: Job, handler: Handler, payload: Any, context: BaseContext) -> Ending:
    """Run the handler; whatever it does becomes an Ending."""
    enter(context)
    try:
        with handler_span(job.envelope, context.headers):
            context.enter_span()
            if handler.is_async:
                output = await handler.function(payload, context)
            else:
                output = await in_thread(handler.function, payload, context)
            return _wire.success(output)
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        if job.stopped == "cancelled":
            return failure(409, "cancelled", "the call was cancelled", retryable=False)
        if job.stopped:
            return failure(500, job.stopped, "the node stopped before the task was done", retryable=True)
        return failure(500, "handler_error", "the handler was cancelled from within", retryable=True)
    except TaskFailed as exc:
        context.logger.info("failed: %s", exc)
        return failure(500, exc.code, exc.detail, retryable=exc.retryable)
    except Refuse as exc:
        return failure(503, exc.code, exc.detail, retryable=True)
    except NotJson as exc:
        context.logger.error("%s", exc)
        return failure(500, "invalid_result", str(exc), retryable=False)
    except ReachError as exc:  # of a call of its own: that has had its retries, and they must not multiply
        context.logger.warning("failed by a call of its own: %s", exc)
        return failure(500, exc.code or "call_failed", sentence(exc), retryable=False)
    except (Exception, SystemExit) as exc:
        context.logger.exception("%s failed", name_of(handler.function))
        return failure(500, "handler_error", f"{type(exc).__name__}: {exc}", retryable=True)


def sentence(exc: ReachError) -> str:
    """What went wrong and where, without advice for people."""
    places = [f"{error.get('path', '')} {error.get('message', '')}".strip() for error in exc.errors[:5]]
    return ": ".join([exc.detail, *places])
