"""One prepared statement on one connection, run without the driver's cursor.

The journal's lanes run the same statement for ever. psycopg's cursor plans, adapts and waits anew each time (150 µs of
CPU here); its `pgconn`, the documented wrapper of libpq, needs a third of that. Everything else uses psycopg as usual.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


class Prepared:
    """A statement that is prepared when first run. The connection must not be used by anybody else meanwhile."""

    def __init__(self, connection: psycopg.AsyncConnection, name: str, sql: str):
        """`sql` has libpq's `$1`, `$2`, … for its text parameters."""
        self.pgconn: PGconn = connection.pgconn
        self.name, self.sql = name.encode(), sql.encode()
        self.loop = asyncio.get_running_loop()
        self.is_prepared = False
        self.came: asyncio.Future[None] | None = None

    async def run(self, *parameters: bytes) -> list[tuple[str | None, ...]]:
        """The statement's rows, values as text.

        Raises psycopg.Error as psycopg does; after psycopg.OperationalError or a cancel the connection is of no use.
        """
        if not self.is_prepared:
            self.pgconn.send_prepare(self.name, self.sql)
            await self.result()
            self.is_prepared = True
        self.pgconn.send_query_prepared(self.name, parameters)
        return rows_of(await self.result())

    async def result(self) -> PGresult:
        pgconn, results = self.pgconn, []
        while pgconn.flush():
            await self.ready(self.loop.add_writer, self.loop.remove_writer)
        while True:
            while pgconn.is_busy():
                await self.ready(self.loop.add_reader, self.loop.remove_reader)
                pgconn.consume_input()
            if (result := pgconn.get_result()) is None:
                break
            results.append(result)
        if not results:
            raise psycopg.OperationalError("the connection is lost")
        if results[-1].status not in GOOD:
            raise psycopg.errors.error_from_result(results[-1])
        return results[-1]

    async def ready(self, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
        """Wait until the socket can be read or written."""
        self.came = came = self.loop.create_future()
        add(self.pgconn.socket, self.arrived)
        try:
            await came
        finally:
            self.came = None
            remove(self.pgconn.socket)

    def arrived(self) -> None:
        if self.came is not None and not self.came.done():
            self.came.set_result(None)

    def give_up(self, why: str) -> None:
        """End what is waited for, if anything is, with psycopg.OperationalError."""
        if self.came is not None and not self.came.done():
            self.came.set_exception(psycopg.OperationalError(why))


def rows_of(result: PGresult) -> list[tuple[str | None, ...]]:
    width = range(result.nfields)
    return [tuple(text_of(result.get_value(row, column)) for column in width) for row in range(result.ntuples)]


def text_of(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
