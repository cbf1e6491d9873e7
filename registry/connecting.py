"""How the reach connects to nodes: every address is looked at again at the moment of connecting, names included."""

import asyncio
import socket
import time
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import ResolveResult

from registry.addresses import forbidden_ip, ip_refusal

NAMES_KNOWN_S = 30.0
"""So long a bare connection goes to the address last found for a host name; each call asks for it anew."""

Place = tuple[socket.AddressFamily, int, int, str, tuple[Any, ...]]


class Refused(OSError):
    """The reach itself does not connect there."""


class GuardedResolver(aiohttp.ThreadedResolver):
    """Names resolve anew at every connection, so what they resolve to is checked there too."""

    def __init__(self, allowed: Collection[str]):
        super().__init__()
        self.allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        for result in found:
            if why := ip_refusal(result["host"], host=host, allowed=self.allowed):
                raise Refused(why)
        return found


def make_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket to an address, unless nobody may be sent there, however it was spelled."""
    family, kind, protocol, _name, where = address
    if why := forbidden_ip(str(where[0])):
        raise Refused(why)
    return socket.socket(family, kind, protocol)


async def connect(place: Place, timeout_s: float) -> None:
    """Connect and hang up. Raises OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    with make_socket(place) as opened:
        opened.setblocking(False)
        async with asyncio.timeout(timeout_s):
            await loop.sock_connect(opened, place[4])


_known: dict[str, tuple[float, Place]] = {}


async def place_of(address: str) -> Place:
    """Where a node's address leads. Raises OSError when its name does not resolve."""
    at, place = _known.get(address, (0.0, None))
    if place is None or time.monotonic() - at > NAMES_KNOWN_S:
        parts = urlsplit(address)
        place = (await resolve(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)))[0]
        if len(_known) > 10_000:
            _known.clear()
        _known[address] = (time.monotonic(), place)
    return place


async def resolve(host: str, port: int) -> Sequence[Place]:
    """The places of a host; only a name costs a thread. Raises OSError when it does not resolve."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
