"""Browsers keep static files for ever: other files have another address, and old addresses lead to it."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.templatetags.static import static
from django.test import Client, RequestFactory

from reach_project.assets import state_of
from reach_project.compression import PageCompressionMiddleware

pytestmark = pytest.mark.django_db


def test_a_file_is_kept_for_ever_under_an_address_of_its_state(administrator: Client) -> None:
    page = administrator.get("/admin/").content.decode()
    address = static("dashboard/admin.css")
    assert re.fullmatch(r"/static/[0-9a-f]{8}/dashboard/admin\.css", address) and address in page
    assert "max-age=31536000" in administrator.get(address)["Cache-Control"]


@pytest.mark.parametrize("before", ["/static/", "/static/01234567/"])
def test_a_page_of_before_finds_todays_files(client: Client, before: str) -> None:
    answer = client.get(f"{before}dashboard/charts.js")
    assert (answer.status_code, answer["Location"]) == (302, static("dashboard/charts.js"))
    assert answer["Cache-Control"] == "no-store"


def test_what_is_not_there_is_not_found(client: Client) -> None:
    assert client.get(static("nothing.js")).status_code == 404


@pytest.mark.parametrize("name", ["http://evil.test/a.js", "//evil.test/a.js", "../../evil", "a%0d%0ab"])
def test_nobody_is_led_elsewhere(client: Client, name: str) -> None:
    answer = client.get(f"/static/{name}")
    assert answer.status_code in (302, 404)
    assert answer.get("Location", settings.STATIC_URL).startswith(settings.STATIC_URL)


def test_other_contents_are_another_state(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    first = state_of(tmp_path)
    assert state_of(tmp_path) == first
    (tmp_path / "a.js").write_text("2")
    assert state_of(tmp_path) != first


def test_pages_are_compressed_and_streams_are_not(rf: RequestFactory) -> None:
    request = rf.get("/", headers={"accept-encoding": "gzip"})
    page = PageCompressionMiddleware(lambda _request: HttpResponse("text " * 500))(request)
    assert page["Content-Encoding"] == "gzip"
    events = StreamingHttpResponse(iter([b"data: 1\n\n"]), content_type="text/event-stream")
    told = PageCompressionMiddleware(lambda _request: events)(request)
    assert "Content-Encoding" not in told
    assert list(told) == [b"data: 1\n\n"]
