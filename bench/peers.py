"""The contestants that are not Agent-Reach, started and answering."""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from bench.processes import (
    Meter,
    NotStarted,
    Started,
    free_port,
    inherited_environment,
    running,
    wait_until_answers,
)
from bench.report import REDIS, SERVER, WORKER

HOST = "127.0.0.1"
START_S = 30
WORKER_THREADS = 32
NGINX = shutil.which("nginx") or next((path for path in ("/usr/sbin/nginx",) if Path(path).exists()), None)
NGINX_CONF = """
worker_processes {processes};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 1m;
    keepalive_requests 1000000000;
    upstream node {{ server {node}; keepalive 512; keepalive_requests 1000000000; }}
    server {{
        listen {host}:{port} reuseport;
        location / {{ return 204; }}
        location = /forward {{
            proxy_pass http://node/reach/invoke;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""
Peer = tuple[list[Started], list[str], dict[str, Meter]]
"""Its processes, the URLs that share a load, and what it uses, part by part."""


def start_nginx(stack: ExitStack, folder: Path, node: str, processes: int) -> Peer:
    """nginx with so many workers as reverse proxy of `node` (host:port). Raises NotStarted without nginx."""
    if NGINX is None:
        raise NotStarted("no nginx here: install it, or leave it out by --targets")
    home = folder / f"nginx-{processes}"
    home.mkdir()
    home.chmod(0o755)  # as root its workers are somebody else
    port = free_port()
    conf = home / "nginx.conf"
    conf.write_text(NGINX_CONF.format(processes=processes, folder=home, node=node, host=HOST, port=port))
    command = [NGINX, "-p", str(home), "-c", str(conf)]
    log = home / "nginx.log"
    process = stack.enter_context(running("nginx", command, environment=inherited_environment(), log=log))
    wait_until_answers(process, f"http://{HOST}:{port}/", timeout_s=START_S)
    return [process], [f"http://{HOST}:{port}/forward"], {SERVER: Meter((process.pid,), children_too=True)}


def start_forwarder(stack: ExitStack, folder: Path, node_url: str, processes: int) -> Peer:
    """Forwarders, by the same server with the same settings as an instance."""
    started, urls = [], []
    for number in range(1, processes + 1):
        environment = inherited_environment(BENCH_NODE_URL=node_url)
        log = folder / f"bench-forwarder-{processes}-{number}.log"
        process, url = start_uvicorn(stack, "bench.forwarder.asgi:application", environment, log)
        started.append(process)
        urls.append(f"{url}/forward")
    return started, urls, {SERVER: Meter(tuple(process.pid for process in started))}


def start_celery(stack: ExitStack, folder: Path, node_url: str, processes: int) -> Peer:
    """So many producers and so many workers with a Redis between them."""
    home = folder / f"celery-{processes}"
    home.mkdir()
    redis, redis_url = start_redis(stack, home)
    environment = inherited_environment(BENCH_NODE_URL=node_url, BENCH_REDIS_URL=redis_url)
    workers, producers, urls = [], [], []
    for number in range(1, processes + 1):
        command = [sys.executable, "-m", "celery", "-A", "bench.round_trip.app", "worker", "--pool", "threads"]
        command += ["-c", str(WORKER_THREADS), "-n", f"bench{number}@localhost", "-Q", "bench", "-l", "ERROR"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        log = home / f"worker-{number}.log"
        workers.append(stack.enter_context(running("celery worker", command, environment=environment, log=log)))
        log = home / f"producer-{number}.log"
        producer, url = start_uvicorn(stack, "bench.round_trip.asgi:application", environment, log)
        producers.append(producer)
        urls.append(f"{url}/")
    meters = {
        SERVER: Meter(tuple(process.pid for process in producers)),
        WORKER: Meter(tuple(process.pid for process in workers), children_too=True),
        REDIS: Meter((redis.pid,)),
    }
    return [*producers, *workers], urls, meters


def start_uvicorn(stack: ExitStack, application: str, environment: dict[str, str], log: Path) -> tuple[Started, str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--host", HOST, "--port", str(port), "--loop", "uvloop"]
    command += ["--http", "httptools", "--no-access-log", "--no-server-header", "--no-proxy-headers"]
    command += ["--lifespan", "off", "--log-level", "warning", application]
    process = stack.enter_context(running(log.stem, command, environment=environment, log=log))
    return process, f"http://{HOST}:{port}"


def start_redis(stack: ExitStack, home: Path) -> tuple[Started, str]:
    """A broker kept in memory, and its URL. Raises NotStarted where there is none."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise NotStarted("a broker is needed: install redis-server (or valkey-server)")
    port = free_port()
    command = [program, "--bind", HOST, "--port", str(port), "--save", "", "--dir", str(home)]
    log = home / "bench-redis.log"
    process = stack.enter_context(running("redis", command, environment=inherited_environment(), log=log))
    return process, f"redis://{HOST}:{port}/0"
