"""Paths of the registry below `api/v1/`."""

from django.urls import path

from registry import api

NODE = "services/<str:service_id>/nodes/<str:node_id>"

urlpatterns = [
    path("services", api.ServicesView.as_view()),
    path("services/<str:service_id>", api.ServiceView.as_view()),
    path(NODE, api.NodeView.as_view()),
    path(f"{NODE}/heartbeat", api.HeartbeatView.as_view()),
    path(f"{NODE}/probe", api.ProbeView.as_view()),
    path(f"{NODE}/history", api.HistoryView.as_view()),
    path("nodes", api.NodesView.as_view()),
    path("capabilities", api.CapabilitiesView.as_view()),
    path("capabilities/<str:name>", api.CapabilityView.as_view()),
    path("keys", api.KeysView.as_view()),
    path("keys/<str:key_id>", api.KeyView.as_view()),
]
