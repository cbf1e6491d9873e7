"""What an operator does before agents can work: keys for them, two people, and a route table through review."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from demo.children import CHECKOUT

ROUTES = CHECKOUT / "demo" / "routes.yaml"
FRONT_DESK = "front-desk"
"""The service in whose name the traffic comes: a caller without nodes."""


@dataclass
class Keys:
    """Keys of services and people. Each is shown once, so the demo keeps them for its next start."""

    services: dict[str, str] = field(default_factory=dict)
    people: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Operator:
    """An operator at a running reach."""

    url: str
    key: str

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """One request; the JSON of the answer. Raises urllib.error.HTTPError."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def knows(self, key: str) -> bool:
        """Whether a key of an earlier start still counts here."""
        try:
            self.ask("GET", "capabilities", key=key)
        except urllib.error.HTTPError as refused:
            return refused.code != 401
        return True

    def keys(self, file: Path, services: set[str]) -> Keys:
        """The keys in `file`, completed where one is missing or not known any more."""
        keys = Keys(**json.loads(file.read_text())) if file.exists() else Keys()
        for service_id in sorted(services):
            if not self.knows(keys.services.get(service_id, "none")):
                scopes = ["dispatch"] if service_id == FRONT_DESK else ["register", "dispatch"]
                made = self.ask("POST", "keys", {"service_id": service_id, "scopes": scopes})
                keys.services[service_id] = made["key"]
        for name, group in {"demo-author": "operator", "demo-approver": "approver"}.items():
            if not self.knows(keys.people.get(name, "none")):
                keys.people[name] = new_person(name, group)
        file.touch(mode=0o600)
        file.write_text(json.dumps(asdict(keys), indent=2))
        return keys

    def publish_routes(self, author: str, approver: str) -> int:
        """See to it that the demo's routes are live, by the ordinary way; the revision that is live then."""
        live = self.ask("GET", "routes")
        wanted = yaml.safe_load(ROUTES.read_text())["routes"]
        if {route["id"] for route in wanted} <= {route["id"] for route in live["routes"]}:
            return int(live["revision"])
        change = {
            "title": "The demo's routes",
            "description": "Reports to the better summarizer, the rest mostly to the cheap one",
            "base_revision": live["revision"],
            "operations": [{"op": "put", **route} for route in wanted],
        }
        path = f"route-changes/{self.ask('POST', 'route-changes', change, key=author)['id']}"
        self.ask("POST", f"{path}/submit", {}, key=author)
        self.wait_for_impact(path)
        self.ask("POST", f"{path}/approve", {"comment": "as discussed"}, key=approver)
        return int(self.ask("POST", f"{path}/publish", {}, key=author)["published_revision"])

    def wait_for_impact(self, change: str) -> None:
        """Until it is known what a change would do: nobody may approve before. Raises TimeoutError."""
        for _look in range(120):
            if self.ask("GET", f"{change}/impact")["status"] == "ready":
                return
            time.sleep(0.5)
        raise TimeoutError(f"the impact of {change} was not analysed within a minute")

    def unready(self, wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of the wanted nodes that cannot be sent anything yet."""
        nodes = self.ask("GET", "nodes?limit=500")["results"]
        return wanted - {(node["service_id"], node["node_id"]) for node in nodes if node["status"] == "ready"}


def new_person(name: str, group: str) -> str:
    """The key of a new user; another name where an earlier demo has left this one."""
    for username in (name, f"{name}-{secrets.token_hex(2)}"):
        command = [sys.executable, "manage.py", "reach_user", "create", username, "--groups", group, "--with-key"]
        made = subprocess.run(command, cwd=CHECKOUT, env=os.environ, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            return str(json.loads(made.stdout)["key"])
    raise RuntimeError(f"no user {name} could be made: {made.stderr}")
