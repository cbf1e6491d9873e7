"""Pages outside the admin."""

from collections.abc import Callable, Mapping

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from dashboard import queries


def home(request: HttpRequest, not_working: Callable[[], Mapping[str, str]]) -> HttpResponse:
    """Where a stranger lands: does it work, what is registered, what to do next."""
    why = dict(not_working())
    try:
        registered = None if "database" in why else queries.registered()
    except DatabaseError:  # the page is most needed when something is broken
        registered = None
    base_url = request.build_absolute_uri("/").rstrip("/")
    context = {"not_working": why, "registered": registered, "base_url": base_url}
    return render(request, "dashboard/home.html", context)
