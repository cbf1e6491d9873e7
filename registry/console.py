"""What admin pages of every app share: facts are shown, not edited; badges, moments, JSON; empty lists that help."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.utils import quote
from django.contrib.humanize.templatetags.humanize import naturaltime
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import DropdownFilter

JSON_SHOWN = 100_000
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Empty:
    """What a list says while there is nothing to list: what would be here, and how to get it."""

    title: str | Promise
    text: str | Promise
    command: str = ""


class ReadOnlyAdmin(ModelAdmin):
    """A list and a page of facts. What operators may do are verbs, each with its own permission, never fields."""

    detail_template = ""
    empty: Empty | None = None
    list_per_page = 50
    list_filter_submit = True
    show_facets = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """What the page of one object needs besides the object."""
        return {}

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        obj = self.get_object(request, key_in_address(object_id))
        if not self.has_view_permission(request, obj):
            raise PermissionDenied
        if obj is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        details = self.details(request, obj)
        return self.page(request, self.detail_template, details.pop("title", str(obj)), original=obj, **details)

    def page(
        self, request: HttpRequest, template: str, title: str, *, status_code: int = 200, **context: Any
    ) -> HttpResponse:
        """A page of ours inside the admin."""
        opts = self.model._meta
        shared = self.admin_site.each_context(request)
        here = {"opts": opts, "title": title, "model_admin": self, "list_url": self.list_url(), "now": timezone.now()}
        return TemplateResponse(request, template, {**shared, **here, **context}, status=status_code)

    def list_url(self) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")


def key_in_address(written: str) -> str:
    """The key that the address of a page names.

    Django's lists write `_` as `_5F` there, links of ours leave it. Keys of ours are lower case, so both are clear,
    which they are not to Django's `unquote`: it takes the service agent_24 for agent$.
    """
    return written.replace("_5F", "_")


class ChoiceFilter(DropdownFilter):
    """A drop-down over names that are few enough to be listed."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        return self.narrowed(queryset, value) if value else queryset

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(**{str(self.parameter_name): value})


class LinkFilter(SimpleListFilter):
    """A short list of links, one click each."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        return self.narrowed(queryset, value) if value else queryset

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(**{str(self.parameter_name): value})


def page_url(page: str, pk: Any) -> str:
    """The page of one thing ("registry_capability"), whatever its name has in it: the admin quotes with underscores."""
    return reverse(f"admin:{page}_change", args=[quote(pk)])


def actor(request: HttpRequest) -> str:
    """Who acts, as audit rows name people."""
    return f"user:{request.user.get_username()}"


def back_to(request: HttpRequest) -> HttpResponseRedirect | None:
    """Where a form on one of our own pages wants to return to; None: to the list."""
    url = request.POST.get("next", "")
    return HttpResponseRedirect(url) if url_has_allowed_host_and_scheme(url, allowed_hosts=None) else None


# --- Words and numbers -----------------------------------------------------------------------------------------------

GOOD, BAD, WARN, BUSY, IDLE = "good", "bad", "warn", "busy", "idle"


def badge(text: str, tone: str = IDLE) -> SafeString:
    return format_html('<span class="reach-badge reach-{}">{}</span>', tone, text)


def moment(at: datetime | None) -> SafeString | str:
    """How long ago, with the exact moment in the tooltip."""
    if at is None:
        return NOTHING
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), exactly(at), naturaltime(at))


def exactly(at: datetime | None) -> str:
    """A moment to the millisecond, UTC."""
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def day(at: datetime | None) -> str:
    return NOTHING if at is None else date_format(at, "DATETIME_FORMAT")


def unbroken(text: str) -> SafeString:
    """Text that stays on one line of a table."""
    return format_html('<span class="reach-unbroken">{}</span>', text)


def stacked(first: Any, second: Any) -> SafeString:
    """Two lines in one cell of a list."""
    return format_html('<div class="reach-stacked"><div>{}</div><div>{}</div></div>', first, second)


def duration(ms: float | None) -> str:
    """A span of time as people read it."""
    if ms is None:
        return NOTHING
    if ms < 1000:
        return pgettext("duration", "%(n)s ms") % {"n": f"{ms:.0f}"}
    if ms < 60_000:
        return pgettext("duration", "%(n)s s") % {"n": f"{ms / 1000:.1f}"}
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return pgettext("duration", "%(m)s min %(s)s s") % {"m": minutes, "s": seconds}
    hours, minutes = divmod(minutes, 60)
    return pgettext("duration", "%(h)s h %(m)s min") % {"h": hours, "m": minutes}


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Milliseconds from one moment to another."""
    return None if start is None or end is None else (end - start).total_seconds() * 1000


def pretty(value: Any) -> str:
    """JSON for people; very long ones are cut, and say so."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) <= JSON_SHOWN:
        return text
    left_out = len(text) - JSON_SHOWN
    rest = ngettext("… %(n)s more character", "… %(n)s more characters", left_out) % {"n": left_out}
    return f"{text[:JSON_SHOWN]}\n{rest}"


def facts(rows: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a page lists as name and value; what is not there is left out."""
    return [(name, value) for name, value in rows.items() if value not in (None, "", [], {}, NOTHING)]


def yes(value: bool) -> str:
    return _("Yes") if value else _("No")
