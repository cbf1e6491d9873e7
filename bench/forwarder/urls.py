"""The forwarder's one view: hand the body to the node, hand the node's answer back. No keys, checks or records."""

from functools import cache

import aiohttp
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path


@cache
def session() -> aiohttp.ClientSession:
    """The process's one client, pooled; made at the first request because it belongs to the running loop."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def forward(request: HttpRequest) -> HttpResponse:
    headers = {"Content-Type": "application/json"}
    async with session().post(settings.NODE_URL, data=request.body, headers=headers) as answer:
        return HttpResponse(await answer.read(), status=answer.status, content_type="application/json")


urlpatterns = [path("forward", forward)]
