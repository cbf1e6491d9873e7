"""Who guesses passwords is slowed down, and nobody else."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough passphrase"


@pytest.fixture(autouse=True)
def olga(settings: Any) -> User:
    settings.AXES_FAILURE_LIMIT = 3
    return User.objects.create_user("olga", password=PASSWORD, is_staff=True)


def log_in(client: Client, password: str = PASSWORD, *, name: str = "olga", address: str = "10.0.0.1") -> Any:
    return client.post("/admin/login/", {"username": name, "password": password}, REMOTE_ADDR=address)


def test_the_right_password_opens_and_forgets_failures(client: Client) -> None:
    for _ in range(2):
        assert log_in(client, "wrong").status_code == 200
        assert log_in(client, "wrong").status_code == 200
        assert log_in(client)["Location"] == "/admin/"


@pytest.mark.parametrize("name", ["olga", "nobody"])
def test_after_too_many_failures_even_the_right_password_waits(client: Client, name: str) -> None:
    answers = [log_in(client, "wrong", name=name).status_code for _ in range(3)]
    assert answers == [200, 200, 429]
    last = log_in(client, name=name)
    assert last.status_code == 429 and "Too many failed logins" in last.content.decode()


def test_others_and_other_places_are_not_locked_out(client: Client) -> None:
    for _ in range(4):
        log_in(client, "wrong")
    assert log_in(client, address="10.0.0.2").status_code == 302
