"""People who may do different things.

Imports of models stand inside: pytest reads this file before Django is set up when the folder is named to it.
"""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def single_rows(db: None) -> None:
    """Tests with real transactions end by emptying every table, these rows included."""
    from registry.models import InstallationKey, SnapshotVersion

    SnapshotVersion.objects.get_or_create(pk=1)
    InstallationKey.objects.get_or_create(pk=1, defaults={"value": "a key for tests"})


def a_person(name: str, *groups: str) -> Any:
    from django.contrib.auth.models import Group, User

    from registry import services

    services.ensure_groups()
    user = User.objects.create(username=name, is_staff=True)
    user.groups.set(Group.objects.filter(name__in=groups))
    return user


@pytest.fixture
def author() -> Any:
    return a_person("author", "operator", "approver")


@pytest.fixture
def colleague() -> Any:
    return a_person("colleague", "operator")


@pytest.fixture
def approver() -> Any:
    return a_person("approver", "approver")


@pytest.fixture
def viewer() -> Any:
    return a_person("viewer", "viewer")
