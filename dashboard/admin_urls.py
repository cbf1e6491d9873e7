"""Pages of the console that belong to no model, below /admin/: who may log in there comes this far."""

from django.contrib import admin
from django.urls import path

from dashboard import dead_letters
from dashboard.pages import live, overview, trace
from dashboard.topology import topology
from dashboard.try_it import try_it

urlpatterns = [
    path("", admin.site.admin_view(overview), name="overview"),
    path("live/", admin.site.admin_view(live), name="live"),
    path("traces/<str:trace_id>/", admin.site.admin_view(trace), name="trace"),
    path("topology/", admin.site.admin_view(topology), name="topology"),
    path("dead-letters/", admin.site.admin_view(dead_letters.overview), name="dead-letters"),
    path("dead-letters/again/", admin.site.admin_view(dead_letters.again), name="dead-letters-again"),
    path("dead-letters/orders/<int:order_id>/", admin.site.admin_view(dead_letters.order), name="dead-letters-order"),
    path(
        "dead-letters/orders/<int:order_id>/stop/", admin.site.admin_view(dead_letters.stop), name="dead-letters-stop"
    ),
    path("try/<str:name>/", admin.site.admin_view(try_it), name="try-it"),
]
