"""Preparing a database that others are using."""

from pathlib import Path

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction

from reach_project import prepare
from registry.database import conninfo
from registry.models import Service


@pytest.mark.django_db(transaction=True)
def test_a_table_in_use_is_waited_for_without_holding_others_up() -> None:
    said: list[str] = []
    with psycopg.connect(conninfo("long query")) as long_query:
        long_query.execute("LOCK TABLE registry_service IN ACCESS SHARE MODE")

        def say(text: str) -> None:
            said.append(text)
            assert not Service.objects.exists()  # a reader gets through
            if len(said) == 2:
                long_query.rollback()

        def work() -> None:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("LOCK TABLE registry_service IN ACCESS EXCLUSIVE MODE")  # as most of ALTER TABLE does

        prepare.patiently(work, say, lock_timeout_ms=50, pause_s=0)
    assert len(said) == 2 and all("in use" in text for text in said)
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


@pytest.mark.django_db
def test_the_first_credentials_are_made_once(tmp_path: Path) -> None:
    made = prepare.first_credentials(tmp_path / "home" / "credentials.json", "http://127.0.0.1:8080")
    assert made is not None and made.admin_username == "admin"
    assert prepare.first_credentials(tmp_path / "home" / "credentials.json", "http://127.0.0.1:8080") is None
    assert prepare.first_credentials(tmp_path / "another" / "credentials.json", "http://127.0.0.1:8080") is None
    assert get_user_model().objects.filter(is_superuser=True).count() == 1
