"""What happens at the same time, and what is counted."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from registry import changes, refusals, services
from registry.auth import Key
from registry.models import InstallationKey, Node, RefusalCount, Service, SnapshotVersion
from registry.serializers import CapabilityBody, NodeBody
from registry.signing import decrypt, encrypt, known_cipher

AGENT = Key("k", "doc-summarizer", None, None, frozenset({"register"}))


def at_once(work, times):
    def closing(number):
        try:
            return work(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(closing, range(times)))


@pytest.mark.django_db(transaction=True)
def test_nodes_of_one_service_may_register_at_once():
    def register(number):
        names = ["b", "a", "c"] if number % 2 else ["c", "a", "b"]
        body = NodeBody(address="http://127.0.0.1:1", capabilities=[CapabilityBody(name=name) for name in names])
        return services.register_node("doc-summarizer", f"n{number % 3}", body, by=AGENT)

    registered = at_once(register, 9)
    assert Node.objects.count() == 3
    assert len({r.signing_secret for r in registered}) == 1
    assert sum(r.created for r in registered) == 3
    assert all(node.declarations.count() == 3 for node in Node.objects.all())


@pytest.mark.django_db(transaction=True)
def test_every_change_has_a_version_of_its_own():
    def change(_number):
        return services.create_service_key("report", ["observe"], by="test").version

    versions = at_once(change, 8)
    assert len(set(versions)) == 8
    assert SnapshotVersion.objects.get(pk=1).version >= max(versions)


@pytest.mark.django_db(transaction=True)
def test_two_sweepers_expire_a_lease_once():
    body = NodeBody(address="http://127.0.0.1:1", capabilities=[])
    services.register_node("doc-summarizer", "n1", body, by=AGENT)
    services.expire_leases(timezone.now() + timedelta(seconds=2))
    Node.objects.get().lease.__class__.objects.update(lease_expires_at=timezone.now())
    late = timezone.now() + timedelta(seconds=3)
    assert sum(at_once(lambda _number: services.expire_leases(late), 4)) == 1


@pytest.mark.django_db(transaction=True)
def test_a_lease_can_run_out_while_its_node_is_being_changed():
    """Neither waits for the other: each would hold what the other wants, the node here and the counter there."""
    services.register_node("doc-summarizer", "n1", NodeBody(address="http://127.0.0.1:1", capabilities=[]), by=AGENT)
    soon = timezone.now() + timedelta(seconds=1)
    services.expire_leases(soon)
    Node.objects.get().lease.__class__.objects.update(lease_expires_at=timezone.now())
    with transaction.atomic():
        services.locked("doc-summarizer", "n1")
        with ThreadPoolExecutor(1) as pool:

            def expire():
                try:
                    with connection.cursor() as cursor:
                        cursor.execute("SET lock_timeout = 2000")
                    return services.expire_leases(soon + timedelta(seconds=1))
                finally:
                    with connection.cursor() as cursor:
                        cursor.execute("RESET lock_timeout")  # the session goes back to the pool
                    connection.close()

            assert pool.submit(expire).result() == 1
        changes.bump()


@pytest.mark.django_db
def test_dispatchers_of_this_process_are_waited_for():
    seen = []
    changes.followers.append(lambda version, timeout_s: bool(seen.append(version)))
    try:
        changes.wait_until_followed(7)
    finally:
        changes.followers.pop()
    assert seen == [7]


@pytest.mark.django_db
def test_signing_secrets_are_read_after_the_database_was_replaced(settings):
    settings.GIVEN_SECRET_KEY = ""
    known_cipher.cache_clear()
    assert decrypt(encrypt("whsec_a")) == "whsec_a"
    InstallationKey.objects.all().delete()
    assert decrypt(encrypt("whsec_b")) == "whsec_b"
    known_cipher.cache_clear()


@pytest.mark.django_db
def test_refusals_are_counted_by_key_code_and_minute():
    def store():
        if rows := refusals.taken():
            with connection.cursor() as cursor:
                cursor.execute(refusals.store_sql, refusals.columns(rows))

    refusals.taken()
    for moment in (60, 61, 119, 120):
        refusals.count("k_1", "forbidden", moment)
    refusals.count("", "unauthenticated", 60)
    store()
    refusals.count("k_1", "forbidden", 60)
    store()
    store()
    rows = RefusalCount.objects.order_by("key_id", "minute").values_list("key_id", "code", "minute__minute", "count")
    assert list(rows) == [("", "unauthenticated", 1, 1), ("k_1", "forbidden", 1, 4), ("k_1", "forbidden", 2, 1)]


@pytest.mark.django_db
def test_services_without_nodes_are_callers():
    services.create_service_key("report", ["dispatch"], by="test")
    assert Service.objects.get(pk="report").nodes.count() == 0
