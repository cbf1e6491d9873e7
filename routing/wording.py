"""How pages say what a route does, and why a node was no candidate, in the reader's language."""

import json
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop, ngettext

from registry.wording import SENTENCES
from routing.core.advisories import Kind as AdvisoryKind
from routing.core.conditions import Check, Condition, Operator
from routing.core.matching import CapabilityPattern, FallbackRule, Kind, Route

CHANGE_STATUS: Mapping[str, Promise] = {
    "draft": gettext_lazy("Draft"),
    "in_review": gettext_lazy("In review"),
    "approved": gettext_lazy("Approved"),
    "published": gettext_lazy("Published"),
    "rejected": gettext_lazy("Rejected"),
    "withdrawn": gettext_lazy("Withdrawn"),
}
URGENCY: Mapping[str, Promise] = {
    "interactive": gettext_lazy("interactive: somebody waits"),
    "normal": gettext_lazy("normal"),
    "bulk": gettext_lazy("bulk: it can wait"),
}
OPERATOR: Mapping[str, Promise] = {
    Operator.EQ: gettext_lazy("is"),
    Operator.IN: gettext_lazy("is one of"),
    Operator.NE: gettext_lazy("is not"),
    Operator.GT: gettext_lazy("is above"),
    Operator.GTE: gettext_lazy("is at least"),
    Operator.LT: gettext_lazy("is below"),
    Operator.LTE: gettext_lazy("is at most"),
    Operator.EXISTS: gettext_lazy("is there"),
    Operator.PREFIX: gettext_lazy("begins with"),
    Operator.PATTERN: gettext_lazy("has the pattern"),
    Operator.INCLUDE: gettext_lazy("include"),
}
CONDITION: Mapping[str, Promise] = {
    "no_available_node": gettext_lazy("when no node is able"),
    "circuit_open": gettext_lazy("when the breakers are open"),
    "rate_limited": gettext_lazy("when every node is at its limit"),
    "timeout": gettext_lazy("when the attempt times out"),
    "error": gettext_lazy("when it fails for good"),
}
ACTION: Mapping[str, Promise] = {
    "return_503": gettext_lazy("answer 503"),
    "next_route": gettext_lazy("go on with the next route"),
    "retry": gettext_lazy("wait and choose again"),
    "route_to": gettext_lazy("hand it to another service or capability"),
}
REFUSALS = [
    gettext_noop("draining"),
    gettext_noop("lease expired"),
    gettext_noop("not yet proven ready"),
    gettext_noop("not ready"),
    gettext_noop("weight 0"),
    gettext_noop("weight 0 in the route"),
    gettext_noop("lacks tag %(tag)s"),
    gettext_noop("version %(version)s is outside the route's range"),
    gettext_noop("its input schema refuses the payload"),
    gettext_noop("does not take calls from this caller"),
    gettext_noop("is already working on this payload higher up the chain"),
    gettext_noop("suspect: only where nobody else can"),
    gettext_noop("tried already: only where nobody else can"),
    gettext_noop("takes only the canary's share"),
    gettext_noop("takes only copies"),
    gettext_noop("a narrower service takes it"),
    gettext_noop("near its limit: only where nobody else can"),
    gettext_noop("a cheaper one takes it"),
    gettext_noop("another is more alike"),
    gettext_noop("its likeness %(score)s is below %(least)s"),
    gettext_noop("at its max_concurrency (%(n)s)"),
    gettext_noop("at its rate_limit (%(n)s a second)"),
    gettext_noop("its breaker is open"),
    gettext_noop("the breaker of its service is open"),
]
NOTES = [
    gettext_noop("canary: %(percent)s %% to %(service)s, by %(key)s"),
    gettext_noop("a copy of %(call)s; nobody waits for it"),
    gettext_noop("no canary: the call has no %(key)s"),
    gettext_noop("the canary %(service)s has no able node: the route's strategy chose"),
    gettext_noop("the canary %(service)s was tried already: the route's strategy chose"),
    gettext_noop("a fallback rule has handed it to %(service)s"),
    gettext_noop(
        "the breaker of %(name)s is open after %(errors)s errors of %(attempts)s: one attempt may try again in %(n)s s"
    ),
    gettext_noop("the breaker of %(name)s is open: one attempt may try again in %(n)s s"),
    gettext_noop("the breaker of %(name)s is half-open: whether one attempt succeeds is being tried"),
    gettext_noop("and %(n)s more breakers are open"),
    gettext_noop("of the able by chance, each as likely as its share"),
    gettext_noop("of the able the quicker of two drawn at random (latency times calls in flight)"),
    gettext_noop("of the able the one that its key belongs to"),
    gettext_noop("of the able the less busy of two drawn at random (calls in flight by weight)"),
    gettext_noop("sticks to nothing: the call has no %(key)s; the least loaded was chosen"),
]
ATTEMPTS = [
    gettext_noop("fell silent for %(seconds)s s"),
    gettext_noop("had not answered by the deadline"),
    gettext_noop("answered %(http_status)s"),
    gettext_noop("answered %(http_status)s: %(words)s"),
    gettext_noop("answered %(http_status)s; redirects are not followed"),
    gettext_noop("reported %(words)s"),
    gettext_noop("TLS failed"),
    gettext_noop("the address cannot be used: %(words)s"),
    gettext_noop("the envelope was not sent: %(reason)s"),
    gettext_noop("the reach's process that had forwarded it is gone"),
    gettext_noop("its answer is larger than %(size)s bytes"),
    gettext_noop('its answer is not {"output": …}: %(words)s'),
    gettext_noop("its answer does not fit the output schema"),
    gettext_noop("its result does not fit the output schema"),
]
"""How one attempt ended."""
ENDINGS = [
    # what holds another sentence comes first: its gap takes everything before its own words
    gettext_noop("%(reason)s; it waited for as long as it could"),
    gettext_noop("%(reason)s; the route's fallback rule answers 503"),
    gettext_noop(
        "%(reason)s; the retry budget of %(service)s is spent: %(retries)s retries for %(calls)s calls in %(seconds)s s"
    ),
    gettext_noop("%(node)s fell silent for %(seconds)s s"),
    gettext_noop("%(node)s had not answered by the deadline"),
    gettext_noop("%(node)s: %(reason)s"),
    gettext_noop("no time was left to start"),
    gettext_noop("its deadline came before an engine had room for it"),
    gettext_noop("its deadline passed while no process carried it"),
    gettext_noop("the process that carried this copy is gone"),
    gettext_noop("nobody provides %(capability)s now"),
    gettext_noop("no node can take %(capability)s now: %(counted)s"),
    gettext_noop("no route matches, and calls without a route are refused"),
    gettext_noop("route %(route)s does not take calls from %(caller)s"),
    gettext_noop("%(capability)s does not take calls from %(caller)s"),
    gettext_noop("%(capability)s with this payload is already open among the ancestors"),
    gettext_noop("the chain of calls is deeper than %(n)s"),
    gettext_noop("the payload does not fit %(capability)s: %(words)s"),
    gettext_noop("no agent has ever declared %(capability)s; did you mean %(names)s?"),
    gettext_noop("no agent has ever declared %(capability)s"),
    gettext_noop(
        "no capability answers the intent (score at least %(score)s) and takes the payload; the nearest are %(names)s"
    ),
    gettext_noop("no capability answers the intent (score at least %(score)s) and takes the payload: none is known"),
]
"""How a call ended, as its `detail` says it."""
ADVISORY: Mapping[str, tuple[str, str, str]] = {
    AdvisoryKind.TAKES_MOST: (
        gettext_noop("One service takes most"),
        gettext_noop(
            "%(service)s took %(percent)s %% of the calls of %(capability)s that three or more services could have "
            "taken (%(calls)s of the sample of the last day)."
        ),
        gettext_noop(
            "Tell the services apart by their input schemas: distinct `required` fields, bounds (enum, maxLength, "
            "limits), exclusive constraints (const, additionalProperties: false). If they are alike on purpose, "
            "compare their weights and nodes; if the share is wanted, say so in a reviewed route."
        ),
    ),
    AdvisoryKind.BOTH_ACCEPT: (
        gettext_noop("Two schemas take the same payloads"),
        gettext_noop(
            "%(first)s and %(second)s declare different input schemas for %(capability)s, and both accept %(calls)s of "
            "%(of)s sampled payloads of the last day."
        ),
        gettext_noop(
            "Give each distinct `required` fields, bounds (enum, maxLength, limits) or exclusive constraints (const, "
            "additionalProperties: false), so that one payload fits one of them; or declare the very same schema where "
            "they do the same. Without a route the narrower is preferred."
        ),
    ),
    AdvisoryKind.UNREACHED: (
        gettext_noop("Ready, and never asked"),
        gettext_noop("%(service)s stands ready for %(capability)s, and no route leads to it."),
        gettext_noop(
            "Propose a route change that names it in a strategy, a canary or a fallback rule; or let it stop offering "
            "the capability."
        ),
    ),
    AdvisoryKind.UNPROVIDED: (
        gettext_noop("Required, and offered by nobody"),
        gettext_noop("%(service)s requires %(capability)s, and no registered node provides it."),
        gettext_noop("Register a service that declares the capability, or correct the name in `requires`."),
    ),
    AdvisoryKind.RATE_LIMITED: (
        gettext_noop("Limits are reached"),
        gettext_noop(
            "Calls of %(capability)s were refused with 429 because every node was at its limit: %(calls)s among those "
            "counted of the last day."
        ),
        gettext_noop(
            "Add nodes, or raise `rate_limit` or `max_concurrency` where they can bear more; let callers spread their "
            "work; or add a fallback rule for `rate_limited` that waits or hands the call on."
        ),
    ),
    AdvisoryKind.SCHEMA_REFUSES: (
        gettext_noop("A schema refuses what it took"),
        gettext_noop(
            "%(service)s succeeded with %(calls)s of %(of)s sampled calls of %(capability)s of the last day whose "
            "payload its input schema refuses today: %(path)s %(error)s."
        ),
        gettext_noop(
            "Make what is new optional, or offer it as a new capability or version beside the old one until the "
            "callers have followed."
        ),
    ),
    AdvisoryKind.MANY_CHANGES: (
        gettext_noop("The route table changes often"),
        gettext_noop("%(changes)s route changes were published within a day; more than %(most)s are hard to follow."),
        gettext_noop(
            "Gather edits in one change. Where routes follow something that moves by the hour, let tags, labels or a "
            "strategy decide it instead of the table."
        ),
    ),
}
"""Kind → title, what was noticed, and the remedy; the facts of the advisory stand in their gaps."""
SENTENCES.extend(REFUSALS)
SENTENCES.extend(NOTES)
SENTENCES.extend(ATTEMPTS)
SENTENCES[:0] = ENDINGS  # they hold others


def match_words(route: Route) -> list[str]:
    """What a call must have for this route, one condition each; empty: every call."""
    words = [] if route.capability is None else [capability_words(route.capability)]
    return words + [" ".join(condition_words(condition)) for condition in route.conditions]


def capability_words(pattern: CapabilityPattern) -> str:
    match pattern.kind:
        case Kind.EXACT:
            return _("the capability is %(name)s") % {"name": pattern.text}
        case Kind.GLOB:
            return _("the capability fits %(pattern)s") % {"pattern": pattern.text}
        case Kind.FUZZY:
            told = {"text": pattern.text, "score": f"{pattern.min_score:g}"}
            return _("the capability is like “%(text)s” (score at least %(score)s)") % told


def condition_words(condition: Condition) -> list[str]:
    checks = [check_words(check) for check in condition.checks]
    return [condition.key, _(" and ").join(checks)]


def check_words(check: Check) -> str:
    told = {"value": value_words(check)}
    match check.operator:
        case Operator.EQ:
            return _("is %(value)s") % told
        case Operator.NE:
            return _("is not %(value)s") % told
        case Operator.IN:
            return _("is one of %(value)s") % told
        case Operator.GT:
            return _("is above %(value)s") % told
        case Operator.GTE:
            return _("is at least %(value)s") % told
        case Operator.LT:
            return _("is below %(value)s") % told
        case Operator.LTE:
            return _("is at most %(value)s") % told
        case Operator.EXISTS:
            return _("is there") if check.operand else _("is not there")
        case Operator.PREFIX:
            return _("begins with %(value)s") % told
        case Operator.PATTERN:
            return _("has the pattern %(value)s") % told
        case Operator.INCLUDE:
            return _("include %(value)s") % told


def value_words(check: Check) -> str:
    """What a value is held against, as people read it."""
    operand = check.operand
    if check.operator is Operator.PATTERN:  # held compiled
        return check.text
    if isinstance(operand, list | tuple | set | frozenset):
        return ", ".join(sorted(one_value(item) for item in operand))
    return one_value(operand)


def one_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def strategy_words(route: Route) -> str:
    """Who gets the call, in one sentence."""
    strategy = route.strategy
    services = strategy.services or tuple(strategy.weights or ())
    among = ", ".join(services) if services else _("all that offer the capability")
    match strategy.type:
        case "exact":
            return _("always %(service)s") % {"service": among}
        case "weighted_random":
            return _("by weight: %(weights)s") % {"weights": weight_words(strategy.weights, among)}
        case "latency_aware":
            return _("the quickest of %(services)s") % {"services": among}
        case "least_loaded":
            return _("the least loaded of %(services)s") % {"services": among}
        case "cost_aware":
            return _("the cheapest of %(services)s") % {"services": among}
        case "sticky":
            return _("always the same of %(services)s for one %(key)s") % {"services": among, "key": strategy.key}
        case "fuzzy":
            told = {"services": among, "score": f"{strategy.min_score:g}"}
            return _("the most alike of %(services)s (likeness at least %(score)s)") % told
        case other:
            return f"{other}: {among}"


def weight_words(weights: Mapping[str, int] | None, among: str) -> str:
    total = sum((weights or {}).values())
    if not weights or not total:
        return among
    heaviest = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{service} {100 * weight / total:.0f} %" for service, weight in heaviest)


def rule_words(rule: FallbackRule) -> str:
    """A fallback rule as one sentence."""
    action = ACTION.get(rule.action, rule.action)
    if target := rule.service or rule.capability:
        action = _("hand it to %(target)s") % {"target": target}
    words = f"{CONDITION.get(rule.condition, rule.condition)}: {action}"
    if rule.wait_before_retry_ms is None:
        return words
    told = ngettext("retry after %(ms)s ms", "retry after %(ms)s ms", rule.wait_before_retry_ms)
    return f"{words} ({told % {'ms': rule.wait_before_retry_ms}})"


def extra_words(route: Route, document: Mapping[str, Any]) -> list[str]:
    """What else a route says."""
    words = []
    if (canary := route.canary) is not None:
        share = {"percent": f"{canary.percent:g}", "service": canary.service, "key": canary.sticky_by}
        words.append(_("canary: %(percent)s %% to %(service)s, by %(key)s") % share)
    if (mirror := route.mirror) is not None:
        share = {"percent": f"{mirror.percent:g}", "service": mirror.service}
        words.append(_("mirror: a copy of %(percent)s %% to %(service)s") % share)
    if route.node_tags:
        words.append(_("nodes with %(tags)s") % {"tags": ", ".join(sorted(route.node_tags))})
    if document.get("node_version"):
        words.append(_("node version %(range)s") % {"range": document["node_version"]})
    if route.timeout_ms is not None:
        words.append(_("at most %(ms)s ms") % {"ms": route.timeout_ms})
    if route.max_retries is not None:
        told = ngettext("at most %(n)s retry", "at most %(n)s retries", route.max_retries)
        words.append(told % {"n": route.max_retries})
    if route.allow_callers:
        words.append(_("only for %(callers)s") % {"callers": ", ".join(sorted(route.allow_callers))})
    return words + [rule_words(rule) for rule in route.fallback_rules]


def advisory_words(kind: str, facts: Mapping[str, Any]) -> tuple[str, str, str]:
    """An advisory's title, what was noticed, and the remedy, in the reader's language."""
    title, message, remedy = ADVISORY[kind]
    return _(title), _(message) % facts, _(remedy)
