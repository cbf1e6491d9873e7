"""The tables in memory follow the database: what has moved is read again, and no more than that."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from receipts.journal import connect
from registry import changes, services
from registry.auth import Key
from registry.core.node import AdminState
from registry.database import conninfo
from registry.serializers import CapabilityBody, NodeBody
from routing.snapshot import Moved, Snapshot, moved_since

pytestmark = pytest.mark.django_db(transaction=True)
AGENT = Key("k", "alpha", None, None, frozenset({"register"}))


def register(name: str, *capabilities: str, **facts: Any) -> int:
    service_id, _slash, node_id = name.partition("/")
    offered = [CapabilityBody(name=one, description=f"Does {one}") for one in capabilities]
    body = NodeBody(address="http://127.0.0.1:1", capabilities=offered, **facts)
    return services.register_node(service_id, node_id, body, by=AGENT).version or 0


@pytest.fixture
async def connection() -> AsyncIterator[psycopg.AsyncConnection]:
    async with await connect(await sync_to_async(conninfo)("tests"), "tests") as made:
        yield made
    await sync_to_async(connections.close_all)()  # the sessions of the thread that the ORM ran in


@pytest.fixture
def a_snapshot(connection: psycopg.AsyncConnection) -> Callable[[], Awaitable[Snapshot]]:
    """A snapshot that has been loaded."""

    async def make() -> Snapshot:
        made = Snapshot("", poll_s=1, retry_s=1, shown_at_most=32, use_keys=lambda keys: rings.append(keys))
        await made.load_if_moved(connection)
        return made

    rings: list[dict[str, Key]] = []
    make.rings = rings  # type: ignore[attr-defined]
    return make


def facts(snapshot: Snapshot) -> dict[str, Any]:
    tables = snapshot.tables
    assert tables is not None
    return {
        "version": tables.version,
        "nodes": {key: (n.health, n.admin_state, n.weight, sorted(n.offers)) for key, n in tables.nodes.items()},
        "providers": {name: sorted(n.key for n, _offer in rows) for name, rows in tables.providers.items()},
        "known": tables.known,
        "secrets": dict(tables.secrets),
        "services": tables.services,
        "routes": (tables.revision, [route.id for route in tables.routes.routes]),
        "texts": snapshot.texts,
    }


async def follows(make: Callable[[], Awaitable[Snapshot]], snapshot: Snapshot, connection: Any) -> set[tuple[str, str]]:
    """Bring it up to date, compare it with one that starts now; the nodes that were read again."""
    before = dict(snapshot.tables.nodes) if snapshot.tables else {}
    assert await snapshot.load_if_moved(connection)
    assert facts(snapshot) == facts(await make())
    assert snapshot.tables is not None
    return {key for key, node in snapshot.tables.nodes.items() if before.get(key) is not node}


async def test_a_change_of_one_node_reads_one_node(a_snapshot: Any, connection: psycopg.AsyncConnection):
    for name in ("alpha/n1", "alpha/n2", "beta/n1"):
        await sync_to_async(register)(name, "summary")
    snapshot = await a_snapshot()
    assert await follow_all(snapshot, a_snapshot, connection) == [
        {("alpha", "n2")},
        {("beta", "n1")},
        {("gamma", "n1")},
        set(),
    ]


async def follow_all(snapshot: Snapshot, make: Any, connection: Any) -> list[set[tuple[str, str]]]:
    read = []
    for change in (
        lambda: services.set_operator_choice("alpha", "n2", weight=7, by="test"),
        lambda: services.set_operator_choice("beta", "n1", admin_state=AdminState.DISABLED, by="test"),
        lambda: register("gamma/n1", "summary", "search"),
        lambda: services.remove_node("alpha", "n1", drain_s=0, by=AGENT),
    ):
        await sync_to_async(change)()
        read.append(await follows(make, snapshot, connection))
    return read


async def test_many_changes_are_one_reading(a_snapshot: Any, connection: psycopg.AsyncConnection):
    snapshot = await a_snapshot()
    for name in ("alpha/n1", "alpha/n2", "beta/n1"):
        await sync_to_async(register)(name, "summary")
    await sync_to_async(services.remove_node)("alpha", "n1", drain_s=0, by=AGENT)
    assert await follows(a_snapshot, snapshot, connection) == {("alpha", "n2"), ("beta", "n1")}


async def test_leases_that_run_out_are_followed(a_snapshot: Any, connection: psycopg.AsyncConnection):
    await sync_to_async(register)("alpha/n1", "summary", lease_ttl_s=3)
    await sync_to_async(register)("beta/n1", "summary")
    snapshot = await a_snapshot()
    now = timezone.now()
    for late_s in (1, 2, 3, 4, 5):  # in steps: a longer absence would be the reach's own
        await sync_to_async(services.expire_leases)(now + timedelta(seconds=late_s))
    assert await follows(a_snapshot, snapshot, connection) == {("alpha", "n1")}
    assert snapshot.tables is not None and snapshot.tables.nodes["alpha", "n1"].expired


async def test_a_new_key_reads_no_node(a_snapshot: Any, connection: psycopg.AsyncConnection):
    await sync_to_async(register)("alpha/n1", "summary")
    snapshot = await a_snapshot()
    made = await sync_to_async(services.create_service_key)("report", ["observe"], by="test")
    assert await follows(a_snapshot, snapshot, connection) == set()
    assert made.key_id in {key.key_id for key in a_snapshot.rings[-1].values()}
    await sync_to_async(register)("alpha/n2", "summary")
    rings = len(a_snapshot.rings)
    await snapshot.load_if_moved(connection)
    assert len(a_snapshot.rings) == rings, "a node came, no key did"


@pytest.mark.parametrize("silent", ["bump", "an older release"])
async def test_what_nobody_has_said_is_a_gap_and_reads_everything(
    a_snapshot: Any, connection: psycopg.AsyncConnection, silent: str
):
    await sync_to_async(register)("alpha/n1", "summary")
    snapshot = await a_snapshot()
    if silent == "bump":
        await sync_to_async(changes.bump)()
    else:
        await connection.execute("UPDATE registry_snapshotversion SET version = version + 1")
    await sync_to_async(register)("beta/n1", "summary")
    assert await follows(a_snapshot, snapshot, connection) == {("alpha", "n1"), ("beta", "n1")}


async def test_a_suspicion_reads_the_node_it_is_about(a_snapshot: Any, connection: psycopg.AsyncConnection):
    from registry import health
    from registry.models import Node

    for name in ("alpha/n1", "beta/n1"):
        await sync_to_async(register)(name, "summary")
    await sync_to_async(Node.objects.update)(health="ready")
    await sync_to_async(changes.bump)()
    snapshot = await a_snapshot()
    await sync_to_async(health.suspect)([("beta", "n1", "refused")])
    assert await follows(a_snapshot, snapshot, connection) == {("beta", "n1")}


def test_versions_that_follow_each_other_are_added_up():
    rows = [
        {"version": 5, "nodes": [1, 2], "parts": []},
        {"version": 6, "nodes": [2, 3], "parts": ["keys"]},
    ]
    assert moved_since(4, 6, rows) == Moved({1, 2, 3}, {"keys"})
    assert moved_since(3, 6, rows) is None
    assert moved_since(4, 7, rows) is None
    assert moved_since(6, 4, []) is None, "an older database has taken its place"


def test_few_changes_are_kept():
    from registry.models import SnapshotChange, SnapshotVersion

    first = changes.bump([1])
    SnapshotVersion.objects.update(version=first + changes.KEPT - 1)
    changes.bump([2])
    assert list(SnapshotChange.objects.values_list("version", "nodes")) == [(first + changes.KEPT, [2])]
