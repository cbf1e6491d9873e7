"""Simulated time: one queue of what happens next, and an asyncio event loop for each simulated process.

Nothing here waits. When nobody has anything to do, the clock jumps to the next timer. What happens at one moment
happens in the order in which it was asked for, so one seed makes one history.
"""

import asyncio
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

WINDING_UP = 20
"""Rounds of cancelling in which the tasks of a killed process end."""


class Handle:
    """Something to call, unless it is cancelled or its process is gone."""

    __slots__ = ("args", "callback", "loop")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], loop: "ProcessLoop"):
        self.callback: Callable[..., Any] | None = callback
        self.args, self.loop = args, loop

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class Scheduler:
    """The one queue. `now_s` counts from 0, the beginning of the world."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ready: deque[Handle] = deque()
        self.timers: list[tuple[float, int, Handle]] = []
        self.timers_made = 0
        self.world = ProcessLoop(self, "the world")
        """Whose time does not depend on any process: nodes, the network, the database, callers."""
        self.running: ProcessLoop = self.world

    def at(self, when_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Have the world do something then."""
        self.put(when_s, Handle(callback, args, self.world))

    def after(self, wait_s: float, callback: Callable[..., Any], *args: Any) -> None:
        self.timers_made += 1
        heappush(self.timers, (self.now_s + wait_s, self.timers_made, Handle(callback, args, self.world)))

    def put(self, when_s: float, handle: Handle) -> Handle:
        self.timers_made += 1
        heappush(self.timers, (when_s, self.timers_made, handle))
        return handle

    def run(self, moved_on: Callable[[float], bool]) -> None:
        """Let things happen until `moved_on`, asked each time the clock is about to move, says that it is enough."""
        ready, timers = self.ready, self.timers
        try:
            while True:
                while ready:
                    handle = ready.popleft()
                    if (callback := handle.callback) is None:
                        continue
                    if (loop := handle.loop) is not self.running:
                        self.enter(loop)
                    if loop.held is not None:
                        loop.held.append(handle)
                    elif loop.is_alive:
                        callback(*handle.args)
                while timers and timers[0][2].callback is None:
                    heappop(timers)
                if not timers or moved_on(timers[0][0]):
                    return
                self.now_s = now_s = max(self.now_s, timers[0][0])
                while timers and timers[0][0] <= now_s:
                    ready.append(heappop(timers)[2])
        finally:
            self.leave()

    def enter(self, loop: "ProcessLoop") -> None:
        self.running = loop
        _set_running_loop(loop)

    def leave(self) -> None:
        """No loop runs any more, as far as asyncio knows."""
        self.running = self.world
        _set_running_loop(None)


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process, as asyncio's tasks, futures and timeouts need it."""

    def __init__(self, scheduler: Scheduler, name: str):
        self.scheduler, self.name = scheduler, name
        self.ready = scheduler.ready
        self.is_alive = True
        self.held: deque[Handle] | None = None
        """What waits while the process is stopped (SIGSTOP); None: it runs."""
        self.clock_off_s = 0.0
        """How far its host's clock is ahead of the database's."""
        self.tasks_made = 0
        self.when_failed: Callable[[BaseException], None] | None = None
        """Told of what a task of this process has let out that nobody waits for."""

    # --- Life and death ----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self.held is None:
            self.held = deque()

    def resume(self) -> None:
        """All that has become due meanwhile happens at once."""
        if self.held is not None:
            held, self.held = self.held, None
            self.ready.extend(held)

    def kill(self) -> None:
        """Nothing of it happens any more. Its tasks are wound up now, unseen, not whenever they are collected."""
        waiting = [handle for handle in (*(self.held or ()), *self.ready) if handle.loop is self]
        self.held = None
        self.ready = deque(waiting)
        self.scheduler.enter(self)
        for _round in range(WINDING_UP):
            for task in sorted(asyncio.all_tasks(self), key=in_order_of_making):
                task.cancel()
            if not self.ready:
                break
            while self.ready:
                handle = self.ready.popleft()
                if handle.callback is not None:
                    handle.callback(*handle.args)
                handle.cancel()
        self.is_alive = False
        self.scheduler.enter(self.scheduler.world)

    # --- What asyncio asks of a loop ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self.scheduler.now_s

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, self)
        self.ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self.scheduler.put(when, Handle(callback, args, self))

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self.scheduler.put(self.scheduler.now_s + delay, Handle(callback, args, self))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> Any:
        self.tasks_made += 1
        return asyncio.Task(coro, loop=self, name=name or f"{self.tasks_made:09}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a task has let out, and nobody has looked at (asyncio tells when the task is collected)."""
        if self.when_failed is not None and isinstance(context.get("future"), asyncio.Task) and "exception" in context:
            self.when_failed(context["exception"])


def in_order_of_making(task: "asyncio.Task[Any]") -> str:
    """Sets of tasks are in the order of their addresses, which is another one each time."""
    return task.get_name()
