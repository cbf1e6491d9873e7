"""`python -m tests.bed`: the whole set of processes in a temporary folder, to be harmed by hand. Ctrl-C ends it."""

import argparse
import signal
import tempfile
from pathlib import Path

from tests.bed.topology import Topology


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bed", description=__doc__)
    parser.add_argument("--dispatchers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="reach-bed-") as folder:
        reach = Topology(Path(folder) / "reach", dispatchers=asked.dispatchers, workers=asked.workers)
        try:
            print(f"Starting, with logs in {folder} …", flush=True)
            print(told(reach.start()), flush=True)
            signal.pause()
        except KeyboardInterrupt:
            print("Stopping …", flush=True)
        finally:
            reach.remove()


def told(reach: Topology) -> str:
    """Who listens where, with which pid, and what lets you in."""
    assert reach.postgresql is not None
    known = reach.credentials
    lines = [
        *((server.name, server.pid, server.url) for server in reach.servers),
        *((process.name, process.pid, "") for process in (*reach.workers, reach.beat)),
        ("postgresql", reach.postgresql.pid, reach.postgresql.url),
        ("redis", reach.redis.pid, reach.redis.url),
    ]
    table = [f"  {name:20} pid {pid:<8} {url}" for name, pid, url in lines]
    return "\n".join(
        [
            *table,
            f"  admin         {reach.console.url}/admin/  user {known['admin_username']}"
            f"  password {known['admin_password']}",
            f"  operator key  {known['operator_key']}",
            "  Stop with Ctrl-C.",
        ]
    )


if __name__ == "__main__":
    main()
