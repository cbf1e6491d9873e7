"""The page that shows what the doctor finds, and what the database holds for how long."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone, translation

from receipts import retention
from registry.models import RefusalCount

pytestmark = pytest.mark.django_db
PAGE = "/admin/installation/"


def shown(client: Client, **headers: Any) -> str:
    answer = client.get(PAGE, **headers)
    assert answer.status_code == 200
    return answer.content.decode()


def test_what_is_wrong_stands_first_with_its_mending(administrator: Client) -> None:
    page = shown(administrator)
    assert "To be mended" in page and "Nothing of Agent-Reach is running" in page and "reach_serve" in page
    assert page.index("Nothing of Agent-Reach is running") < page.index("LISTEN and NOTIFY come through")


def test_data_is_shown_with_its_age_its_time_and_the_last_run(operator: Client, settings: Any) -> None:
    settings.REACH_RETENTION_DAYS = 30
    now = timezone.now()
    page = shown(operator)
    assert "Retention has not run yet" in page
    RefusalCount.objects.create(key_id="k", code="c", minute=now - timedelta(days=40), count=1)
    assert "with the next run" in shown(operator)
    retention.forget(now)
    page = shown(operator)
    assert "1 row or partition deleted" in page and "with the next run" not in page
    assert "30 days" in page and "<code>REACH_RETENTION_DAYS</code>" in page and "for ever" in page


def test_a_backlog_that_is_carried_over_is_said(operator: Client) -> None:
    now = timezone.now()
    for n in range(3):
        RefusalCount.objects.create(key_id=f"k{n}", code="c", minute=now - timedelta(days=90), count=1)
    retention.forget(now, batch=1, run_s=0)
    assert "The rest of a backlog" in shown(operator)


def test_only_who_may_act_sees_it(viewer: Client, client: Client) -> None:
    assert viewer.get(PAGE).status_code == 403
    assert client.get(PAGE).status_code == 302
    assert PAGE not in viewer.get("/admin/registry/node/").content.decode()


def test_it_speaks_chinese(administrator: Client) -> None:
    with translation.override("en"):  # a request leaves its language behind
        page = shown(administrator, HTTP_ACCEPT_LANGUAGE="zh-hans")
    assert "安装的健康状况" in page and "直到各自过期" in page
