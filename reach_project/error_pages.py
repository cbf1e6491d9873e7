"""Answers of Django itself, outside any view: problem documents for programs, pages for people."""

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from reach_project.problems import problem_response


def for_a_program(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if for_a_program(request):
        return problem_response(400, "invalid_request", "this is not a request that can be answered")
    return defaults.bad_request(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    if for_a_program(request):
        return problem_response(403, "forbidden", "you may not do this")
    return defaults.permission_denied(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if for_a_program(request):
        return problem_response(404, "not_found", f"there is nothing at {request.path}")
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    if for_a_program(request):
        return problem_response(500, "internal_error", "the reach made a mistake; its log has the details")
    return defaults.server_error(request)


def not_by_a_dispatcher(request: HttpRequest, *_rest: str) -> HttpResponse:
    """The addresses of pages, at a process that has none. For whoever typed the wrong port: short and plain."""
    detail = (
        "this process is a dispatcher and serves the REST API under /api/v1/ only;"
        " pages and the admin are served by the console (REACH_ROLE=console)"
    )
    return problem_response("not_found", detail=detail, docs=request.build_absolute_uri("/api/v1/docs"))
