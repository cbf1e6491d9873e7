"""The node behind every target: answers at once, costs little, counts what it was asked.

    python -m bench.node 9001 [http://127.0.0.1:8080 …]

Given the URLs of instances it registers itself there, with the keys in BENCH_KEY, one for each. A bare protocol instead
of a web framework, so that what is measured is what stands in front of it. It is two services: one answers at once, the
other after SLOW_S.
"""

import argparse
import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

import httptools
import uvloop

from bench.processes import open_as_many_as_allowed

SERVICE_ID, NODE_ID, CAPABILITY = "bench-node", "n1", "bench_summary"
SLOW_SERVICE_ID, SLOW_CAPABILITY, SLOW_S = "bench-slow", "bench_slow", 12.0
OUTPUT = {"summary": "done at once", "keywords": ["bench"]}
DECLARATION = {
    "lease_ttl_s": 3600,  # longer than any run: no heartbeats in what is measured
    "capabilities": [
        {
            "name": CAPABILITY,
            "description": "Answers at once",
            "input": {
                "type": "object",
                "properties": {
                    "file_path": {"type": "string"},
                    "content_type": {"type": "string", "enum": ["report", "email", "code"]},
                    "text": {"type": "string"},
                },
                "required": ["content_type"],
            },
            "output": {
                "type": "object",
                "properties": {
                    "summary": {"type": "string"},
                    "keywords": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["summary"],
            },
        }
    ],
}
SLOW_DECLARATION = {
    "lease_ttl_s": 3600,
    "endpoints": {"invoke": "/slow/invoke", "live": "/reach/live", "ready": "/reach/ready"},
    "capabilities": [{"name": SLOW_CAPABILITY, "description": "Takes its time", "timeout_tier": "medium"}],
}


def response(body: Any, status: str = "200 OK") -> bytes:
    content = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(content),
        content,
    )


DONE, ALIVE, UNKNOWN = response({"output": OUTPUT}), response({}), response({}, "404 Not Found")


class NodeProtocol(asyncio.Protocol):
    """One connection: each whole request gets its ready bytes."""

    invoked = 0  # by all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_message_complete(self) -> None:
        if self.url == b"/slow/invoke":
            asyncio.get_running_loop().call_later(SLOW_S, self.transport.write, DONE)  # type: ignore[attr-defined]
            return
        self.transport.write(self.answer())  # type: ignore[attr-defined]  # a stream's transport can write

    def answer(self) -> bytes:
        match self.url:
            case b"/reach/invoke":
                NodeProtocol.invoked += 1
                return DONE
            case b"/reach/live":
                return ALIVE
            case b"/reach/ready":
                return response({"ready": True, "now": time.time_ns() // 1_000_000})
            case b"/invoked":
                return response({"invoked": NodeProtocol.invoked})
            case _:
                return UNKNOWN


def register(reach: str, key: str, address: str) -> None:
    """Declare both services to the reach."""
    declare(reach, key, SERVICE_ID, {"address": address, **DECLARATION})
    declare(reach, key, SLOW_SERVICE_ID, {"address": address, **SLOW_DECLARATION})


def declare(reach: str, key: str, service_id: str, declaration: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{reach}/api/v1/services/{service_id}/nodes/{NODE_ID}",
        json.dumps(declaration).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        method="PUT",
    )
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as refused:
        raise SystemExit(f"registration refused: {refused.code} {refused.read().decode(errors='replace')}") from refused


async def serve(port: int, instances: list[str]) -> None:
    server = await asyncio.get_running_loop().create_server(NodeProtocol, "127.0.0.1", port, backlog=4096)
    for reach, key in zip(instances, os.environ.get("BENCH_KEY", "").split(), strict=True):
        # in a thread: the reach asks `ready` back before the registration has returned
        await asyncio.to_thread(register, reach, key, f"http://127.0.0.1:{port}")
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("reach", nargs="*", help="URLs of the instances to register with")
    options = parser.parse_args()
    open_as_many_as_allowed()
    uvloop.run(serve(options.port, options.reach))
