"""The targets of a load, started and answering: the node itself; the forwarder, Agent-Reach and its BASE before it."""

import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import node
from bench.base import checked_out
from bench.database import Database, describe
from bench.processes import (
    CHECKOUT,
    NotStarted,
    Started,
    cpu_s,
    free_port,
    inherited_environment,
    running,
    tree_cpu_s,
    wait_until_answers,
)
from bench.report import NODE, POSTGRES, SERVER, WORKER
from reach_project import embedded

DIRECT, FORWARDER, AGENT_REACH = TARGETS = ("direct", "forwarder", "agent-reach")
BASE = "base"
"""Agent-Reach again, as it was at another commit."""
HOST = "127.0.0.1"
PAYLOAD = {"file_path": "/data/report.pdf", "content_type": "report"}
BODY = json.dumps({"capability": node.CAPABILITY, "payload": PAYLOAD}).encode()
START_S = 90  # the first start of a home makes a database cluster
FIRST_ANSWER_S = 20  # a new node is probed first, a new key made known


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes, and what tells the CPU seconds that each process behind it has used so far."""

    name: str
    process: Started
    url: str
    key: str
    meters: Mapping[str, Callable[[], float]]


@dataclass(frozen=True, slots=True)
class Rig:
    """All that runs for one benchmark."""

    targets: list[Target]
    node_url: str
    databases: dict[str, Database]
    """Target → where it stores its calls."""

    def invoked(self) -> int:
        """How often the node was asked to work so far, by whomever."""
        return request_json(f"{self.node_url}/invoked")["invoked"]


def start_rig(stack: ExitStack, folder: Path, names: Sequence[str], base: str = "") -> Rig:
    """Start what the named targets need; the stack ends it. Raises NotStarted with the reason and the log.

    `base` is the commit of the target BASE. Every instance has a home and a PostgreSQL of its own; the node is one.
    """
    code = {AGENT_REACH: CHECKOUT, BASE: checked_out(stack, base, folder / "checkout") if BASE in names else CHECKOUT}
    instances = {
        name: start_instance(stack, name, folder / name, code[name]) for name in (AGENT_REACH, BASE) if name in names
    }
    behind, node_url = start_node(stack, folder, list(instances.values()))
    node_meter = {NODE: partial(cpu_s, behind.pid)}
    targets = [Target(DIRECT, behind, f"{node_url}/reach/invoke", "", node_meter)]
    if FORWARDER in names:
        forwarder, url = start_forwarder(stack, folder, node_url)
        targets.append(Target(FORWARDER, forwarder, url, "", {SERVER: partial(cpu_s, forwarder.pid), **node_meter}))
    for name, instance in instances.items():
        dispatcher, url = start_dispatcher(stack, f"{name}-dispatcher", folder, instance)
        meters = {
            SERVER: partial(cpu_s, dispatcher.pid),
            WORKER: partial(cpu_s, instance.process.pid),
            POSTGRES: partial(tree_cpu_s, instance.database.postmaster_pid),
            **node_meter,
        }
        targets.append(Target(name, dispatcher, f"{url}/api/v1/dispatch", caller_key(instance), meters))
    for target in targets:
        wait_for_first_answer(target)
    wanted = [target for target in targets if target.name in names]
    return Rig(wanted, node_url, {name: instance.database for name, instance in instances.items()})


@dataclass(frozen=True, slots=True)
class Instance:
    """Agent-Reach, running on a home of its own, from the `code` in that folder."""

    process: Started
    url: str
    operator_key: str
    database: Database
    code: Path


def start_instance(stack: ExitStack, name: str, home: Path, code: Path) -> Instance:
    """`manage.py reach_serve` as it comes, with the embedded PostgreSQL that it starts itself.

    It has worker and beat; the load goes to a dispatcher of its own on the same database, as in production.
    """
    home.mkdir()
    stack.callback(discard_database, home)
    process, url = start_reach(stack, name, home, code)
    credentials = json.loads((home / "credentials.json").read_text())
    return Instance(process, url, credentials["operator_key"], describe(home), code)


def start_dispatcher(stack: ExitStack, name: str, folder: Path, instance: Instance) -> tuple[Started, str]:
    """One dispatcher process beside the instance, and its URL."""
    home = folder / name
    home.mkdir()
    found = embedded.database_settings(instance.database.home)
    database = f"postgresql://{found['USER']}@/{found['NAME']}?host={found['HOST']}&port={found['PORT']}"
    redis = start_redis(stack, home)
    environment = {"DATABASE_URL": database, "REDIS_URL": redis, "REACH_ROLE": "dispatcher"}
    return start_reach(stack, name, home, instance.code, **environment)


def start_redis(stack: ExitStack, home: Path) -> str:
    """The broker that a dispatcher must be able to reach, kept in memory; its URL. Raises NotStarted without one."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise NotStarted("the dispatcher needs a broker: install redis-server (or valkey-server)")
    port = free_port()
    command = [program, "--bind", HOST, "--port", str(port), "--save", "", "--dir", str(home)]
    stack.enter_context(
        running("redis", command, environment=inherited_environment(), log=home / "bench-redis.log")
    )  # readiness of the dispatcher waits for it
    return f"redis://{HOST}:{port}/0"


def start_reach(stack: ExitStack, name: str, home: Path, code: Path, **environment: str) -> tuple[Started, str]:
    """A process of Agent-Reach on a free port, ready; and its URL."""
    port = free_port()
    url = f"http://{HOST}:{port}"
    process = stack.enter_context(
        running(
            name,
            [sys.executable, "manage.py", "reach_serve"],
            environment=inherited_environment(
                REACH_HOME=str(home), REACH_HOST=HOST, REACH_PORT=str(port), **environment
            ),
            log=home / f"bench-{name}.log",
            code=code,
        )
    )
    wait_until_answers(process, f"{url}/readyz", timeout_s=START_S)
    return process, url


def discard_database(home: Path) -> None:
    """Delete what an instance stored; where it was killed, its PostgreSQL still runs and is stopped first."""
    if embedded.is_running(home):
        embedded.start(home)  # joins it, so that the next line makes us the last to leave
        embedded.stop(home)
    embedded.remove(home)


def start_node(stack: ExitStack, folder: Path, instances: Sequence[Instance]) -> tuple[Started, str]:
    """The node, which registers itself at every instance; and its address."""
    port = free_port()
    url = f"http://{HOST}:{port}"
    process = stack.enter_context(
        running(
            "node",
            [sys.executable, "-m", "bench.node", str(port), *(each.url for each in instances)],
            environment=inherited_environment(BENCH_KEY=" ".join(each.operator_key for each in instances)),
            log=folder / "bench-node.log",
        )
    )
    wait_until_answers(process, f"{url}/reach/live", timeout_s=START_S)
    return process, url


def start_forwarder(stack: ExitStack, folder: Path, node_url: str) -> tuple[Started, str]:
    """The forwarder, by the same server with the same settings as an instance; and its URL."""
    port = free_port()
    server = [sys.executable, "-m", "uvicorn", "--host", HOST, "--port", str(port), "--loop", "uvloop"]
    server += [
        "--http",
        "httptools",
        "--no-access-log",
        "--no-server-header",
        "--no-proxy-headers",
        "--log-level",
        "warning",
    ]
    process = stack.enter_context(
        running(
            "forwarder",
            [*server, "bench.forwarder.asgi:application"],
            environment=inherited_environment(BENCH_NODE_URL=f"{node_url}/reach/invoke"),
            log=folder / "bench-forwarder.log",
        )
    )
    return process, f"http://{HOST}:{port}/forward"


def caller_key(instance: Instance) -> str:
    """A key as a calling agent has it: it may dispatch, no more."""
    wanted = json.dumps({"service_id": "bench-caller", "scopes": ["dispatch"]}).encode()
    try:
        return request_json(f"{instance.url}/api/v1/keys", body=wanted, key=instance.operator_key)["key"]
    except urllib.error.HTTPError as refused:
        text = refused.read().decode(errors="replace")
        raise instance.process.failure(f"gave no caller key: {refused.code} {text}") from refused


def wait_for_first_answer(target: Target) -> None:
    """Return once the node's own output has come through the target. Raises NotStarted when it does not come."""
    until = time.monotonic() + FIRST_ANSWER_S
    while True:
        try:
            answer = request_json(target.url, body=BODY, key=target.key)
            if answer.get("output") == node.OUTPUT:
                return
            last = f"200 {json.dumps(answer)}"
        except urllib.error.HTTPError as refused:
            last = f"{refused.code} {refused.read().decode(errors='replace')}"
        except (OSError, ValueError) as exc:
            last = str(exc)
        if not target.process.alive or time.monotonic() > until:
            raise target.process.failure(f"did not bring the node's answer within {FIRST_ANSWER_S} s (last: {last})")
        time.sleep(0.1)


def request_json(url: str, *, body: bytes | None = None, key: str = "") -> Any:
    """GET, or POST where there is a body. Raises urllib's HTTPError for anything but 2xx."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
        return json.load(answer)
