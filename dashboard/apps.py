from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig
from django.utils.translation import gettext_lazy as _


class DashboardConfig(AppConfig):
    name = "dashboard"
    verbose_name = _("Dashboard")
    default_auto_field = "django.db.models.BigAutoField"


class ReachAdminConfig(AdminConfig):
    """Django's admin, with our site as the one that every app registers with."""

    default_site = "dashboard.site.ReachAdminSite"
