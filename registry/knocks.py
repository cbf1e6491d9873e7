"""Knocks: a bare connection to every ready node each second, so that one that is gone is noticed without any traffic.

A knock decides nothing. Whoever does not open is suspect, and the probe that follows at once tells.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings

from registry import health
from registry.addresses import allowed_addresses, spelled_refusal
from registry.connecting import Refused, connect, place_of
from registry.models import Node

AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Door:
    """Where one node is knocked at."""

    service_id: str
    node_id: str
    address: str


def knock_at_ready_nodes() -> int:
    """Knock at every ready node and suspect those that do not open; how many."""
    ready = Node.objects.in_the_pool().values_list("service_id", "node_id", "address")
    doors = [Door(*row) for row in ready if spelled_refusal(row[2], allowed=allowed_addresses()) is None]
    if not doors:
        return 0
    found = asyncio.run(knock(doors, timeout_s=settings.REACH_KNOCK_TIMEOUT_S))
    health.suspect([(door.service_id, door.node_id, trouble) for door, trouble in found])
    return len(found)


async def knock(doors: Iterable[Door], *, timeout_s: float) -> list[tuple[Door, str]]:
    """Those that do not open, each with the reason. A host's trouble of our own (no sockets left) is nobody's."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(door: Door) -> tuple[Door, str] | None:
        async with gate:
            try:
                await connect(await place_of(door.address, timeout_s), timeout_s)
            except TimeoutError:
                return door, "no connection in time"
            except ConnectionRefusedError:
                return door, "connection refused"
            except (ConnectionResetError, ConnectionAbortedError):
                return door, "the connection is reset"
            except (Refused, OSError):
                return None  # a name that does not resolve, no route, no socket: the probe says so better
            return None

    return [found for found in await asyncio.gather(*map(one, doors)) if found is not None]
