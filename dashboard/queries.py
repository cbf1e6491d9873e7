"""Read models: a function a panel, each returns plain data."""

from dataclasses import dataclass

from registry.core.node import AdminState, Health
from registry.models import Capability, Node, Service
from routing.models import TableRevision


@dataclass(frozen=True, slots=True)
class Registered:
    """What is registered, in numbers."""

    services: int
    nodes: int
    ready_nodes: int
    capabilities: int
    routes: int
    table_revision: int


def registered() -> Registered:
    nodes = Node.objects.filter(deleted_at=None)
    able = nodes.filter(health=Health.READY, admin_state=AdminState.ENABLED, lease__expired=False)
    live = TableRevision.objects.first()
    return Registered(
        services=Service.objects.filter(nodes__in=nodes).distinct().count(),
        nodes=nodes.count(),
        ready_nodes=able.count(),
        capabilities=Capability.objects.count(),
        routes=live.routes.count() if live else 0,
        table_revision=live.number if live else 0,
    )
