import hashlib
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from registry import services
from registry.auth import Key, digest_of, find_key, key_of_row, keyring, load_keys_sql, now_millis
from registry.errors import Unauthenticated
from registry.models import ApiKey, AuditEvent
from tests.integration.registry.conftest import Api

pytestmark = pytest.mark.django_db


def test_an_operator_makes_a_key_that_works_at_once(operator):
    answer = operator("POST", "keys", {"service_id": "report", "scopes": ["dispatch", "observe"], "expires_at": None})
    assert answer.status_code == 201
    made = answer.json()
    assert made.keys() == {"key_id", "key", "signing_secret"}
    assert made["signing_secret"].startswith("whsec_")
    assert Api(made["key"])("GET", "nodes").status_code == 200
    stored = ApiKey.objects.get(pk=made["key_id"])
    assert stored.digest == hashlib.sha256(made["key"].encode()).hexdigest()
    assert AuditEvent.objects.filter(action="create key", target=made["key_id"], actor="user:olga").exists()


def test_keys_are_listed_without_secrets_and_revoked(operator):
    made = operator("POST", "keys", {"service_id": "report", "scopes": ["observe"]}).json()
    text = operator("GET", "keys").content.decode()
    assert made["key_id"] in text
    assert made["key"] not in text
    assert digest_of(made["key"]) not in text
    assert operator("DELETE", f"keys/{made['key_id']}").status_code == 204
    answer = Api(made["key"])("GET", "nodes")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert operator("DELETE", f"keys/{made['key_id']}").status_code == 404


def test_one_service_has_one_signing_secret(operator, as_service):
    first = operator("POST", "keys", {"service_id": "doc-summarizer", "scopes": ["register"]}).json()
    second = operator("POST", "keys", {"service_id": "doc-summarizer", "scopes": ["observe"]}).json()
    registered = Api(first["key"]).register().json()
    assert first["signing_secret"] == second["signing_secret"] == registered["signing_secret"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"scopes": ["observe"]}, "/service_id"),
        ({"service_id": "Bad Name", "scopes": ["observe"]}, "/service_id"),
        ({"service_id": "s"}, "/scopes"),
        ({"service_id": "s", "scopes": []}, "/scopes"),
        ({"service_id": "s", "scopes": "observe"}, "/scopes"),
        ({"service_id": "s", "scopes": ["observe", "root"]}, "/scopes/1"),
        ({"service_id": "s", "scopes": ["observe"], "expires_at": "tomorrow"}, "/expires_at"),
        ({"service_id": "s", "scopes": ["observe"], "expires_at": "2030-01-01T00:00:00"}, "/expires_at"),
        ({"service_id": "s", "scopes": ["observe"], "expires_at": "2001-01-01T00:00:00Z"}, "/expires_at"),
    ],
)
def test_mistakes_are_named(operator, body, place):
    answer = operator("POST", "keys", body)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, place)


def test_nobody_gives_away_what_they_do_not_have(as_service):
    robot = as_service("robot", "operate", "observe")
    assert robot("POST", "keys", {"service_id": "s", "scopes": ["observe"]}).status_code == 201
    assert robot("POST", "keys", {"service_id": "s", "scopes": ["dispatch"]}).status_code == 403


def test_only_operators_make_keys(agent, as_user):
    body = {"service_id": "s", "scopes": ["observe"]}
    assert agent("POST", "keys", body).status_code == 403
    assert as_user("viewer", name="vic")("POST", "keys", body).status_code == 403
    assert as_user("approver", name="ann")("GET", "keys").status_code == 200


@pytest.mark.parametrize("header", ["Bearer nonsense", "Bearer ", "Basic b2xnYTpwdw==", "reach_x", "Bearer \u00e9"])
def test_unknown_keys_are_401_and_say_how(db, header):
    answer = Client().get("/api/v1/nodes", headers={"Authorization": header})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_a_key_expires(db):
    key = services.create_service_key("s", ["observe"], by="test", expires_at=timezone.now() + timedelta(hours=1))
    assert Api(key.text)("GET", "nodes").status_code == 200
    ApiKey.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert Api(key.text)("GET", "nodes").status_code == 401


def test_a_user_who_is_locked_out_has_no_key(operator):
    get_user_model().objects.filter(username="olga").update(is_active=False)
    assert operator("GET", "nodes").status_code == 401


def test_the_ring_answers_from_memory_and_the_database_where_it_misses(db, django_assert_num_queries):
    text = services.create_service_key("s", ["observe"], by="test").text
    with django_assert_num_queries(1) as queries:
        from_database = find_key(text)
    assert load_keys_sql.split()[0] in queries[0]["sql"]
    keyring.replace({digest_of(text): from_database})
    try:
        with django_assert_num_queries(0):
            assert find_key(text) is from_database
        with pytest.raises(Unauthenticated):
            find_key("another")
    finally:
        keyring.replace({})


def test_keys_know_their_caller_and_their_end():
    moment = timezone.now()
    _digest, key = key_of_row(("d", "k", None, 5, "olga", ["observe"], moment))
    assert (key.caller, key.usable(now_millis() - 10_000), key.usable(now_millis() + 1)) == ("user:olga", True, False)
    assert Key("k", "s", None, None, frozenset()).caller == "s"


# --- Sessions --------------------------------------------------------------------------------------------------------


def session_of(*groups, **checks):
    user, _password = services.create_user("sam", groups, by="test")
    client = Client(**checks)
    client.force_login(user)
    return client


def test_an_admin_session_works_on_the_same_endpoints(agent):
    agent.register()
    client, node = session_of("operator"), "/api/v1/services/doc-summarizer/nodes/n1"
    assert client.get("/api/v1/nodes").status_code == 200
    changed = client.patch(node, {"weight": 3}, content_type="application/json")
    assert (changed.status_code, changed.json()["weight"]) == (200, 3)


def test_a_session_needs_its_csrf_token(agent):
    agent.register()
    client, node = session_of("operator", enforce_csrf_checks=True), "/api/v1/services/doc-summarizer/nodes/n1"
    answer = client.patch(node, {"weight": 3}, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_session_posts_json_with_its_csrf_token():
    client = session_of("operator", enforce_csrf_checks=True)
    client.get("/admin/password_change/")  # any page with a form sets the cookie
    token = client.cookies["csrftoken"].value
    body = {"service_id": "report", "scopes": ["dispatch"]}
    assert client.post("/api/v1/keys", body, "application/json").status_code == 403
    made = client.post("/api/v1/keys", body, "application/json", headers={"x-csrftoken": token})
    assert made.status_code == 201, made.content


def test_a_session_may_what_its_user_may(agent):
    agent.register()
    client = session_of("viewer")
    assert client.get("/api/v1/nodes").status_code == 200
    answer = client.patch("/api/v1/services/doc-summarizer/nodes/n1", {"weight": 3}, content_type="application/json")
    assert answer.status_code == 403


def test_other_methods_are_405(operator):
    answer = operator("PUT", "nodes", {})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
