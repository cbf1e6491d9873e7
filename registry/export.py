"""Rows as CSV, sent while they are read: the file may be large, a process's memory may not."""

import csv
import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from io import StringIO
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.utils import timezone
from django.utils.translation import get_language, override
from django.utils.translation import gettext as _

from registry.database import give_back
from registry.models import AuditEvent
from registry.wording import AUDIT_ACTION, label

AT_ONCE = 1000
"""Rows read by one question."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets would run: such a text gets an apostrophe before it."""


def csv_response(name: str, lines: AsyncIterator[str]) -> StreamingHttpResponse:
    """A download whose rows are made while it is sent."""
    response = StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8")
    stamp = timezone.now().strftime("%Y%m%d-%H%M%S")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}-{stamp}.csv"'
    return response


async def audit_csv(events: QuerySet[AuditEvent], most: int) -> AsyncIterator[str]:
    """Audit rows, the newest first, at most so many; a byte order mark makes spreadsheets read UTF-8."""
    language = get_language()
    with override(language):
        head = [_("time (UTC)"), _("who"), _("action"), _("target"), _("detail")]
    yield "\ufeff" + line([head[0], head[1], head[2], "action", head[3], head[4]])
    before: int | None = None
    while most > 0:
        rows = await sync_to_async(read)(events, before, min(AT_ONCE, most))
        if not rows:
            return
        with override(language):
            text = "".join(line(audit_row(*row)) for row in rows)
        yield text
        before, most = rows[-1][0], most - len(rows)


Row = tuple[int, datetime, str, str, str, Any]


def read(events: QuerySet[AuditEvent], before: int | None, count: int) -> list[Row]:
    """The next rows below a primary key: however far down, the index finds them at once."""
    try:
        below = events if before is None else events.filter(pk__lt=before)
        rows = below.order_by("-pk").values_list("pk", "at", "actor", "action", "target", "detail")
        return list(rows[:count])
    finally:
        give_back()


def audit_row(_pk: int, at: datetime, actor: str, action: str, target: str, detail: Any) -> list[str]:
    told = json.dumps(detail, ensure_ascii=False) if detail else ""
    return [at.isoformat(timespec="milliseconds"), actor, label(AUDIT_ACTION, action), action, target, told]


def line(cells: Sequence[str]) -> str:
    written = StringIO()
    csv.writer(written).writerow([harmless(cell) for cell in cells])
    return written.getvalue()


def harmless(cell: str) -> str:
    return "'" + cell if cell.startswith(FORMULA) else cell
