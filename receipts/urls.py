"""Where calls, traces and statistics are read."""

from django.urls import path

from receipts.api import CallsView, CallView, CancelView, RedispatchView, StatsView, TraceView

urlpatterns = [
    path("calls", CallsView.as_view()),
    path("calls/<uuid:call_id>", CallView.as_view()),
    path("calls/<uuid:call_id>/cancel", CancelView.as_view()),
    path("calls/<uuid:call_id>/redispatch", RedispatchView.as_view()),
    path("traces/<str:trace_id>", TraceView.as_view()),
    path("stats", StatsView.as_view()),
]
