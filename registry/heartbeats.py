"""Heartbeats of nodes that are listed: one statement on the event loop. All others go by `services.heartbeat`.

Ten thousand nodes send seven hundred a second; through the ORM in a thread that was more than a core.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from registry.services import Heartbeat

# A lease is not worth a wait for the disk: what a crash loses of it, the next heartbeat brings.
RENEW = """
UPDATE registry_nodelease l
SET last_heartbeat_at = clock_timestamp(), in_flight = %s,
    lease_expires_at = clock_timestamp() + make_interval(secs => n.lease_ttl_s)
FROM registry_node n, (SELECT set_config('synchronous_commit', 'off', true) AS value) AS sync
WHERE l.node_id = n.id AND n.service_id = %s AND n.node_id = %s AND n.deleted_at IS NULL AND n.drain_until IS NULL
    AND NOT l.expired AND sync.value = 'off'
RETURNING l.lease_expires_at, n.declaration_hash
"""

Read = Callable[..., Awaitable[list[dict[str, Any]]]]
read: Read | None = None
"""Runs a statement without a thread; set by who owns such a connection."""


async def renew(
    read: Read, service_id: str, node_id: str, *, in_flight: int | None, declaration_hash: str | None
) -> Heartbeat | None:
    """Renew the lease of a node that is listed and stays; None where there is no such node. Raises Unavailable."""
    rows = await read(RENEW, in_flight, service_id, node_id)
    if not rows:
        return None
    reregister = declaration_hash is not None and declaration_hash != rows[0]["declaration_hash"]
    return Heartbeat(rows[0]["lease_expires_at"], reregister, None)
