"""Named questions about the route table and its changes."""

from django.db.models import Max, QuerySet

from routing.core.edits import EMPTY, Document
from routing.models import Route, RouteChange, TableRevision


def live_number() -> int:
    """The number of the live revision; 0 when nothing was ever published."""
    return TableRevision.objects.aggregate(live=Max("number"))["live"] or 0


def table_of(number: int) -> Document:
    """A revision as it was written. Raises TableRevision.DoesNotExist; revision 0 is the empty table."""
    if number == 0:
        return EMPTY
    revision = TableRevision.objects.get(pk=number)
    routes = Route.objects.filter(revision=revision).order_by("position").values_list("document", flat=True)
    return {"routes": list(routes), "fallback_rules": revision.fallback_rules}


def changes() -> QuerySet[RouteChange]:
    """Route changes with the people that every view of them shows."""
    return RouteChange.objects.select_related("author").prefetch_related("approvals__approver")


def revisions() -> QuerySet[TableRevision]:
    """Published revisions with who and what published them."""
    return TableRevision.objects.select_related("published_by", "routechange")


def undone_by(change: RouteChange) -> int | None:
    """The published change that has taken this one back."""
    undoing = RouteChange.objects.filter(reverts=change).exclude(published_revision=None)
    return undoing.order_by("pk").values_list("pk", flat=True).first()
