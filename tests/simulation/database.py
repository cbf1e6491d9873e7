"""The simulated PostgreSQL: sessions with a way to it that takes time, breaks, hangs, and loses answers."""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import psycopg
from psycopg_pool import PoolTimeout

from receipts import journal
from registry import health
from tests.simulation.model import Notice, Tables
from tests.simulation.scheduler import ProcessLoop, Scheduler

EPOCH_S = 1_790_000_000.0
"""The database's clock at the beginning of the world."""
WAY_S, WORK_S = 0.0003, 0.0008
"""To the server, and what a commit takes there, on average."""
CONNECT_PATIENCE_S = 5.0
READERS = 2
SURVIVES = 0.5
"""Of the statements that were on their way when a session broke: so many had been sent whole and are done unseen."""


class Request:
    """A statement on its way, and who waits for its answer."""

    __slots__ = ("answer", "answered", "apply", "is_sent_whole", "session")

    def __init__(self, session: "Session", apply: Callable[[], Any], answered: asyncio.Future[Any]):
        self.session, self.apply, self.answered = session, apply, answered
        self.answer: Any = None
        self.is_sent_whole = False


class Database:
    """The server. What it does takes place in the world's time, whatever becomes of who has asked."""

    def __init__(self, scheduler: Scheduler, chance: Random):
        self.scheduler, self.chance = scheduler, chance
        self.tables = Tables()
        self.sessions: dict[Session, None] = {}
        self.listening: dict[str, dict[Session, None]] = {}
        """By channel."""
        self.is_away = False
        self.is_hung = False
        self.slowness = 1.0
        self.parked: list[Request] = []
        self.serving = scheduler.world
        """Whose statement is being done."""
        self.waiting: list[asyncio.Future[None]] = []
        """For its return, or for an end of the partition."""
        self.cut_off: set[ProcessLoop] = set()
        self.registry_told: Callable[[str, tuple[Any, ...]], None] = lambda sql, parameters: None
        """Told of statements that speak of nodes."""

    def now_ms(self) -> float:
        return (EPOCH_S + self.scheduler.now_s) * 1000

    def is_reachable(self, loop: ProcessLoop) -> bool:
        return not self.is_away and loop not in self.cut_off

    # --- Faults ------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """It is gone: every session breaks, nobody gets a new one."""
        self.is_away = True
        for session in list(self.sessions):
            session.break_()

    def come_back(self) -> None:
        self.is_away = False
        self.tell_waiting()

    def cut(self, loop: ProcessLoop) -> None:
        """This process's way to it is broken."""
        self.cut_off.add(loop)
        for session in list(self.sessions):
            if session.loop is loop:
                session.break_()

    def mend(self, loop: ProcessLoop) -> None:
        self.cut_off.discard(loop)
        self.tell_waiting()

    def tell_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def break_some(self) -> None:
        """Sessions break (a failover, a proxy restarted); new ones are there at once."""
        for session in list(self.sessions):
            session.break_()

    def hang(self) -> None:
        """It takes statements and does nothing."""
        self.is_hung = True

    def go_on(self) -> None:
        self.is_hung = False
        parked, self.parked = self.parked, []
        for request in parked:
            self.arrive(request)

    # --- Statements --------------------------------------------------------------------------------------------------

    def ask(self, session: "Session", apply: Callable[[], Any]) -> asyncio.Future[Any]:
        request = Request(session, apply, session.loop.create_future())
        session.pending[request] = None
        if session.is_broken:
            request.answered.set_exception(lost())
        else:
            self.scheduler.after(WAY_S * self.slowness * (0.5 + self.chance.random()), self.arrive, request)
        return request.answered

    def arrive(self, request: Request) -> None:
        if request.session.is_broken and not request.is_sent_whole:
            return
        if self.is_hung:
            request.is_sent_whole = True
            self.parked.append(request)
            return
        self.serving = request.session.loop
        try:
            request.answer = request.apply()
        except psycopg.Error as exc:
            request.answer = exc
        self.notify()
        self.scheduler.after(WORK_S * self.slowness * (0.5 + self.chance.random()), self.answer, request)

    def notify(self) -> None:
        """Pass on what the last statement has told."""
        for notice in self.tables.take_notices():
            for ears in self.listening.get(notice.channel, ()):
                self.scheduler.after(WAY_S * (0.5 + self.chance.random()), ears.hear, notice)

    def answer(self, request: Request) -> None:
        request.session.pending.pop(request, None)
        if request.session.is_broken or request.answered.done():
            return
        if isinstance(request.answer, psycopg.Error):
            request.answered.set_exception(request.answer)
        else:
            request.answered.set_result(request.answer)

    def run(self, sql: str, parameters: Any) -> list[dict[str, Any]]:
        if sql in ABOUT_NODES:
            self.registry_told(sql, parameters)
            return []
        if isinstance(parameters, dict):
            parameters = (parameters,)
        return self.tables.run(sql, tuple(parameters), now_ms=self.now_ms())


ABOUT_NODES = frozenset({health.SUSPECT, health.EJECT, health.READMIT})


def lost() -> psycopg.OperationalError:
    return psycopg.OperationalError("the connection is lost")


class Session:
    """As far as the journal uses a psycopg connection."""

    def __init__(self, database: Database, loop: ProcessLoop):
        self.database, self.loop = database, loop
        self.pending: dict[Request, None] = {}
        self.is_broken = False
        self.heard: deque[Notice] = deque()
        self.ears: asyncio.Future[None] | None = None
        self.channels: list[str] = []
        database.sessions[self] = None

    @property
    def closed(self) -> bool:
        return self.is_broken

    def break_(self) -> None:
        """Both ends lose it. What was sent whole is done all the same; its answer reaches nobody."""
        if self.is_broken:
            return
        self.is_broken = True
        self.database.sessions.pop(self, None)
        for channel in self.channels:
            self.database.listening[channel].pop(self, None)
        for request in self.pending:
            request.is_sent_whole = request.is_sent_whole or self.database.chance.random() < SURVIVES
            if not request.answered.done():
                request.answered.set_exception(lost())
        if self.ears is not None and not self.ears.done():
            self.ears.set_exception(lost())

    async def close(self) -> None:
        self.break_()

    async def execute(self, sql: str, parameters: Any = ()) -> "Result":
        if sql.startswith("LISTEN "):
            await self.database.ask(self, lambda: None)
            if not self.is_broken:
                self.channels.append(channel := sql.removeprefix("LISTEN "))
                self.database.listening.setdefault(channel, {})[self] = None
            return Result([])
        return Result(await self.database.ask(self, lambda: self.database.run(sql, parameters)))

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *_exc: Any) -> None:
        self.break_()

    # --- Listening ---------------------------------------------------------------------------------------------------

    def hear(self, notice: Notice) -> None:
        if self.is_broken:
            return
        self.heard.append(notice)
        if self.ears is not None and not self.ears.done():
            self.ears.set_result(None)

    def notifies(self) -> "Session":
        return self

    def __aiter__(self) -> "Session":
        return self

    async def __anext__(self) -> Notice:
        while not self.heard:
            if self.is_broken:
                raise lost()
            self.ears = self.loop.create_future()
            await self.ears
        return self.heard.popleft()


class Result:
    """Rows, as psycopg gives them: dictionaries to the readers, tuples to the lanes."""

    def __init__(self, rows: list[dict[str, Any]], *, as_tuples: bool = True):
        self.rows, self.as_tuples = rows, as_tuples
        self.description = True

    async def fetchall(self) -> list[Any]:
        return [tuple(row.values()) for row in self.rows] if self.as_tuples else self.rows


class Statement:
    """As far as a lane uses a `Prepared`."""

    def __init__(self, session: Session, sql: str):
        self.session, self.sql = session, sql
        self.asked: asyncio.Future[Any] | None = None

    def run(self, *parameters: bytes) -> asyncio.Future[list[tuple[str | None, ...]]]:
        database, tables = self.session.database, self.session.database.tables
        if self.sql is journal.ACCEPT:
            self.asked = database.ask(self.session, lambda: tables.accept(*parameters, now_ms=database.now_ms()))
        else:
            self.asked = database.ask(self.session, lambda: tables.move(*parameters))
        return self.asked

    def give_up(self, why: str) -> None:
        if self.asked is not None and not self.asked.done():
            self.asked.set_exception(psycopg.OperationalError(why))


class Sessions:
    """One process's sessions: what `receipts.journal.PostgreSQL` is to a real one."""

    def __init__(self, database: Database, loop: ProcessLoop):
        self.database, self.loop = database, loop

    async def open(self, name: str, options: str = "") -> Session:
        database = self.database
        if not database.is_reachable(self.loop):
            await asyncio.sleep(WAY_S)
            raise psycopg.OperationalError("connection refused")
        session = Session(database, self.loop)
        try:
            async with asyncio.timeout(CONNECT_PATIENCE_S):
                await database.ask(session, lambda: None)
        except TimeoutError as exc:
            session.break_()
            raise psycopg.OperationalError("connection timeout expired") from exc
        return session

    def prepared(self, session: Session, statement: str) -> Statement:
        return Statement(session, statement)

    def readers(self) -> "Readers":
        return Readers(self)


class Readers:
    """As far as the journal uses a psycopg pool."""

    def __init__(self, sessions: Sessions):
        self.sessions = sessions
        self.free: list[Session] = []
        self.room = READERS
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        for session in self.free:
            session.break_()

    def connection(self) -> "Reader":
        return Reader(self)


class Reader:
    def __init__(self, pool: Readers):
        self.pool = pool

    async def __aenter__(self) -> "Reader":
        pool = self.pool
        while not pool.room:
            await self.room()
        pool.room -= 1
        try:
            self.session = pool.free.pop() if pool.free else await self.connected()
        except BaseException:
            self.leave()
            raise
        return self

    async def room(self) -> None:
        waiting = self.pool.sessions.loop.create_future()
        self.pool.waiting.append(waiting)
        try:
            async with asyncio.timeout(CONNECT_PATIENCE_S):
                await waiting
        except TimeoutError as exc:
            raise PoolTimeout("couldn't get a connection") from exc

    def leave(self) -> None:
        pool = self.pool
        pool.room += 1
        while pool.waiting:
            if not (first := pool.waiting.popleft()).done():
                first.set_result(None)
                break

    async def connected(self) -> Session:
        sessions = self.pool.sessions
        try:
            async with asyncio.timeout(CONNECT_PATIENCE_S):
                while True:
                    while not sessions.database.is_reachable(sessions.loop):
                        back = sessions.loop.create_future()
                        sessions.database.waiting.append(back)
                        await back
                    try:
                        return await sessions.open("reach read")
                    except psycopg.OperationalError:
                        await asyncio.sleep(WAY_S)
        except TimeoutError as exc:
            raise PoolTimeout("couldn't get a connection") from exc

    async def __aexit__(self, *_exc: Any) -> None:
        if not self.session.is_broken and not self.session.pending:
            self.pool.free.append(self.session)
        else:
            self.session.break_()
        self.leave()

    async def execute(self, sql: str, parameters: Any) -> Result:
        session = self.session
        rows = await session.database.ask(session, lambda: session.database.run(sql, parameters))
        return Result(rows, as_tuples=False)
