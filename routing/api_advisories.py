"""Advisories by REST: what traffic and tables give reason to say."""

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from registry.auth import OBSERVE
from registry.http import invalid_parameter, page, page_response
from routing.api_routes import PAGE, listed
from routing.models import Advisory
from routing.serializers import AdvisoryDocument, advisory_document


class AdvisoriesView(APIView):
    """Advisories that stand, the newest first; or those that were resolved."""

    scopes = {"GET": OBSERVE}

    @extend_schema(
        operation_id="advisories_list",
        parameters=[*PAGE, OpenApiParameter("resolved", bool, description="true: those that are resolved")],
        responses={200: listed(AdvisoryDocument)},
    )
    def get(self, request: Request) -> HttpResponse:
        wanted = request.GET.get("resolved", "false")
        if wanted not in ("true", "false"):
            raise invalid_parameter("resolved", "must be true or false")
        found = Advisory.objects.filter(resolved_at__isnull=wanted == "false")
        return page_response(*page(found, request, ["-first_seen_at", "-pk"]), advisory_document)
