"""Read models: a function a panel, each returns plain data."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.humanize.templatetags.humanize import intcomma
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from receipts.retention import Kind, Stored
from registry.console import NOTHING, moment
from registry.core.node import AdminState, Health
from registry.models import Capability, Node, Service
from routing import review
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


MOST_COUNTED = 99


def inbox_count(request: Any) -> str:
    """How many route changes wait for this person's next move, in one bounded query: every page's sidebar shows it."""
    waiting = review.waiting_for(request.user).values_list("pk")
    found = len(waiting.union(review.ready_to_publish(request.user).values_list("pk"))[: MOST_COUNTED + 1])
    return str(found) if found <= MOST_COUNTED else f"{MOST_COUNTED}+"


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One kind of data as a line of a table."""

    label: Any
    note: Any
    setting: str
    rows: str
    size: str
    oldest: Any
    kept: str
    next_deletion: Any


def stored_row(stored: Stored, now: datetime) -> StoredRow:
    due = stored.next_deletion
    return StoredRow(
        label=stored.kind.label,
        note=stored.kind.note,
        setting=stored.kind.setting,
        rows=NOTHING if stored.rows is None else f"≈ {intcomma(stored.rows)}",
        size=filesizeformat(stored.size_bytes) if stored.size_bytes else NOTHING,
        oldest=moment(stored.oldest),
        kept=kept_words(stored.kind),
        next_deletion=_("with the next run") if due is not None and due <= now else moment(due),
    )


def kept_words(kind: Kind) -> str:
    """How long a kind of data is kept, in the largest unit that it fills."""
    if kind.kept is None:
        return _("for ever")
    if not kind.kept:
        return _("until it runs out")
    if kind.kept >= timedelta(days=1):
        days = round(kind.kept / timedelta(days=1))
        return ngettext("%(n)s day", "%(n)s days", days) % {"n": days}
    if kind.kept >= timedelta(hours=1):
        hours = round(kind.kept / timedelta(hours=1))
        return ngettext("%(n)s hour", "%(n)s hours", hours) % {"n": hours}
    minutes = math.ceil(kind.kept / timedelta(minutes=1))
    return ngettext("%(n)s minute", "%(n)s minutes", minutes) % {"n": minutes}
