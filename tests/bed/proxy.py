"""A TCP line to a server, that can go bad in every way: slow, silent, cut, refused, or with a reply lost."""

import asyncio
import contextlib
import threading

from tests.fakes import OwnLoop


class Proxy:
    """Stands before the server at `host` and `port`; `host` may be the folder of a PostgreSQL's socket."""

    def __init__(self, port: int, host: str = "127.0.0.1"):
        self._host, self._port = host, port
        self._own = OwnLoop("proxy")
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._lost_after: bytes | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self.delay_s = 0.0
        """How much later everything arrives, in either direction."""
        self.lost = threading.Event()
        self.port = self._own.run(self._listen(0))

    def break_all(self) -> None:
        """Who is connected is not any more; new connections are taken."""
        self._own.run(self._hang_up())

    def cut(self) -> None:
        """Nobody can connect, and who was connected is not any more."""
        self._own.run(self._close())
        self.break_all()

    def drop(self) -> None:
        """Connections stay open and new ones are taken, but nothing arrives: a black hole."""
        self._own.loop.call_soon_threadsafe(self._flows.clear)

    def mend(self) -> None:
        """All is well again."""
        self.delay_s = 0.0
        self._own.loop.call_soon_threadsafe(self._flows.set)
        if self._server is None:
            self._own.run(self._listen(self.port))

    def lose_reply_to(self, part_of_request: bytes) -> None:
        """The next request that holds these bytes reaches the server; its connection breaks before the reply."""
        self.lost.clear()
        self._lost_after = part_of_request

    def close(self) -> None:
        self.cut()
        self._own.close()

    async def _listen(self, port: int) -> int:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", port)
        return self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _hang_up(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await self._reach()
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, server_writer}
        doomed = False

        async def arrive(at: asyncio.StreamWriter, data: bytes) -> None:
            await asyncio.sleep(self.delay_s)
            await self._flows.wait()
            at.write(data)
            await at.drain()

        async def requests() -> None:
            nonlocal doomed
            while data := await reader.read(65536):
                if self._lost_after is not None and self._lost_after in data:
                    self._lost_after, doomed = None, True
                await arrive(server_writer, data)

        async def replies() -> None:
            while data := await server_reader.read(65536):
                if doomed:  # the server has answered: what was asked is committed
                    self.lost.set()
                    return
                await arrive(writer, data)

        directions = [asyncio.ensure_future(requests()), asyncio.ensure_future(replies())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(*directions, return_exceptions=True)
            for each in (writer, server_writer):
                each.transport.abort()
                self._open.discard(each)
