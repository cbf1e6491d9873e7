"""Where routing answers: dispatch, what nodes report, and the route table with its review."""

from django.urls import path

from routing import review
from routing.api import DispatchView, ExplainView, ReceiptsView
from routing.api_advisories import AdvisoriesView
from routing.api_routes import (
    ApproveView,
    ChangesView,
    ChangeView,
    ImpactView,
    MoveView,
    PublishView,
    RebaseView,
    RevertView,
    RevisionsView,
    RevisionView,
    RoutesView,
)
from routing.events import EventsView, WaitView

CHANGE = "route-changes/<int:change_id>"

urlpatterns = [
    path("dispatch", DispatchView.as_view()),
    path("dispatch/explain", ExplainView.as_view()),
    path("calls/<uuid:call_id>/receipts", ReceiptsView.as_view()),
    path("calls/<uuid:call_id>/wait", WaitView.as_view()),
    path("calls/<uuid:call_id>/events", EventsView.as_view()),
    path("routes", RoutesView.as_view()),
    path("advisories", AdvisoriesView.as_view()),
    path("route-revisions", RevisionsView.as_view()),
    path("route-revisions/<int:number>", RevisionView.as_view()),
    path("route-changes", ChangesView.as_view()),
    path(CHANGE, ChangeView.as_view()),
    path(f"{CHANGE}/submit", MoveView.as_view(verb=review.submit)),
    path(f"{CHANGE}/impact", ImpactView.as_view()),
    path(f"{CHANGE}/approve", ApproveView.as_view()),
    path(f"{CHANGE}/rebase", RebaseView.as_view()),
    path(f"{CHANGE}/comment", MoveView.as_view(verb=review.comment_on)),
    path(f"{CHANGE}/reject", MoveView.as_view(verb=review.reject)),
    path(f"{CHANGE}/withdraw", MoveView.as_view(verb=review.withdraw)),
    path(f"{CHANGE}/publish", PublishView.as_view()),
    path(f"{CHANGE}/revert", RevertView.as_view()),
]
