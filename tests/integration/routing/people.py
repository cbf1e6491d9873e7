"""People, their keys, and changes on their way."""

import json
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from registry import services
from routing import replay, review
from routing.core.tables import Tables
from routing.models import RouteChange


@dataclass(frozen=True)
class Api:
    """JSON in, JSON out, as whoever holds the key."""

    key: str

    def get(self, path: str) -> tuple[int, Any]:
        return answer(Client().get(f"/api/v1/{path}", headers=self.headers))

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return answer(Client().post(f"/api/v1/{path}", body or {}, "application/json", headers=self.headers))

    def patch(self, path: str, body: Any) -> tuple[int, Any]:
        return answer(Client().patch(f"/api/v1/{path}", body, "application/json", headers=self.headers))

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


def answer(response: Any) -> tuple[int, Any]:
    return response.status_code, json.loads(response.content) if response.content else None


def api_of(user: User) -> Api:
    return Api(services.create_user_key(user, ("observe", "operate"), by="tests").text)


def a_rule(route_id: str, **more: Any) -> dict[str, Any]:
    """A route that takes no call from any other."""
    match = {"capability": "file_summary", "labels.for": route_id}
    return {"id": route_id, "match": match, "strategy": {"type": "least_loaded"}, **more}


def analysed(change_id: int, tables: Tables | None = None) -> None:
    """What a worker does for a change, with nobody registered unless `tables` say otherwise."""
    replay.analyse(RouteChange.objects.get(pk=change_id), tables or Tables(1, [], frozenset()))


def approved(author: User, approver: User, *, base_revision: int, **proposal: Any) -> int:
    """The id of a change that waits only to be published."""
    change = review.propose(author=author, title="a change", base_revision=base_revision, **proposal)
    review.submit(change.pk, by=author)
    analysed(change.pk)
    review.approve(change.pk, by=approver)
    return change.pk


def published(author: User, approver: User, *, base_revision: int, **proposal: Any) -> int:
    change_id = approved(author, approver, base_revision=base_revision, **proposal)
    review.publish(change_id, by=author)
    return change_id
