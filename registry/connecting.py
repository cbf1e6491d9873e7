"""How the reach connects to nodes: every address is looked at again at the moment of connecting, names included."""

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from registry.addresses import forbidden_ip, ip_refusal, literal_ip, url_refusal
from registry.errors import InvalidRequest

NAMES_KNOWN_S = 30.0
"""So long a bare connection goes to the address last found for a host name; each call asks for it anew."""

Place = tuple[socket.AddressFamily, int, int, str, tuple[Any, ...]]


class Refused(OSError):
    """The reach itself does not connect there."""


LOOKUPS_AT_ONCE = 256
_lookups = ThreadPoolExecutor(LOOKUPS_AT_ONCE, thread_name_prefix="name lookup")
"""Nobody waits for these threads: a name server that is away holds up no other name, and no loop that ends."""


async def look_up(
    host: str, port: int, *, family: int = socket.AF_UNSPEC, flags: int = 0, timeout_s: float
) -> list[Place]:
    """The places of a host. Raises socket.gaierror when its name does not resolve, or not in time."""
    ask: Callable[[], Any] = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, 0, flags)
    try:
        async with asyncio.timeout(timeout_s):
            places: list[Place] = await asyncio.get_running_loop().run_in_executor(_lookups, ask)
            return places
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, "no answer in time") from None


class GuardedResolver(AbstractResolver):
    """Names resolve anew at every connection, so what they resolve to is checked there too."""

    def __init__(self, allowed: Collection[str], *, timeout_s: float):
        self.allowed, self.timeout_s = allowed, timeout_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        places = await look_up(host, port, family=family, flags=socket.AI_ADDRCONFIG, timeout_s=self.timeout_s)
        for _family, _kind, _protocol, _name, where in places:
            if why := ip_refusal(str(where[0]), host=host, allowed=self.allowed):
                raise Refused(why)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=str(where[0]), port=port, family=of, proto=protocol, flags=numeric)
            for of, _kind, protocol, _name, where in places
        ]

    async def close(self) -> None:
        """It holds nothing."""


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


async def check_url(url: str, *, allowed: Collection[str], timeout_s: float, place: str) -> None:
    """See that one may be sent to this URL. Raises InvalidRequest.

    As with a node's address, a name that does not resolve (yet, or not in time) is taken: connecting checks again.
    """
    why = url_refusal(url, allowed=(), resolve=lambda _host: ())
    if why is None:
        host = urlsplit(url).hostname or ""
        found = [] if literal_ip(host) else await addresses_of(host, timeout_s)
        why = url_refusal(url, allowed=allowed, resolve=lambda _host: found)
    if why is not None:
        raise InvalidRequest(f"{place}: {why}", [{"path": place, "message": why}])


async def addresses_of(host: str, timeout_s: float) -> list[str]:
    """What a name resolves to; nothing when it does not."""
    try:
        return [str(where[0]) for *_kind, where in await look_up(host, 0, timeout_s=timeout_s)]
    except (OSError, UnicodeError):
        return []


_known: dict[str, tuple[float, Place]] = {}


async def place_of(address: str, timeout_s: float) -> Place:
    """Where a node's address leads. Raises OSError when its name does not resolve, or not in time."""
    at, place = _known.get(address, (0.0, None))
    if place is None or time.monotonic() - at > NAMES_KNOWN_S:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        place = (await resolve(parts.hostname or "", port, timeout_s))[0]
        if len(_known) > 10_000:
            _known.clear()
        _known[address] = (time.monotonic(), place)
    return place


async def resolve(host: str, port: int, timeout_s: float) -> Sequence[Place]:
    """The places of a host; only a name costs a thread. Raises OSError when it does not resolve."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await look_up(host, port, timeout_s=timeout_s)
