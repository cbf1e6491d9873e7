import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from registry.models import ApiKey
from tests.integration.registry.conftest import Api

pytestmark = pytest.mark.django_db


def run(*args):
    out = StringIO()
    call_command(*args, stdout=out)
    return out.getvalue()


def test_reach_key_prints_the_key_alone():
    printed = run("reach_key", "create", "--service", "doc-summarizer", "--scopes", "register,observe")
    assert len(printed.split()) == 1
    assert Api(printed.strip()).register().status_code == 201


def test_reach_key_can_expire():
    run("reach_key", "create", "--service", "s", "--scopes", "observe", "--expires-at", "2100-01-01T00:00:00Z")
    assert ApiKey.objects.get().expires_at.year == 2100


@pytest.mark.parametrize(
    "args",
    [
        ("--service", "Bad Name", "--scopes", "observe"),
        ("--service", "s", "--scopes", "root"),
        ("--service", "s", "--scopes", ""),
        ("--service", "s", "--scopes", "observe", "--expires-at", "2001-01-01"),
        ("--service", "s", "--scopes", "observe", "--expires-at", "soon"),
        ("--service", "s"),
    ],
)
def test_reach_key_refuses_with_a_sentence(args):
    with pytest.raises(CommandError, match=r"\w+ \w+"):
        run("reach_key", "create", *args)
    assert not ApiKey.objects.exists()


def test_reach_user_prints_json_with_what_is_needed_to_log_in_and_to_call():
    made = json.loads(run("reach_user", "create", "olga", "--groups", "operator,approver", "--with-key"))
    assert made.keys() == {"username", "password", "key"}
    given = {"username": "olga", "password": made["password"]}
    assert Client().post("/admin/login/", given).status_code == 302
    operator = Api(made["key"])
    assert operator("POST", "keys", {"service_id": "s", "scopes": ["dispatch"]}).status_code == 201


def test_a_viewer_s_key_only_looks():
    made = json.loads(run("reach_user", "create", "vic", "--groups", "viewer", "--with-key"))
    viewer = Api(made["key"])
    assert viewer("GET", "nodes").status_code == 200
    assert viewer("GET", "keys").status_code == 403


@pytest.mark.parametrize("args", [("olga", "--groups", "kings"), ("taken",)])
def test_reach_user_refuses_with_a_sentence(args):
    run("reach_user", "create", "taken")
    with pytest.raises(CommandError, match=r"unknown group|already"):
        run("reach_user", "create", *args)
