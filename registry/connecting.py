"""How the reach connects to nodes: every address is looked at again at the moment of connecting, names included."""

import socket
from collections.abc import Collection
from typing import Any

import aiohttp
from aiohttp.abc import ResolveResult

from registry.addresses import forbidden_ip, ip_refusal


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
