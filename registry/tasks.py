"""What the workers do for the registry: fresh rows read, one service called; each may run twice."""

import threading

from celery import shared_task

from registry import clock, health, knocks, services
from registry.models import Node

PROBE_ROUNDS = threading.BoundedSemaphore(2)
"""So many shards at once a process: nodes that hang must not take every thread of a worker."""
KNOCKING = threading.Lock()


@shared_task(name="registry.probe_due")
def probe_due() -> None:
    """Probe a shard of the nodes that are due; where more are, another task takes the next shard meanwhile."""
    if not PROBE_ROUNDS.acquire(blocking=False):
        return
    try:
        if due := health.claim_due():
            if health.is_full(due):
                probe_due.apply_async(retry=False)
            health.probe_nodes(Node.objects.present().filter(pk__in=due))
    finally:
        PROBE_ROUNDS.release()


@shared_task(name="registry.knock")
def knock() -> None:
    """See that every ready node still takes connections; who does not is suspect and probed at once."""
    if not KNOCKING.acquire(blocking=False):
        return
    try:
        if knocks.knock_at_ready_nodes():
            probe_due()
    finally:
        KNOCKING.release()


@shared_task(name="registry.sweep_nodes")
def sweep_nodes() -> None:
    """Expire leases that ran out, let go of nodes whose farewell is over, have every node probed."""
    now = clock.now()
    services.expire_leases(now)
    services.finish_drains(now)
    health.adopt_unprobed()
