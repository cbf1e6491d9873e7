"""What the workers do for the registry: ids in, fresh rows read, one service called; each may run twice."""

from celery import shared_task
from django.utils import timezone

from registry import services
from registry.models import Node

PROBED_PER_SWEEP = 500


@shared_task(name="registry.probe_node")
def probe_node(node_pk: int) -> None:
    """Look at one node now."""
    services.probe_nodes(Node.objects.present().filter(pk=node_pk))


@shared_task(name="registry.probe_waiting")
def probe_waiting() -> None:
    """Look at nodes that are out; a random part of them when there are very many."""
    services.probe_nodes(Node.objects.waiting_for_proof().order_by("?")[:PROBED_PER_SWEEP])


@shared_task(name="registry.sweep_nodes")
def sweep_nodes() -> None:
    """Expire leases that ran out, and let go of nodes whose farewell is over."""
    now = timezone.now()
    services.expire_leases(now)
    services.finish_drains(now)
