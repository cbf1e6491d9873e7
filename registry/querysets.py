"""Named questions about nodes."""

from django.db import models
from django.db.models import Q

from registry import clock
from registry.core.node import EJECTABLE, AdminState, Health


def able(prefix: str = "") -> Q:
    """Nodes in the pool, as a condition on the model that `prefix` ("nodes__") leads from."""
    wanted = {"deleted_at": None, "health": Health.READY, "admin_state": AdminState.ENABLED, "lease__expired": False}
    return Q(**{prefix + name: value for name, value in wanted.items()})


def with_status(status: str) -> Q:
    """Nodes that are shown with this status (`core.node.visible_status` for one)."""
    if status in (AdminState.DISABLED, AdminState.DRAINING):
        return Q(admin_state=status)
    if status == "expired":
        return Q(admin_state=AdminState.ENABLED, lease__expired=True)
    shown = Q(admin_state=AdminState.ENABLED, lease__expired=False)
    ejected = Q(ejected_until__gt=clock.now(), health__in=EJECTABLE)
    if status == "ejected":
        return shown & ejected
    return shown & Q(health=status) & ~ejected


class NodeQuerySet(models.QuerySet):
    def present(self) -> "NodeQuerySet":
        """Everything that has not been deleted, expired nodes included."""
        return self.filter(deleted_at=None)

    def staying(self) -> "NodeQuerySet":
        """Present, and not about to leave."""
        return self.present().filter(drain_until=None)

    def in_the_pool(self) -> "NodeQuerySet":
        """Nodes that calls may go to."""
        return self.filter(able())

    def leaving_is_over(self, now) -> "NodeQuerySet":
        return self.present().filter(drain_until__lte=now)

    def for_display(self) -> "NodeQuerySet":
        return self.present().select_related("lease", "probe").prefetch_related("declarations")
