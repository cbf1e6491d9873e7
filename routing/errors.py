"""What can go wrong with routes and their review. Kinds carry facts and know nothing of HTTP.

They are kinds of the registry's `Conflict` and `Forbidden`, so whoever handles those handles these.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from registry.errors import Conflict, Forbidden, InvalidRequest, ReachError

if TYPE_CHECKING:
    from routing.core.edits import Place
    from routing.core.review import Move, Status


class RoutingError(ReachError):
    """Root of this app's errors."""


class TakenOver(RoutingError):
    """Somebody else carries the call by now, and nobody waits for its end here."""


class Overloaded(RoutingError):
    """This process has too much to do for a call of this urgency; nothing was accepted."""

    def __init__(self, detail: str, retry_after_ms: int):
        super().__init__(detail)
        self.retry_after_ms = retry_after_ms


class TooManyWaiting(RoutingError):
    """This key waits for as many calls at once as one key may."""

    def __init__(self, detail: str, retry_after_ms: int):
        super().__init__(detail)
        self.retry_after_ms = retry_after_ms


class UnreadableText(RoutingError, InvalidRequest):
    """A text that is no YAML, or YAML that is not allowed here; `line` and `column` count from 1."""

    def __init__(self, name: str, problem: str, line: int = 1, column: int = 1, *, placed: bool = True):
        super().__init__(f"{name}, line {line}, column {column}: {problem}" if placed else f"{name}: {problem}")
        self.problem, self.line, self.column = problem, line, column


class NotAllowed(RoutingError, Forbidden):
    """This person may not make this move."""


class OwnChange(NotAllowed):
    """The author may not approve: four eyes."""

    def __init__(self, move: "Move"):
        super().__init__(f"nobody may {move} their own route change: a second person has to")


class IllegalMove(RoutingError, Conflict):
    """The route change has no such move from where it stands."""

    def __init__(self, status: "Status", move: "Move"):
        super().__init__(f"cannot {move} a route change that is {status}")
        self.status, self.move = status, move


class StaleBase(RoutingError, Conflict):
    """The live table is no longer the one the change was made for."""

    def __init__(self, base: int, live: int):
        super().__init__(f"base moved: the change was made for revision {base}, live is {live}; rebase it")
        self.base, self.live = base, live


class NotApproved(RoutingError, Conflict):
    """No standing approval by another person covers exactly this content."""


class CannotRevert(RoutingError, Conflict):
    """What the change did cannot be undone on the live table; `conflicts` names the routes in the way."""

    def __init__(self, detail: str, conflicts: Sequence[str] = ()):
        super().__init__(detail)
        self.conflicts = tuple(conflicts)


class RebaseConflict(RoutingError, Conflict):
    """Both sides have edited the same routes; `three_way` shows each as it was, as it is live, and as proposed."""

    def __init__(self, places: Sequence["Place"]):
        self.conflicts = tuple(place.route for place in places)
        self.three_way = [
            {"route": p.route, "state": p.state, "base": p.base, "theirs": p.theirs, "mine": p.mine} for p in places
        ]
        super().__init__(f"edited on both sides: {', '.join(self.conflicts)}; say whose is meant, or edit the change")


class ImpactPending(RoutingError, Conflict):
    """What the change would do is not known yet, or no longer."""

    def __init__(self, done: int = 0, total: int = 0):
        far = f" ({done} of {total} calls)" if total else ""
        super().__init__(f"the impact of this content is being analysed{far}: look at it, then approve")
        self.done, self.total = done, total


class Unacknowledged(RoutingError, Conflict):
    """Routes would lose calls to others: whoever approves has to say that this is meant."""

    def __init__(self, shadowed: Sequence[dict[str, Any]]):
        named = "; ".join(f"{one['route']} by {one['by']} ({one['calls']:g} calls)" for one in shadowed[:5])
        more = f" and {len(shadowed) - 5} more" if len(shadowed) > 5 else ""
        super().__init__(f"routes are shadowed: {named}{more}; approve with acknowledge: true if that is meant")
        self.shadowed_routes = list(shadowed)


class ContentChanged(RoutingError, Conflict):
    """The change no longer reads as it did when it was looked at."""

    def __init__(self) -> None:
        super().__init__("the change reads differently by now: look at it again")


class AlreadyApproved(RoutingError, Conflict):
    """One person counts once."""

    def __init__(self) -> None:
        super().__init__("you have approved this content already; another person has to, too")
