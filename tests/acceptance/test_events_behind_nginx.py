"""Event streams through `deploy/nginx.conf`, as it is but for names and ports: none is held back, none is lost."""

import re
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agent_reach import ReachClient
from django.conf import settings

from tests.acceptance.agents import NewAgent
from tests.acceptance.instance import wait_until
from tests.acceptance.test_events import Pair, at_work, waiting_at
from tests.bed.process import Process, free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


class Nginx(Process):
    """The configuration of production before two processes of this machine."""

    def __init__(self, folder: Path, behind: Pair):
        self.port, self.log = free_port(), folder / "nginx.log"
        text = (settings.BASE_DIR / "deploy" / "nginx.conf").read_text()
        for name, process in zip(("dispatcher-1", "dispatcher-2"), behind, strict=True):
            text = text.replace(f"{name}:8080", f"127.0.0.1:{process.port}")
        text = text.replace("listen 8080", f"listen 127.0.0.1:{self.port}").replace("/tmp/nginx", f"{folder}/nginx")
        text = re.sub(r"^ *resolver .*$", "", text, flags=re.MULTILINE).replace(" resolve;", ";")
        (folder / "nginx.conf").write_text(text)
        self.command = [str(NGINX), "-c", folder / "nginx.conf", "-p", folder, "-g", "daemon off;"]

    def is_ready(self) -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5).status == 200
        except OSError:
            return False


@pytest.fixture
def nginx(pair: Pair, tmp_path: Path) -> Iterator[Nginx]:
    tmp_path.chmod(0o755)  # its workers are somebody else, where this is root
    nginx = Nginx(tmp_path, pair)
    try:
        yield nginx.start()
    finally:
        nginx.remove()


def test_events_come_through_at_once_and_clients_outlive_the_process_behind(
    nginx: Nginx, pair: Pair, new_agent: NewAgent
) -> None:
    first, second = pair
    agent = new_agent(at=first)
    wait_until(lambda: agent.is_known_to(second), "the other process knows it too")

    def follow(call_id: str, seen: list[int]) -> None:
        with ReachClient(f"http://127.0.0.1:{nginx.port}", first.key) as client:
            for receipt in client.events(call_id):
                seen.append(receipt["seq"])

    clients: list[list[int]] = [[], [], [], []]
    with ThreadPoolExecutor(4) as people:
        with at_work(agent) as (call_id, _gate):
            following = [people.submit(follow, call_id, seen) for seen in clients]
            wait_until(lambda: all(seen == [1, 2, 3] for seen in clients), "none is held back until there are more", 10)
            wait_until(lambda: waiting_at(second, "events") > 0, "some are at the process that is killed")
            second.kill()
        for client in following:
            client.result(30)
    assert clients == [[1, 2, 3, 4]] * 4, "each receipt once, in order"
    second.start()
