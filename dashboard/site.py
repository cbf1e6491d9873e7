"""The admin site (Unfold): its looks, its sidebar, its first page. Every app registers its own pages with it."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse, reverse_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.sites import UnfoldAdminSite


class ReachAdminSite(UnfoldAdminSite):
    """Every app registers its pages with it; the address of its index is the overview's (`reach_project.urls`)."""


def may(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: request.user.has_perm(permission)


def link(title: Any, icon: str, model: str, permission: str) -> dict[str, Any]:
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{model}_changelist"),
        "permission": may(permission),
    }


def page(title: Any, icon: str, name: str, permission: str) -> dict[str, Any]:
    """A page that belongs to no model."""
    return {"title": title, "icon": icon, "link": reverse_lazy(name), "permission": may(permission)}


def at_route_changes(request: HttpRequest) -> bool:
    """The inbox lies below the changes, and has an entry of its own."""
    changes, inbox = reverse("admin:routing_routechange_changelist"), reverse("admin:routing_routechange_inbox")
    return request.path.startswith(changes) and not request.path.startswith(inbox)


def environment(_request: HttpRequest) -> list[str] | None:
    """The label at the top of every page: what this installation is called, red when that sounds like production."""
    name = settings.REACH_ENVIRONMENT
    if not name:
        return None
    return [name, "danger" if "prod" in name.lower() else "info"]


def labels() -> str:
    """The script that says what scroll areas are called, with the words in the reader's language."""
    words = gettext("scrollable content")
    return f"{static('dashboard/labels.js')}?{quote(words)}"


TEAL = {  # around the landing page's #0f766e
    "50": "#f0fdfa", "100": "#ccfbf1", "200": "#99f6e4", "300": "#5eead4", "400": "#2dd4bf", "500": "#14b8a6",
    "600": "#0f766e", "700": "#115e59", "800": "#134e4a", "900": "#113f3c", "950": "#042f2e",
}  # fmt: skip
SLATE = {  # greys with the landing page's touch of green
    "50": "#f7f8f8", "100": "#eef1f1", "200": "#dfe5e4", "300": "#c3cdcb", "400": "#93a3a1", "500": "#667674",
    "600": "#4d5b59", "700": "#3a4645", "800": "#263130", "900": "#161d1c", "950": "#0e1413",
}  # fmt: skip

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Agent-Reach",
    "SITE_HEADER": "Agent-Reach",
    "SITE_ICON": lambda _request: static("dashboard/mark.svg"),
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("dashboard/mark.svg")},
    ],
    "SHOW_LANGUAGES": True,
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "ENVIRONMENT": "dashboard.site.environment",
    "SCRIPTS": [lambda _request: labels()],
    "STYLES": [
        lambda _request: static("dashboard/admin.css"),
        lambda _request: static("dashboard/traffic.css"),
    ],
    "COLORS": {"primary": TEAL, "base": SLATE},
    "SIDEBAR": {
        "show_search": False,
        "navigation": [
            {
                "items": [
                    {"title": _("Overview"), "icon": "monitoring", "link": reverse_lazy("overview")},
                    {
                        "title": _("Live calls"),
                        "icon": "sensors",
                        "link": reverse_lazy("live"),
                        "permission": may("receipts.view_call"),
                    },
                ],
            },
            {
                "title": _("Registry"),
                "separator": True,
                "items": [
                    link(_("Nodes"), "dns", "registry_node", "registry.view_node"),
                    link(_("Services"), "smart_toy", "registry_service", "registry.view_service"),
                    link(_("Capabilities"), "extension", "registry_capability", "registry.view_capability"),
                    link(_("API keys"), "key", "registry_apikey", "registry.view_apikey"),
                ],
            },
            {
                "title": _("Traffic"),
                "separator": True,
                "items": [
                    link(_("Calls"), "swap_calls", "receipts_call", "receipts.view_call"),
                    page(_("Topology"), "hub", "topology", "receipts.view_call"),
                    page(_("Dead letters"), "mail_off", "dead-letters", "receipts.view_call"),
                ],
            },
            {
                "title": _("Routing"),
                "separator": True,
                "items": [
                    {
                        "title": _("Waiting for you"),
                        "icon": "inbox",
                        "link": reverse_lazy("admin:routing_routechange_inbox"),
                        "permission": may("routing.view_routechange"),
                        "badge": "dashboard.queries.inbox_count",
                    },
                    link(_("Routes"), "alt_route", "routing_route", "routing.view_route"),
                    {
                        **link(_("Route changes"), "rate_review", "routing_routechange", "routing.view_routechange"),
                        "active": at_route_changes,
                    },
                    link(_("Advisories"), "lightbulb", "routing_advisory", "routing.view_advisory"),
                    link(_("Revisions"), "history", "routing_tablerevision", "routing.view_tablerevision"),
                ],
            },
            {
                "title": _("People"),
                "separator": True,
                "items": [
                    link(_("Users"), "person", "auth_user", "auth.view_user"),
                    link(_("Groups"), "group", "auth_group", "auth.view_group"),
                    link(_("Audit log"), "fact_check", "registry_auditevent", "registry.view_auditevent"),
                ],
            },
            {
                "title": _("Installation"),
                "separator": True,
                "items": [
                    {
                        "title": _("Health and data"),
                        "icon": "health_and_safety",
                        "link": reverse_lazy("installation"),
                        "permission": may("registry.change_node"),
                    }
                ],
            },
        ],
    },
}
