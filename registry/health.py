"""Verbs of health: which nodes are due, what probes find, who is suspected, and the history that shows it.

A probe is due work like any other: the row in `registry_nodeprobe` says when, whoever takes it moves it on
(`SKIP LOCKED`), and a message lost on the way costs a second.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from registry import changes, clock
from registry.addresses import allowed_addresses
from registry.audit import audit
from registry.core.health import Standing, next_probe_s, standing_after
from registry.core.node import AdminState, Health, visible_status
from registry.database import give_back
from registry.models import Node, NodeProbe, StatusChange
from registry.probes import Evidence, Target, probe
from registry.querysets import NodeQuerySet
from registry.signing import decrypt

RECENT_PROBES = 30


@dataclass(frozen=True, slots=True)
class Probed:
    """One probe: what it found, where the node stands since, and the snapshot version that this made, if any."""

    evidence: Evidence
    standing: Standing
    version: int | None = None

    def document(self) -> dict[str, Any]:
        return self.evidence.document() | {
            "status": self.standing.health.value,
            "status_reason": self.standing.reason or self.evidence.trouble,
            "failures": self.standing.failures,
        }


# --- Changes of a node in memory -------------------------------------------------------------------------------------


def set_health(node: Node, health: Health, reason: str, now: datetime) -> None:
    """Change a node in memory; `health_since` moves only with the health itself."""
    if node.health != health:
        node.health, node.health_since = health, now
    node.health_reason = reason


def set_admin_state(node: Node, state: AdminState, now: datetime) -> None:
    """Change a node in memory; `admin_state_since` moves only with the state itself."""
    if node.admin_state != state:
        node.admin_state, node.admin_state_since = state, now


def remember(
    node: Node, now: datetime, *, expired: bool = False, evidence: dict[str, Any] | None = None, version: str = ""
) -> None:
    """Add the node's visible status to its history; `version` where a declaration is what has happened."""
    status = visible_status(Health(node.health), node.health_reason, AdminState(node.admin_state), expired=expired)
    StatusChange.objects.create(
        node=node, at=now, status=status.name, reason=status.reason, evidence=evidence, version=version
    )


def probe_at_once(node_pk: int) -> None:
    """Make a node due now, inside the caller's transaction: the snapshot's move tells the workers to look."""
    NodeProbe.objects.update_or_create(node_id=node_pk, defaults={"due_at": clock.now(), "failures": 0})


# --- Probing ---------------------------------------------------------------------------------------------------------

CLAIM = """
UPDATE registry_nodeprobe probe
SET due_at = clock_timestamp() + make_interval(secs => claimed.interval_s * (0.8 + random() / 5))
FROM (
    SELECT p.node_id, CASE WHEN n.health = 'ready' AND p.failures = 0 THEN %s ELSE %s END AS interval_s
    FROM registry_nodeprobe p
        JOIN registry_node n ON n.id = p.node_id AND n.deleted_at IS NULL AND n.drain_until IS NULL
        JOIN registry_nodelease l ON l.node_id = p.node_id AND NOT l.expired
    WHERE p.due_at <= clock_timestamp() ORDER BY p.due_at LIMIT %s FOR UPDATE OF p SKIP LOCKED
) claimed
WHERE probe.node_id = claimed.node_id RETURNING probe.node_id
"""


def claim_due() -> list[int]:
    """Take a shard of the nodes that are due, the longest overdue first; their next turn is set."""
    with connection.cursor() as cursor:
        cursor.execute(
            CLAIM,
            [settings.REACH_PROBE_INTERVAL_S, settings.REACH_PROBE_OUT_INTERVAL_S, settings.REACH_PROBE_SHARD_NODES],
        )
        return [node_pk for (node_pk,) in cursor.fetchall()]


def is_full(shard: Sequence[int]) -> bool:
    """Whether a shard is as large as one may be: then more may be due."""
    return len(shard) >= settings.REACH_PROBE_SHARD_NODES


def adopt_unprobed() -> None:
    """Give a turn to nodes that have none: an older release, still running during an upgrade, makes such."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO registry_nodeprobe (node_id, due_at, failures, recent_ms)"
            " SELECT id, now(), 0, '{}' FROM registry_node n WHERE deleted_at IS NULL"
            " AND NOT EXISTS (SELECT FROM registry_nodeprobe p WHERE p.node_id = n.id) ON CONFLICT DO NOTHING"
        )


def probe_nodes(nodes: NodeQuerySet) -> list[Probed]:
    """Probe these nodes side by side and keep what was found."""
    targets = [
        Target(
            node_pk=node.pk,
            address=node.address,
            live_path=node.endpoints["live"],
            ready_path=node.endpoints["ready"],
            signing_secret=decrypt(node.service.signing_secret),
        )
        for node in nodes.select_related("service")
    ]
    give_back()  # or as many operators at hanging nodes as the pool has sessions would keep all others waiting
    found = probe(targets, timeout_s=settings.REACH_PROBE_TIMEOUT_S, allowed=allowed_addresses())
    return record(found)


def probe_now(nodes: NodeQuerySet, *, by: str) -> list[Probed]:
    """`probe_nodes` because an operator asks for it: each leaves an audit row."""
    names = {node.pk: str(node) for node in nodes}
    found = probe_nodes(nodes)
    for probed in found:
        standing = probed.standing
        reason = probed.evidence.trouble
        audit(by, "probe", names[probed.evidence.node_pk], status=standing.health.value, reason=reason)
    return found


def record(found: Sequence[Evidence]) -> list[Probed]:
    """Keep what probes found, in one transaction with at most one move of the snapshot.

    What speaks of an address since left is shown, and changes nothing; so does a silence that was the reach's own.
    """
    by_node = {evidence.node_pk: evidence for evidence in found}
    probed: list[Probed] = []
    with transaction.atomic():
        now = clock.now()
        nodes = (
            Node.objects.present().select_for_update(of=("self",), no_key=True).select_related("lease").order_by("pk")
        )
        rows = {node.pk: node for node in nodes.filter(pk__in=by_node)}
        known = {one.node_pk: one for one in last_probes(by_node)}
        kept: list[Probed] = []
        moved: list[int] = []
        for evidence in found:
            node = rows.get(evidence.node_pk)
            if node is None:
                continue
            last = known.get(node.pk, NO_PROBE)
            before = Standing(Health(node.health), node.health_reason, last.failures)
            if node.address != evidence.address or evidence.inconclusive:
                probed.append(Probed(evidence, before))
                continue
            if evidence.trouble and last.failures and evidence.checked_at < last.ended_at:
                kept.append(Probed(evidence, before))  # two that ran at once have seen the same accident
                continue
            after = standing_after(before, evidence.trouble, failures_out=settings.REACH_PROBE_FAILURES_OUT)
            if (before.health, before.reason) != (after.health, after.reason):
                if before.health != after.health:
                    moved.append(node.pk)
                seen = node.status
                set_health(node, after.health, after.reason, now)
                node.save(update_fields=["health", "health_reason", "health_since"])
                if node.status != seen:  # not so where it is disabled, draining or expired
                    remember(node, now, expired=node.lease.expired, evidence=evidence.document())
            kept.append(Probed(evidence, after))
        store(kept)
        version = changes.bump(moved) if moved else None
    return [Probed(one.evidence, one.standing, version) for one in [*kept, *probed]]


@dataclass(frozen=True, slots=True)
class LastProbe:
    """When the last probe of a node was over, and how many in a row had failed by then."""

    node_pk: int
    failures: int
    ended_at: datetime


NO_PROBE = LastProbe(0, 0, datetime.min.replace(tzinfo=UTC))


def last_probes(node_pks: Iterable[int]) -> Iterator[LastProbe]:
    asked = NodeProbe.objects.filter(pk__in=list(node_pks), checked_at__isnull=False)
    took = ("evidence__ready__duration_ms", "evidence__live__duration_ms")
    for node_pk, failures, checked_at, ready_ms, live_ms in asked.values_list("pk", "failures", "checked_at", *took):
        yield LastProbe(node_pk, failures, checked_at + timedelta(milliseconds=ready_ms or live_ms or 0))


STORE = f"""
INSERT INTO registry_nodeprobe AS p (node_id, checked_at, due_at, failures, evidence, recent_ms)
SELECT node_id, checked_at, clock_timestamp() + make_interval(secs => next_s), failures, evidence, ARRAY[took_ms]
FROM json_to_recordset(%s) AS found(
    node_id bigint, checked_at timestamptz, next_s float, failures int, evidence jsonb, took_ms float)
ORDER BY node_id
ON CONFLICT (node_id) DO UPDATE SET checked_at = EXCLUDED.checked_at, failures = EXCLUDED.failures,
    evidence = EXCLUDED.evidence, due_at = least(p.due_at, EXCLUDED.due_at),
    recent_ms = (EXCLUDED.recent_ms || p.recent_ms)[1:{RECENT_PROBES}]
"""


def store(found: Iterable[Probed]) -> None:
    """Write the evidence of these probes. A turn that has been set for earlier stays."""
    rows = [
        {
            "node_id": one.evidence.node_pk,
            "checked_at": one.evidence.checked_at.isoformat(),
            "next_s": next_probe_s(
                one.standing,
                interval_s=settings.REACH_PROBE_INTERVAL_S,
                out_interval_s=settings.REACH_PROBE_OUT_INTERVAL_S,
                chance=random.random(),
            ),
            "failures": one.standing.failures,
            "evidence": one.evidence.document(),
            "took_ms": None if one.evidence.trouble else one.evidence.judge.duration_ms,
        }
        for one in found
    ]
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(STORE, [json.dumps(rows)])


# --- Suspicion -------------------------------------------------------------------------------------------------------

SUSPECT = """
WITH meant AS (
    SELECT n.id, said.reason FROM registry_node n
        JOIN unnest(%s::text[], %s::text[], %s::text[]) AS said(service_id, node_id, reason) USING (service_id, node_id)
    WHERE n.deleted_at IS NULL AND n.health = 'ready' ORDER BY n.id FOR NO KEY UPDATE OF n
), doubted AS (
    UPDATE registry_node n SET health = 'suspect', health_reason = meant.reason, health_since = clock_timestamp()
    FROM meant WHERE n.id = meant.id RETURNING n.id, n.admin_state, meant.reason
), due AS (
    UPDATE registry_nodeprobe SET due_at = clock_timestamp() WHERE node_id IN (SELECT id FROM doubted)
), noted AS (
    INSERT INTO registry_statuschange (node_id, at, status, reason)
    SELECT id, clock_timestamp(), 'suspect', reason FROM doubted WHERE admin_state = 'enabled'
), moved AS (
    UPDATE registry_snapshotversion SET version = version + 1 WHERE EXISTS (SELECT FROM doubted) RETURNING version
), told AS (
    INSERT INTO registry_snapshotchange (version, nodes, parts)
    SELECT version, ARRAY(SELECT id FROM doubted), '{}' FROM moved
    ON CONFLICT (version) DO UPDATE SET nodes = EXCLUDED.nodes, parts = EXCLUDED.parts
)
SELECT pg_notify('reach_snapshot', version::text) FROM moved
"""
"""What is said of ready nodes to which a connection failed: their services, their names, the reasons.

One statement, for a connection apart from the ORM. The nodes are due at once, and the snapshot's move tells the
workers: one move, however many nodes a lost host has had.
"""


EJECT = """
WITH meant AS (
    SELECT n.id, n.ejected_until, said.until_s, said.attempts, said.errors FROM registry_node n
        JOIN unnest(%s::text[], %s::text[], %s::float8[], %s::int[], %s::int[])
            AS said(service_id, node_id, until_s, attempts, errors) USING (service_id, node_id)
    WHERE n.deleted_at IS NULL ORDER BY n.id FOR NO KEY UPDATE OF n
), ejected AS (
    UPDATE registry_node n SET ejected_until = to_timestamp(meant.until_s),
        ejected_since = CASE WHEN meant.ejected_until IS NULL THEN clock_timestamp() ELSE n.ejected_since END,
        ejected_reason = CASE WHEN meant.attempts > 1
            THEN format('its breaker is open: %%s of %%s attempts failed', meant.errors, meant.attempts)
            ELSE 'its breaker is open: another try has failed' END
    FROM meant WHERE n.id = meant.id RETURNING n.id, n.health, n.admin_state, n.ejected_reason, meant.ejected_until
)
INSERT INTO registry_statuschange (node_id, at, status, reason)
SELECT id, clock_timestamp(), 'ejected', ejected_reason FROM ejected
WHERE ejected_until IS NULL AND admin_state = 'enabled' AND health IN ('ready', 'suspect')
"""
"""What is said of nodes whose breakers have opened: their services, their names, until when (epoch s), the attempts
and the errors among them. Breakers are the dispatchers' to share, so this moves no snapshot: it is for who looks."""

READMIT = """
WITH meant AS (
    SELECT n.id FROM registry_node n JOIN unnest(%s::text[], %s::text[]) AS said(service_id, node_id)
        USING (service_id, node_id)
    WHERE n.deleted_at IS NULL AND n.ejected_until IS NOT NULL ORDER BY n.id FOR NO KEY UPDATE OF n
), readmitted AS (
    UPDATE registry_node n SET ejected_until = NULL, ejected_since = NULL, ejected_reason = NULL
    FROM meant WHERE n.id = meant.id RETURNING n.id, n.health, n.health_reason, n.admin_state
)
INSERT INTO registry_statuschange (node_id, at, status, reason)
SELECT id, clock_timestamp(), health, CASE WHEN health = 'ready' THEN '' ELSE health_reason END FROM readmitted
WHERE admin_state = 'enabled' AND health IN ('ready', 'suspect')
"""
"""The same nodes' services and names when their breakers have closed."""


def suspect(doubts: Sequence[tuple[str, str, str]]) -> None:
    """`SUSPECT` from a worker: the service, name and reason of each node."""
    if doubts:
        with connection.cursor() as cursor:
            cursor.execute(SUSPECT, [list(column) for column in zip(*doubts, strict=True)])


def forget_old_changes(before: datetime, *, batch: int = 5000) -> int:
    """Drop status changes older than `before`, at most `batch`; how many. The newest of a node stays, however old."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM registry_statuschange WHERE id IN ("
            " SELECT old.id FROM registry_statuschange old WHERE old.at < %s AND EXISTS ("
            "  SELECT FROM registry_statuschange newer WHERE newer.node_id = old.node_id AND newer.id > old.id)"
            " ORDER BY old.at LIMIT %s)",
            [before, batch],
        )
        return cursor.rowcount
