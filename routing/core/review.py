"""Where a route change can stand, what moves it, and who may move it. Pure; people are plain facts here."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from routing.errors import IllegalMove, NotAllowed, OwnChange


class Status(StrEnum):
    """Where a route change stands."""

    DRAFT = "draft"
    IN_REVIEW = "in_review"
    APPROVED = "approved"
    PUBLISHED = "published"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"


class Move(StrEnum):
    """What a person can do to a route change."""

    SUBMIT = "submit"
    APPROVE = "approve"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    PUBLISH = "publish"
    EDIT = "edit"


MOVES: Mapping[Status, Mapping[Move, Status]] = {
    Status.DRAFT: {
        Move.EDIT: Status.DRAFT,
        Move.SUBMIT: Status.IN_REVIEW,
        Move.WITHDRAW: Status.WITHDRAWN,
    },
    Status.IN_REVIEW: {
        Move.APPROVE: Status.APPROVED,
        Move.REJECT: Status.REJECTED,
        Move.EDIT: Status.DRAFT,
        Move.WITHDRAW: Status.WITHDRAWN,
    },
    Status.APPROVED: {
        Move.PUBLISH: Status.PUBLISHED,
        Move.REJECT: Status.REJECTED,
        Move.EDIT: Status.DRAFT,
        Move.WITHDRAW: Status.WITHDRAWN,
    },
    Status.PUBLISHED: {},  # final: a revert is a new change
    Status.REJECTED: {},
    Status.WITHDRAWN: {},
}


def after(status: Status, move: Move) -> Status:
    """Where `move` leads from `status`. Raises IllegalMove when the table has no such move."""
    if (reached := MOVES[status].get(move)) is None:
        raise IllegalMove(status, move)
    return reached


@dataclass(frozen=True, slots=True)
class Person:
    """Who wants to make a move, and what they are permitted in general."""

    user_id: int
    may_author: bool
    """Holds `routing.add_routechange`: proposes changes, publishes what was approved."""
    may_approve: bool
    """Holds `routing.approve_routechange`: approves and rejects."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Whose move it is: which permission it needs, and whether it is the author's alone or anybody's but theirs."""

    permission: str
    author: bool | None = None
    """True: only the author. False: anybody but the author. None: it does not matter."""


WHO: Mapping[Move, Rule] = {
    Move.EDIT: Rule("may_author", author=True),
    Move.SUBMIT: Rule("may_author", author=True),
    Move.WITHDRAW: Rule("may_author", author=True),
    Move.APPROVE: Rule("may_approve", author=False),
    Move.REJECT: Rule("may_approve"),
    Move.PUBLISH: Rule("may_author"),
}
NEEDED = {"may_author": "routing.add_routechange", "may_approve": "routing.approve_routechange"}


def check_may(move: Move, by: Person, *, author_id: int) -> None:
    """Raise OwnChange or NotAllowed with the reason why `by` may not make this move on a change of `author_id`."""
    rule = WHO[move]
    if rule.author is False and by.user_id == author_id:
        raise OwnChange(move)
    if not getattr(by, rule.permission):
        raise NotAllowed(f"to {move} a route change you need the permission {NEEDED[rule.permission]}")
    if rule.author is True and by.user_id != author_id:
        raise NotAllowed(f"only its author may {move} a route change")


def check_may_propose(by: Person) -> None:
    """Raise NotAllowed when `by` may not propose changes (a revert is a proposal too)."""
    if not by.may_author:
        raise NotAllowed(f"to propose a route change you need the permission {NEEDED['may_author']}")
