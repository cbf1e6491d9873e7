"""Pages that belong to no model: the first page, the state of the installation, and what a locked out person sees."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from dashboard import queries
from dashboard.site import may
from receipts import retention
from registry.wording import SENTENCES, said

WHY_NOT_READY = [
    gettext_noop("nothing has been started yet"),
    gettext_noop("has not been looked at yet"),
    gettext_noop("has not run its first task yet"),
    gettext_noop("last ran a task %(age)s s ago"),
    gettext_noop("has not answered for %(age)s s"),
    gettext_noop("does not answer: %(reason)s"),
    gettext_noop("unknown while the database does not answer"),
    gettext_noop("%(n)s not applied, among them %(name)s"),
    gettext_noop("is not running"),
    gettext_noop("its thread has ended"),
    gettext_noop("not loaded yet"),
    gettext_noop("last known to be current %(age)s s ago"),
]
SENTENCES.extend(WHY_NOT_READY)


def home(request: HttpRequest, state: Callable[[], tuple[bool, Mapping[str, str]]]) -> HttpResponse:
    """Where a stranger lands: does it work, what is registered, what to do next.

    `state` tells whether the process takes work, and why each part that does not work does not.
    """
    takes_work, broken = state()
    why = {part: said(reason) for part, reason in broken.items()}
    try:
        registered = None if "database" in why else queries.registered()
    except DatabaseError:  # the page is most needed when something is broken
        registered = None
    base_url = request.build_absolute_uri("/").rstrip("/")
    context = {
        "takes_work": takes_work,
        "not_working": why,
        "registered": registered,
        "base_url": base_url,
        "credentials": credentials_place(request),
    }
    return render(request, "dashboard/home.html", context)


def credentials_place(request: HttpRequest) -> str:
    """Where this instance keeps its credentials, said only to its own machine."""
    at_home = request.META.get("REMOTE_ADDR") in ("127.0.0.1", "::1")
    return str((settings.REACH_HOME if at_home else Path("$REACH_HOME")) / "credentials.json")


def installation(request: HttpRequest, examine: Callable[[], Sequence[Any]]) -> HttpResponse:
    """What the doctor finds, and what the database holds for how long. For who may act on it."""
    if not may("registry.change_node")(request):
        raise PermissionDenied
    now = timezone.now()
    found = examine()
    last_run = retention.last_run()
    context = {
        **admin.site.each_context(request),
        "title": _("Health of the installation"),
        "wrong": sorted((finding for finding in found if finding.level != "ok"), key=lambda finding: finding.level),
        "well": [finding for finding in found if finding.level == "ok"],
        "stored": [queries.stored_row(row, now) for row in retention.stored(now)],
        "last_run": last_run,
        "deleted_last": sum(last_run.deleted.values()) if last_run else 0,
    }
    return render(request, "admin/installation.html", context)


def static_file_of_another_state(request: HttpRequest, name: str) -> HttpResponse:
    """Where a file has gone that a page names which was made before an upgrade, or by another console during one."""
    here = settings.STATIC_URL + quote(name)
    if request.path.startswith(settings.STATIC_URL):  # of this state, and not there
        raise Http404
    return HttpResponseRedirect(here, headers={"Cache-Control": "no-store"})


def locked_out(request: HttpRequest, *_args: object, **_kwargs: object) -> HttpResponse:
    """What somebody sees after too many failed logins, whether or not the name exists."""
    minutes = math.ceil(settings.REACH_LOGIN_LOCKOUT_S / 60)
    return render(request, "dashboard/locked_out.html", {"minutes": minutes}, status=429)
