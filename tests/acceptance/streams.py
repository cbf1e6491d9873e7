"""A client of `GET …/events`, event by event."""

import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass
class Stream:
    """One open stream. What is not an event (comments, `retry`) is kept in `said`."""

    port: int
    call_id: str
    key: str | None
    last_id: int | str | None = None
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "GET"
    said: list[str] = field(default_factory=list)
    timeout_s: float = 20

    def __enter__(self) -> Self:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        given = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        if self.last_id is not None:
            given["Last-Event-ID"] = str(self.last_id)
        self.connection.request(
            self.method, f"/api/v1/calls/{self.call_id}/events{self.query}", headers=given | self.headers
        )
        self.response = self.connection.getresponse()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.response.close()
        self.connection.close()

    @property
    def status(self) -> int:
        return self.response.status

    def problem(self) -> dict[str, Any]:
        return json.loads(self.response.read())

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Ids and receipts as they come, until the stream ends."""
        seq, data = 0, ""
        for raw in iter(self.response.readline, b""):
            line = raw.decode().rstrip("\n")
            if not line:
                if data:
                    yield seq, json.loads(data)
                data = ""
                continue
            name, _colon, value = line.partition(": ")
            if name == "id":
                seq = int(value)
            elif name == "data":
                data = value
            else:
                self.said.append(line)

    def receipts(self) -> list[dict[str, Any]]:
        return [receipt for _seq, receipt in self.events()]


def hang_up(stream: Stream) -> None:
    """Go away without a word."""
    assert stream.connection.sock is not None or stream.response.fp is not None
    stream.response.close()
    if stream.connection.sock is not None:
        stream.connection.sock.shutdown(socket.SHUT_RDWR)
    stream.connection.close()
