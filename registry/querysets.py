"""Named questions about nodes."""

from django.db import models
from django.db.models import Q

from registry.core.node import Health


class NodeQuerySet(models.QuerySet):
    def present(self) -> "NodeQuerySet":
        """Everything that has not been deleted, expired nodes included."""
        return self.filter(deleted_at=None)

    def staying(self) -> "NodeQuerySet":
        """Present, and not about to leave."""
        return self.present().filter(drain_until=None)

    def waiting_for_proof(self) -> "NodeQuerySet":
        """Nodes that a successful probe would bring into the pool."""
        return self.staying().filter(~Q(health=Health.READY), lease__expired=False)

    def leaving_is_over(self, now) -> "NodeQuerySet":
        return self.present().filter(drain_until__lte=now)

    def for_display(self) -> "NodeQuerySet":
        return self.present().select_related("lease").prefetch_related("declarations")
