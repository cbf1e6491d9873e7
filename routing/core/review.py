"""Where a route change can stand, what moves it, who may move it, how many must agree. Pure; people are plain facts.

Admin, REST and command line ask here and nowhere else, so a hidden button and a refused request obey one table.
"""

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
    """What can be done to a route change."""

    EDIT = "edit"
    SUBMIT = "submit"
    REBASE = "rebase"
    APPROVE = "approve"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    PUBLISH = "publish"
    BREAK_GLASS = "break_glass"
    """Publish without the approvals: a permission, a reason, and a mark that stays."""
    REVERT = "revert"
    """Draft a new change that undoes this one."""
    RESTORE = "restore"
    """The reach itself publishes what undoes a change that asked for it."""
    COMMENT = "comment"


OPEN = {
    Move.EDIT: Status.DRAFT,
    Move.WITHDRAW: Status.WITHDRAWN,
    Move.BREAK_GLASS: Status.PUBLISHED,
}
MOVES: Mapping[Status, Mapping[Move, Status]] = {
    Status.DRAFT: OPEN
    | {
        Move.SUBMIT: Status.IN_REVIEW,
        Move.REBASE: Status.DRAFT,
        Move.RESTORE: Status.PUBLISHED,
        Move.COMMENT: Status.DRAFT,
    },
    Status.IN_REVIEW: OPEN
    | {
        Move.APPROVE: Status.APPROVED,  # by the last of those who are needed; before, it stays in review
        Move.REJECT: Status.REJECTED,
        Move.REBASE: Status.IN_REVIEW,
        Move.COMMENT: Status.IN_REVIEW,
    },
    Status.APPROVED: OPEN
    | {
        Move.PUBLISH: Status.PUBLISHED,
        Move.REJECT: Status.REJECTED,
        Move.REBASE: Status.IN_REVIEW,
        Move.COMMENT: Status.APPROVED,
    },
    Status.PUBLISHED: {Move.REVERT: Status.PUBLISHED, Move.COMMENT: Status.PUBLISHED},
    Status.REJECTED: {Move.COMMENT: Status.REJECTED},
    Status.WITHDRAWN: {Move.COMMENT: Status.WITHDRAWN},
}
OPEN_STATUSES = tuple(status for status in Status if Move.EDIT in MOVES[status])
"""Where a change can still become the live table."""


def after(status: Status, move: Move) -> Status:
    """Where `move` leads from `status`. Raises IllegalMove when the table has no such move."""
    if (reached := MOVES[status].get(move)) is None:
        raise IllegalMove(status, move)
    return reached


# --- Who -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Person:
    """Who wants to make a move, and what they are permitted in general."""

    user_id: int
    may_author: bool
    """Holds `routing.add_routechange`: proposes changes, publishes what was approved."""
    may_approve: bool
    """Holds `routing.approve_routechange`: approves and rejects."""
    may_break_glass: bool = False
    """Holds `routing.break_glass_routechange`: publishes in an emergency what nobody approved."""
    is_reach: bool = False
    """Not a person but the reach itself, which takes back what turned out badly."""

    @property
    def may_comment(self) -> bool:
        return self.may_author or self.may_approve


@dataclass(frozen=True, slots=True)
class Rule:
    """Whose move it is: which permission it needs, and whether it is the author's alone or anybody's but theirs."""

    permission: str
    author: bool | None = None
    """True: only the author. False: anybody but the author. None: it does not matter."""


WHO: Mapping[Move, Rule] = {
    Move.EDIT: Rule("may_author", author=True),
    Move.SUBMIT: Rule("may_author", author=True),
    Move.REBASE: Rule("may_author"),  # where nothing conflicts nobody decides anything, and authors go on holiday
    Move.APPROVE: Rule("may_approve", author=False),
    Move.REJECT: Rule("may_approve"),
    Move.WITHDRAW: Rule("may_author", author=True),
    Move.PUBLISH: Rule("may_author"),
    Move.BREAK_GLASS: Rule("may_break_glass"),
    Move.REVERT: Rule("may_author"),
    Move.RESTORE: Rule("is_reach"),
    Move.COMMENT: Rule("may_comment"),
}
NEEDED = {
    "may_author": "the permission routing.add_routechange",
    "may_approve": "the permission routing.approve_routechange",
    "may_break_glass": "the permission routing.break_glass_routechange",
    "may_comment": "one of the permissions routing.add_routechange and routing.approve_routechange",
    "is_reach": "to be the reach itself",
}


def check_may(move: Move, by: Person, *, author_id: int) -> None:
    """Raise OwnChange or NotAllowed with the reason why `by` may not make this move on a change of `author_id`."""
    rule = WHO[move]
    if rule.author is False and by.user_id == author_id:
        raise OwnChange(move)
    if not getattr(by, rule.permission):
        raise NotAllowed(f"to {move} a route change you need {NEEDED[rule.permission]}")
    if rule.author is True and by.user_id != author_id:
        raise NotAllowed(f"only its author may {move} a route change")


def check_may_propose(by: Person) -> None:
    """Raise NotAllowed when `by` may not propose changes."""
    if not by.may_author:
        raise NotAllowed(f"to propose a route change you need {NEEDED['may_author']}")


def moves_of(status: Status, by: Person, *, author_id: int) -> Mapping[Move, str | None]:
    """The moves that the table has from `status`, each with the reason why `by` may not make it (None: they may)."""
    found: dict[Move, str | None] = {}
    for move in MOVES[status]:
        try:
            check_may(move, by, author_id=author_id)
        except NotAllowed as exc:
            found[move] = str(exc)
        else:
            found[move] = None
    return found


# --- How many --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """How many people must approve (settings of the same names)."""

    approvals: int = 1
    approvals_when_large: int = 1
    large_share: float = 0.5
    """Of the sampled calls: so many that move make an impact large…"""
    large_calls: int = 100
    """…where they are at least so many."""


def why_large(rules: ApprovalRules, *, moved: float, sampled: int, unprovided: int) -> str | None:
    """The sentence that says what makes an impact large; None where it is not."""
    if unprovided:
        return f"{unprovided} capabilities would be left without a provider"
    if moved >= rules.large_calls and moved >= rules.large_share * sampled:
        return f"{moved:g} of {sampled} sampled calls would move"
    return None


def approvals_needed(rules: ApprovalRules, *, large: bool) -> int:
    """At least one, whatever the settings say: nobody changes routes alone."""
    usual = max(1, rules.approvals)
    return max(usual, rules.approvals_when_large) if large else usual


def after_approval(status: Status, *, standing: int, needed: int) -> Status:
    """Where a change stands once it has so many standing approvals, the new one among them."""
    reached = after(status, Move.APPROVE)
    return reached if standing >= needed else status
