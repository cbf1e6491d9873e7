"""What large tables cost: 1,000 routes and 2,000 services of five nodes, beside 10 routes and 10 nodes.

    .venv/bin/python -m bench.scale_tables --rounds 5

Two installations run side by side, each with one dispatcher, a PostgreSQL and a Redis; their tables are written
straight into the database, and nobody probes the nodes, which are all one process. Calls are measured in interleaved
rounds, in the large tables twice: for a capability that fifty nodes have, and for one that all of them have.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.load import offer_load
from bench.machine import machine
from bench.processes import (
    CHECKOUT,
    Meter,
    cpu_s,
    free_port,
    inherited_environment,
    open_as_many_as_allowed,
    running,
    wait_until_answers,
)
from tests.bed.topology import Topology

FILL = """
INSERT INTO registry_service (service_id, signing_secret, created_at)
SELECT 'svc-' || s, %(secret)s, now() FROM generate_series(0, %(services)s - 1) s;
INSERT INTO registry_capability (name, first_declared_at)
SELECT 'cap_' || c, now() FROM generate_series(0, %(capabilities)s - 1) c UNION SELECT 'bench_wide', now();
INSERT INTO registry_node (service_id, node_id, address, declared_weight, admin_state, admin_state_since, tags, version,
    protocol, endpoints, heartbeat_interval_s, lease_ttl_s, metadata, requires, declaration_hash, health, health_reason,
    health_since, registered_at)
SELECT 'svc-' || s, 'n' || n, %(address)s, 100, 'enabled', now(), '{eu}', '1.2.0', 'reach-http',
    '{"invoke": "/reach/invoke", "live": "/reach/live", "ready": "/reach/ready"}', 15, 3600, '{}', '{}', 'h', 'ready',
    '', now(), now()
FROM generate_series(0, %(services)s - 1) s, generate_series(1, 5) n;
INSERT INTO registry_nodelease (node_id, last_heartbeat_at, lease_expires_at, expired)
SELECT id, now(), now() + interval '1 day', false FROM registry_node;
INSERT INTO registry_nodeprobe (node_id, due_at, failures, recent_ms)
SELECT id, now() + interval '1 day', 0, '{}' FROM registry_node;
INSERT INTO registry_declaration (node_id, capability_id, version, description, input_schema, output_schema, cost_level,
    timeout_tier, idempotent, tags, allow_callers, examples)
SELECT n.id, d.capability, '1', 'Does what ' || d.capability || ' says', %(input)s::jsonb, %(output)s::jsonb, 'medium',
    'medium', true, '{text}', '{}', '[]'
FROM registry_node n, LATERAL (VALUES
    ('bench_wide'), ('cap_' || split_part(n.service_id, '-', 2)::int %% %(capabilities)s)) AS d(capability);
INSERT INTO routing_tablerevision (number, fallback_rules, published_at, note) VALUES (1, '[]', now(), 'bench');
INSERT INTO routing_route (revision_id, route_id, position, document)
SELECT 1, 'route-' || r, r, jsonb_build_object('id', 'route-' || r, 'priority', r %% 7,
    'match', jsonb_build_object('capability', 'cap_' || (r / 5) %% %(capabilities)s)
        || CASE WHEN r %% 5 = 4 THEN '{}' ELSE jsonb_build_object('input.content_type', 'other-' || r) END,
    'strategy', jsonb_build_object('type', 'least_loaded'))
FROM generate_series(0, %(routes)s - 1) r;
"""
SCHEMA_IN = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "content_type": {"type": "string", "maxLength": 20}},
    "required": ["content_type"],
}
SCHEMA_OUT = {"type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]}
BEAT_S = 3


@dataclass(frozen=True, slots=True)
class Size:
    """How large a table is; every service has five nodes."""

    name: str
    services: int
    routes: int
    capabilities: int


SMALL = Size("small", 2, 10, 2)
LARGE = Size("large", 2000, 1000, 200)


def installed(stack: ExitStack, folder: Path, size: Size) -> Topology:
    """A running reach with tables of that size. Nobody probes or sweeps: beat and worker are ended."""
    reach = Topology(folder / size.name, dispatchers=1, workers=1)
    stack.callback(reach.remove)
    reach.start()
    for process in (reach.beat, reach.workers[0]):
        process.stop()
    return reach


def filled(reach: Topology, size: Size, address: str) -> None:
    """Write the tables, and let the dispatcher know."""
    reach.manage("shell", "-c", SECRET)
    facts = {
        "services": size.services,
        "routes": size.routes,
        "capabilities": size.capabilities,
        "address": address,
        "input": json.dumps(SCHEMA_IN),
        "output": json.dumps(SCHEMA_OUT),
    }
    with psycopg.connect(reach.environment["DATABASE_URL"]) as session:
        row = session.execute(
            "SELECT signing_secret FROM registry_service WHERE service_id = 'bench-secret'"
        ).fetchone()
        assert row is not None
        for statement in FILL.split(";\n"):
            if statement.strip():
                session.execute(statement, {**facts, "secret": row[0]})
        session.execute("UPDATE registry_snapshotversion SET version = version + 1")
        session.execute("SELECT pg_notify('reach_snapshot', '')")
    with psycopg.connect(reach.environment["DATABASE_URL"], autocommit=True) as session:
        session.execute("VACUUM ANALYZE")


SECRET = "from registry.services import ensure_service; ensure_service('bench-secret')"


def snapshot_figures(reach: Topology) -> dict[str, float]:
    environment = os.environ | reach.dispatchers[0].env
    done = subprocess.run(
        [sys.executable, "-m", "bench.snapshot_cost"],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def body_of(capability: str) -> bytes:
    payload = {"file_path": "/data/report.pdf", "content_type": "report"}
    return json.dumps({"capability": capability, "payload": payload}).encode()


def cpu_per_call_us(reach: Topology, key: str, capability: str, options: argparse.Namespace) -> float:
    before = cpu_s(reach.dispatchers[0].pid)
    load = offer_load(
        [f"{reach.url}/api/v1/dispatch"],
        body_of(capability),
        key=key,
        concurrency=options.concurrency,
        seconds=options.seconds,
    )
    if load.refused or load.broken:
        raise SystemExit(f"bench.scale_tables: {load.refused} calls were refused, {load.broken} broken")
    return (cpu_s(reach.dispatchers[0].pid) - before) / load.answers * 1e6


def heartbeat_figures(reach: Topology, seconds: int) -> dict[str, float]:
    """CPU per heartbeat of the dispatcher and of PostgreSQL (µs), offered by four nodes that never rest."""
    assert reach.postgresql is not None
    dispatcher, database = Meter((reach.dispatchers[0].pid,)), Meter((reach.postgresql.pid,), children_too=True)
    before = dispatcher.cpu_s(), database.cpu_s()
    url = f"{reach.url}/api/v1/services/svc-1/nodes/n1/heartbeat"
    key = key_of(reach, "svc-1", "register")
    load = offer_load([url], b'{"in_flight": 3}', key=key, concurrency=4, seconds=seconds)
    if load.refused or load.broken:
        raise SystemExit(f"bench.scale_tables: {load.refused} heartbeats were refused, {load.broken} broken")
    used = dispatcher.cpu_s() - before[0], database.cpu_s() - before[1]
    return {
        "dispatcher_us": used[0] / load.answers * 1e6,
        "postgresql_us": used[1] / load.answers * 1e6,
        "per_s": load.answers / load.seconds,
    }


def key_of(reach: Topology, service_id: str, scope: str) -> str:
    wanted = {"service_id": service_id, "scopes": [scope]}
    return reach.request("POST", "/api/v1/keys", wanted, key=reach.key).json["key"]


def compare(cases: Sequence[tuple[str, Topology, str, str]], options: argparse.Namespace) -> dict[str, float]:
    """Median µs of dispatcher CPU per call of each case, over interleaved rounds."""
    found: dict[str, list[float]] = {name: [] for name, *_rest in cases}
    for _name, reach, key, capability in cases:
        cpu_per_call_us(reach, key, capability, options)  # warm
    for turn in range(options.rounds):
        for name, reach, key, capability in (*cases[turn % len(cases) :], *cases[: turn % len(cases)]):
            found[name].append(cpu_per_call_us(reach, key, capability, options))
        print(f"round {turn + 1}: { ({name: round(values[-1]) for name, values in found.items()}) }", file=sys.stderr)
    return {name: statistics.median(values) for name, values in found.items()}


def bench(options: argparse.Namespace, stack: ExitStack, folder: Path) -> bool:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "bench.node", str(port)]
    node = stack.enter_context(running("node", command, environment=inherited_environment(), log=folder / "node.log"))
    wait_until_answers(node, f"{address}/reach/live", timeout_s=30)
    cases = []
    figures: dict[str, dict[str, float]] = {}
    held_mib: dict[str, float] = {}
    reaches: dict[str, Topology] = {}
    for size in (SMALL, LARGE):
        reach = reaches[size.name] = installed(stack, folder, size)
        filled(reach, size, address)
        key = key_of(reach, "bench-caller", "dispatch")
        time.sleep(5)  # its dispatcher has read them
        cases.append((size.name, reach, key, "cap_0"))
        if size is LARGE:
            cases.append(("large, all nodes", reach, key, "bench_wide"))
        held_mib[size.name] = Meter((reach.dispatchers[0].pid,)).uss_mib()
        figures[size.name] = snapshot_figures(reach)
    medians = compare(cases, options)
    beats = {name: heartbeat_figures(reach, BEAT_S) for name, reach in reaches.items()}
    found = {"snapshot": figures, "dispatcher_mib": held_mib, "call_us": medians, "heartbeat": beats}
    print(json.dumps(found, indent=2))
    goals = {
        "a call, large / small (≤ 1.15)": (medians["large"] / medians["small"], 1.15),
        "a call that all nodes can take / small (≤ 1.15)": (medians["large, all nodes"] / medians["small"], 1.15),
        "empty to 10,000 nodes (< 3 s)": (figures["large"]["first_load_wall_ms"] / 1e3, 3.0),
        "a heartbeat's CPU (< 1 ms)": (beats["large"]["dispatcher_us"] / 1e3, 1.0),
    }
    for what, (measured, bound) in goals.items():
        print(f"{'met   ' if measured <= bound else 'MISSED'}  {what}: {measured:.2f}")
    return all(measured <= bound for measured, bound in goals.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each load (3)")
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    open_as_many_as_allowed()
    for name, value in machine().items():
        print(f"{name + ':':<16}{value}")
    parent = "/var/tmp" if Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="reach-scale-", dir=parent) as name, ExitStack() as stack:
        return 0 if bench(options, stack, Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
