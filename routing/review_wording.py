"""How pages say what reviews are made of: moves, mistakes in a table, refusals, what a watch has seen.

By REST and on the command line these sentences are English; here they are recognised, and put into the language of
whoever reads.
"""

from collections.abc import Mapping

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop, pgettext_lazy

from registry.errors import ReachError
from registry.wording import label, recognised, said
from routing.core.review import NEEDED, Move
from routing.core.watch import WatchStatus
from routing.wording import CHANGE_STATUS

MOVE: Mapping[str, Promise] = {
    Move.EDIT: pgettext_lazy("move", "edit"),
    Move.SUBMIT: pgettext_lazy("move", "submit"),
    Move.REBASE: pgettext_lazy("move", "rebase"),
    Move.APPROVE: pgettext_lazy("move", "approve"),
    Move.REJECT: pgettext_lazy("move", "reject"),
    Move.WITHDRAW: pgettext_lazy("move", "withdraw"),
    Move.PUBLISH: pgettext_lazy("move", "publish"),
    Move.BREAK_GLASS: pgettext_lazy("move", "publish without approval"),
    Move.REVERT: pgettext_lazy("move", "revert"),
    Move.RESTORE: pgettext_lazy("move", "take back by itself"),
    Move.COMMENT: pgettext_lazy("move", "comment on"),
}
WATCH: Mapping[str, Promise] = {
    WatchStatus.WATCHING: gettext_lazy("Being watched"),
    WatchStatus.FINE: gettext_lazy("Nothing is worse"),
    WatchStatus.UNTRIED: gettext_lazy("Too few calls to tell"),
    WatchStatus.WORSE: gettext_lazy("Calls fare worse"),
    WatchStatus.REVERTED: gettext_lazy("Taken back by itself"),
    WatchStatus.SUPERSEDED: gettext_lazy("A later revision is live"),
}
PLACE_STATE: Mapping[str, Promise] = {
    "theirs": gettext_lazy("edited by others"),
    "mine": gettext_lazy("edited here"),
    "same": gettext_lazy("edited alike"),
    "conflict": gettext_lazy("conflict"),
}
KINDS: Mapping[str, Promise] = {
    "null": pgettext_lazy("kind of value", "null"),
    "true or false": pgettext_lazy("kind of value", "true or false"),
    "a number": pgettext_lazy("kind of value", "a number"),
    "text": pgettext_lazy("kind of value", "text"),
    "a list": pgettext_lazy("kind of value", "a list"),
    "an object": pgettext_lazy("kind of value", "an object"),
    "a service id or user:NAME": gettext_lazy("a service id or user:NAME"),
    "a service or user:NAME": gettext_lazy("a service id or user:NAME"),
    "a service id": gettext_lazy("a service id"),
}
PERMISSIONS: Mapping[str, Promise] = {
    NEEDED["may_author"]: gettext_lazy("the permission routing.add_routechange"),
    NEEDED["may_approve"]: gettext_lazy("the permission routing.approve_routechange"),
    NEEDED["may_break_glass"]: gettext_lazy("the permission routing.break_glass_routechange"),
    NEEDED["may_comment"]: gettext_lazy(
        "one of the permissions routing.add_routechange and routing.approve_routechange"
    ),
    NEEDED["is_reach"]: gettext_lazy("to be the reach itself"),
}
IN_GAPS: Mapping[str, Promise] = {
    **CHANGE_STATUS,
    **MOVE,
    **KINDS,
    **PERMISSIONS,
    "propose": pgettext_lazy("move", "propose"),
}
"""Words that stand in the gaps of the sentences below, and have a translation of their own."""

REVIEWS = (
    gettext_noop("nobody may %(move)s their own route change: a second person has to"),
    gettext_noop("to %(move)s a route change you need %(needed)s"),
    gettext_noop("only its author may say whose routes are meant"),
    gettext_noop("only its author may %(move)s a route change"),
    gettext_noop("cannot %(move)s a route change that is %(status)s"),
    gettext_noop("base moved: the change was made for revision %(base)s, live is %(live)s; rebase it"),
    gettext_noop("%(count)s of %(asked)s approvals by other people stand for the content as it now reads"),
    gettext_noop("changed again since: %(routes)s; propose a change instead"),
    gettext_noop("the change changed nothing, so there is nothing to undo"),
    gettext_noop("edited on both sides: %(routes)s; say whose is meant, or edit the change"),
    gettext_noop("the impact of this content is being analysed: look at it, then approve"),
    gettext_noop(
        "the impact of this content is being analysed (%(done)s of %(total)s calls): look at it, then approve"
    ),
    gettext_noop("routes are shadowed: %(routes)s; approve with acknowledge: true if that is meant"),
    gettext_noop("the change reads differently by now: look at it again"),
    gettext_noop("you have approved this content already; another person has to, too"),
    gettext_noop("/%(field)s: say something"),
    gettext_noop("%(n)s capabilities would be left without a provider"),
    gettext_noop("%(moved)s of %(sampled)s sampled calls would move"),
    gettext_noop("Revert “%(title)s”"),
    gettext_noop("%(file)s was edited"),
    gettext_noop("%(file)s was submitted"),
    gettext_noop("the file was edited again"),
    gettext_noop("%(share)s of %(calls)s calls on the changed routes fail or need a retry, before %(before)s"),
    gettext_noop("%(share)s of %(calls)s calls at %(service)s fail or need a retry, before %(before)s"),
    gettext_noop("calls on the changed routes take %(after)s ms in the median, before %(before)s ms"),
    gettext_noop("calls at %(service)s take %(after)s ms in the median, before %(before)s ms"),
    gettext_noop("taken back by itself: %(why)s"),
    gettext_noop("%(why)s; it could not be taken back: %(reason)s"),
    gettext_noop("the change has not asked to be taken back unasked"),
)
MISTAKES = (
    gettext_noop("is required"),
    gettext_noop("must be a list"),
    gettext_noop("holds %(n)s routes; at most %(most)s are allowed"),
    gettext_noop("%(id)s is the id of an earlier route"),
    gettext_noop("must be an object"),
    gettext_noop("must be an object, not %(kind)s"),
    gettext_noop("names no field: write %(source)s.<name>"),
    gettext_noop("unknown key %(key)s"),
    gettext_noop("unknown operator %(key)s"),
    gettext_noop("must be a name, a glob or {fuzzy: text}, not %(kind)s"),
    gettext_noop("%(value)s is neither a capability's name (a-z, 0-9, _ . -) nor a glob of one"),
    gettext_noop("%(value)s is not a glob: its [ is never closed"),
    gettext_noop("can match nothing: %(number)s takes numbers and %(text)s takes texts: they never hold together"),
    gettext_noop("can match nothing: %(first)s and %(second)s never hold together"),
    gettext_noop("must be a number above 0 and at most 1"),
    gettext_noop("names no operator"),
    gettext_noop("must be text, a number, true, false or null, not %(value)s"),
    gettext_noop("must be a list of 1 to %(most)s scalars, not %(value)s"),
    gettext_noop("must be a number from 0 to 100, not %(value)s"),
    gettext_noop("must be a number, not %(value)s"),
    gettext_noop("must be true or false, not %(value)s"),
    gettext_noop("must be text of 1 to %(most)s characters, not %(value)s"),
    gettext_noop("must be text, not %(kind)s: quote it"),
    gettext_noop("must be a whole number from %(least)s to %(most)s, not %(value)s"),
    gettext_noop("must be a list of 1 to %(most)s names; leave it out for no limit"),
    gettext_noop("must be a list of %(least)s to %(most)s texts"),
    gettext_noop("must be an object of services and their weights; leave it out for equal shares"),
    gettext_noop("must have %(least)s to %(most)s characters"),
    gettext_noop("must hold 1 to %(most)s texts"),
    gettext_noop("must name exactly the services of `services`"),
    gettext_noop("is not a pattern (RE2 syntax): %(problem)s"),
    gettext_noop("takes a text or a list of texts; operators are for input.<path>"),
    gettext_noop("all are 0: no service would receive anything"),
    gettext_noop("means nothing with %(action)s, which does not wait"),
    gettext_noop("means nothing without the action route_to"),
    gettext_noop("route_to needs either a service or a capability"),
    gettext_noop("%(value)s is not the name of a service"),
    gettext_noop("%(value)s is not the name of a capability"),
    gettext_noop('%(value)s is not a version range like ">=1.4,<2"'),
    gettext_noop("%(id)s is what a call without a route reports; choose another id"),
    gettext_noop("%(id)s is not an id: 1 to 128 of A-Z, a-z, 0-9, _ . - and a letter or digit first"),
    gettext_noop("%(value)s stands here twice"),
    gettext_noop("no such revision; live is %(live)s"),
    gettext_noop("nobody has ever declared the capability %(name)s"),
    gettext_noop("no service %(name)s is registered"),
    gettext_noop("%(value)s is not a service id"),
    gettext_noop("%(value)s is not %(what)s"),
    gettext_noop("must be %(options)s"),
    gettext_noop("%(value)s must be %(what)s"),
)
MATCHING = (
    gettext_noop("the route is disabled"),
    gettext_noop("the route is for capability %(pattern)s, not %(capability)s"),
    gettext_noop("%(place)s is missing"),
    gettext_noop("%(place)s fails %(check)s"),
)
NEAR = "; did you mean "


def mistake_words(message: str) -> str:
    """What is wrong with a place of a table."""
    wrong, near, name = message.partition(NEAR)
    words = in_words(wrong, MISTAKES)
    return words + _("; did you mean %(name)s?") % {"name": name.rstrip("?")} if near else words


def refusal_words(refused: ReachError | str) -> str:
    """Why something cannot be done."""
    return review_words(str(refused))


def review_words(sentence: str) -> str:
    """A sentence that reviews and watches leave behind."""
    return in_words(sentence, REVIEWS)


def match_refusal_words(refusal: str) -> str:
    """Why a route does not match a call."""
    return in_words(refusal, MATCHING)


def in_words(sentence: str, among: tuple[str, ...]) -> str:
    template, values = recognised(sentence, among)
    if template is None:
        return said(sentence)
    return _(template) % {
        name: in_words(value, REVIEWS) if name in ("why", "reason") else label(IN_GAPS, value)
        for name, value in values.items()
    }
