"""Every address of the reach. Wiring only."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView

from dashboard.views import installation, static_file_of_another_state
from reach_project import error_pages, health, metrics
from reach_project.doctor import examine

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.MetricsView.as_view()),
    path("api/v1/", include("registry.urls")),
    path("api/v1/", include("receipts.urls")),
    path("api/v1/", include("routing.urls")),
    path("api/v1/schema", SpectacularJSONAPIView.as_view(), name="schema"),
    path("api/v1/docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    re_path(r"^static/(?:[0-9a-f]{8}/)?(?P<name>.+)$", static_file_of_another_state),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/installation/", admin.site.admin_view(installation), {"examine": examine}, name="installation"),
    path("admin/", include("dashboard.admin_urls")),
    path("admin/", admin.site.urls),
    path("", include("dashboard.urls"), {"state": health.state}),
]

if settings.REACH_ROLE == "dispatcher":  # in front: the names behind stay known to whoever builds an address
    urlpatterns.insert(0, re_path(r"^(admin(/.*)?|i18n/.*)?$", error_pages.not_by_a_dispatcher))

handler400 = "reach_project.error_pages.bad_request"
handler403 = "reach_project.error_pages.permission_denied"
handler404 = "reach_project.error_pages.not_found"
handler500 = "reach_project.error_pages.server_error"
