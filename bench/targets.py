"""The targets of a load, started and answering: the node itself, its peers, Agent-Reach and its BASE before it."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import node
from bench import plan as bench_plan
from bench.base import checked_out
from bench.database import Database, describe
from bench.peers import HOST, Peer, start_celery, start_forwarder, start_nginx, start_redis
from bench.plan import BASE, PAYLOADS, RELAXED, STRICT, Leg, filler
from bench.processes import CHECKOUT, Meter, Started, free_port, inherited_environment, running, wait_until_answers
from bench.report import NODE, POSTGRES, REDIS, SERVER, SMALL, WORKER
from reach_project import embedded

START_S = 90  # the first start of a home makes a database cluster
FIRST_ANSWER_S = 20  # a new node is probed first, a new key made known


def body_of(size: int) -> bytes:
    """A call of about so many bytes."""
    payload = {"file_path": "/data/report.pdf", "content_type": "report", "text": ""}
    empty = json.dumps({"capability": node.CAPABILITY, "payload": payload})
    text = filler(max(0, size - len(empty)))
    return json.dumps({"capability": node.CAPABILITY, "payload": payload | {"text": text}}).encode()


BODIES = {name: body_of(size) for name, size in PAYLOADS.items()}
BODY = BODIES[SMALL]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes, who answers it, and what tells the use that each part behind it has made so far."""

    name: str
    processes: int
    started: Sequence[Started]
    urls: Sequence[str]
    key: str
    meters: Mapping[str, Meter]


@dataclass(frozen=True, slots=True)
class Instance:
    """Agent-Reach, running on a home of its own, from the `code` in that folder."""

    name: str
    process: Started
    url: str
    operator_key: str
    database: Database
    redis: Started
    redis_url: str
    code: Path


@dataclass(frozen=True, slots=True)
class Rig:
    """All that runs for one benchmark."""

    targets: Mapping[tuple[str, int], Target]
    """By name and number of processes."""
    node: Started
    node_url: str
    instances: Mapping[str, Instance]

    def invoked(self) -> int:
        """How often the node was asked to work so far, by whomever."""
        return request_json(f"{self.node_url}/invoked")["invoked"]

    @property
    def databases(self) -> dict[str, Database]:
        """Instance → where it stores its calls."""
        return {name: instance.database for name, instance in self.instances.items()}


def start_rig(stack: ExitStack, folder: Path, legs: Iterable[Leg], base: str = "") -> Rig:
    """Start what these legs need; the stack ends it. Raises NotStarted with the reason and the log.

    `base` is the commit of the target BASE. Every instance has a home and a PostgreSQL of its own; strict and relaxed
    dispatchers share one. The node is one for all.
    """
    wanted = sorted({(name, leg.processes) for leg in legs for name in leg.targets})
    names = {name for name, _processes in wanted}
    instances = {}
    if names & {STRICT, RELAXED}:
        instances[STRICT] = start_instance(stack, STRICT, folder / STRICT, CHECKOUT)
    if BASE in names:
        code = checked_out(stack, base, folder / "checkout")
        instances[BASE] = start_instance(stack, BASE, folder / BASE, code)
    behind, node_url = start_node(stack, folder, list(instances.values()))
    keys = {name: caller_key(instance) for name, instance in instances.items()}
    targets = {}
    for name, processes in wanted:
        key = ""
        match name:
            case bench_plan.DIRECT:
                peer: Peer = [behind], [f"{node_url}/reach/invoke"], {}
            case bench_plan.NGINX:
                peer = start_nginx(stack, folder, urlsplit(node_url).netloc, processes)
            case bench_plan.FORWARDER:
                peer = start_forwarder(stack, folder, f"{node_url}/reach/invoke", processes)
            case bench_plan.CELERY:
                peer = start_celery(stack, folder, f"{node_url}/reach/invoke", processes)
            case _:
                home = STRICT if name == RELAXED else name
                key = keys[home]
                peer = start_dispatchers(stack, name, folder, instances[home], processes)
        started, urls, meters = peer
        target = Target(name, processes, started, urls, key, {**meters, NODE: Meter((behind.pid,))})
        for url in urls:
            wait_for_first_answer(target, url)
        targets[name, processes] = target
    return Rig(targets, behind, node_url, instances)


def start_instance(stack: ExitStack, name: str, home: Path, code: Path) -> Instance:
    """`manage.py reach_serve` as it comes, with the embedded PostgreSQL that it starts itself.

    It has worker and beat; the load goes to dispatchers of their own on the same database, as in production.
    """
    home.mkdir()
    stack.callback(discard_database, home)
    process, url = start_reach(stack, name, home, code)
    credentials = json.loads((home / "credentials.json").read_text())
    redis, redis_url = start_redis(stack, home)
    return Instance(name, process, url, credentials["operator_key"], describe(home), redis, redis_url, code)


def start_dispatchers(stack: ExitStack, name: str, folder: Path, instance: Instance, processes: int) -> Peer:
    """Dispatcher processes beside the instance."""
    found = embedded.database_settings(instance.database.home)
    database = f"postgresql://{found['USER']}@/{found['NAME']}?host={found['HOST']}&port={found['PORT']}"
    environment = {"DATABASE_URL": database, "REDIS_URL": instance.redis_url, "REACH_ROLE": "dispatcher"}
    if name == RELAXED:
        environment["REACH_DURABILITY"] = "relaxed"
    started, urls = [], []
    for number in range(1, processes + 1):
        home = folder / f"{name}-dispatcher-{processes}-{number}"
        home.mkdir()
        process, url = start_reach(stack, home.name, home, instance.code, **environment)
        started.append(process)
        urls.append(f"{url}/api/v1/dispatch")
    meters = {
        SERVER: Meter(tuple(process.pid for process in started)),
        WORKER: Meter((instance.process.pid,)),
        POSTGRES: Meter((instance.database.postmaster_pid,), children_too=True),
        REDIS: Meter((instance.redis.pid,)),
    }
    return started, urls, meters


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


def caller_key(instance: Instance) -> str:
    """A key as a calling agent has it: it may dispatch; and read metrics, as the measuring must."""
    wanted = json.dumps({"service_id": "bench-caller", "scopes": ["dispatch", "observe"]}).encode()
    try:
        return request_json(f"{instance.url}/api/v1/keys", body=wanted, key=instance.operator_key)["key"]
    except urllib.error.HTTPError as refused:
        text = refused.read().decode(errors="replace")
        raise instance.process.failure(f"gave no caller key: {refused.code} {text}") from refused


def wait_for_first_answer(target: Target, url: str) -> None:
    """Return once the node's own output has come through the target. Raises NotStarted when it does not come."""
    until = time.monotonic() + FIRST_ANSWER_S
    while True:
        try:
            answer = request_json(url, body=BODY, key=target.key)
            if answer.get("output") == node.OUTPUT:
                return
            last = f"200 {json.dumps(answer)}"
        except urllib.error.HTTPError as refused:
            last = f"{refused.code} {refused.read().decode(errors='replace')}"
        except (OSError, ValueError) as exc:
            last = str(exc)
        dead = next((process for process in target.started if not process.alive), None)
        if dead is not None or time.monotonic() > until:
            failed = dead or target.started[0]
            raise failed.failure(f"did not bring the node's answer within {FIRST_ANSWER_S} s (last: {last})")
        time.sleep(0.1)


def request_json(url: str, *, body: bytes | None = None, key: str = "") -> Any:
    """GET, or POST where there is a body. Raises urllib's HTTPError for anything but 2xx."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
        return json.load(answer)
