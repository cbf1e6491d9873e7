"""People at the admin, and a reach in use."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client


@pytest.fixture(autouse=True)
def single_rows(db: None) -> None:
    """Tests with real transactions end by emptying every table, these rows included."""
    from registry.models import InstallationKey, SnapshotVersion

    SnapshotVersion.objects.get_or_create(pk=1)
    InstallationKey.objects.get_or_create(pk=1, defaults={"value": "a key for tests"})


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def as_person(db: None) -> Callable[..., Client]:
    from tests.integration.dashboard.sample import a_person

    def make(*groups: str, name: str = "olga", superuser: bool = False) -> Client:
        client = Client()
        client.force_login(a_person(name, *groups, superuser=superuser))
        return client

    return make


@pytest.fixture
def administrator(as_person: Any) -> Client:
    return as_person("admin", name="root", superuser=True)


@pytest.fixture
def operator(as_person: Any) -> Client:
    return as_person("operator", name="olga")


@pytest.fixture
def viewer(as_person: Any) -> Client:
    return as_person("viewer", name="vera")


@pytest.fixture
def in_use(db: None) -> None:
    from registry import services
    from tests.integration.dashboard import sample

    sample.nodes_of_every_kind()
    services.create_service_key("scheduler", ["dispatch"], by="user:root")
    author, approver = sample.a_person("ann", "operator"), sample.a_person("ben", "approver")
    sample.a_revision(author, approver)
    sample.advisories_of_every_kind()
    sample.calls_of_every_kind()
