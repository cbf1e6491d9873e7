"""What browsers may load and run on our pages. Headers of programs' answers do not matter to a browser."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = {
    "default-src": "'self'",
    "img-src": "'self' data:",
    "style-src": "'self' 'unsafe-inline'",  # Unfold writes the theme's colours, Swagger UI its layout, into the page
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
ADMIN_SCRIPTS = "'self' 'unsafe-eval'"
"""Unfold's pages are driven by Alpine.js, which compiles the expressions in their attributes; no inline scripts."""


def header(policy: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in policy.items())


EVERYWHERE = header(POLICY)
IN_THE_ADMIN = header(POLICY | {"script-src": ADMIN_SCRIPTS})


class ContentSecurityMiddleware:
    """Sends the policy, and turns off what no page of ours uses."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]):
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        policy = IN_THE_ADMIN if request.path.startswith("/admin/") else EVERYWHERE
        response.headers.setdefault("Content-Security-Policy", policy)
        response.headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
        return response
