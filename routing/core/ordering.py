"""In which order routes are tried: a strict total order, so that a table means one thing however it was written.

1. Higher priority first.
2. More match keys first.
3. The finer first: an exact capability before a glob before a fuzzy one; then the conditions, each by its finest
   operator (`eq` before `in` before ranges, prefixes and patterns before `exists` and `ne`; fewer options of an `in`
   and a longer prefix are finer; two bounds are finer than one); then more tags; then more literal characters in a
   glob.
4. By id.

The specific rule stands before the catch-all of equal priority, like in a firewall: the article's lesson of 4.3.
"""

import re
from collections.abc import Iterable, Mapping

from routing.core.conditions import Check, Condition, Operator, Source
from routing.core.matching import CapabilityPattern, Kind, Route

Fineness = tuple[int, int]

FINENESS: Mapping[Operator, int] = {
    Operator.EQ: 4,
    Operator.IN: 3,
    Operator.GT: 2,
    Operator.GTE: 2,
    Operator.LT: 2,
    Operator.LTE: 2,
    Operator.PREFIX: 2,
    Operator.PATTERN: 2,
    Operator.NE: 1,
    Operator.EXISTS: 1,
    Operator.INCLUDE: 4,  # a tag is there or not: as fine as `eq`
}
WILD = re.compile(r"\[[^\]]*\]|[*?]")


def in_order(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The routes as they are tried. Ids must differ."""
    by_id = sorted(routes, key=lambda route: route.id)
    return tuple(sorted(by_id, key=lambda route: (route.priority, specificity(route)), reverse=True))


def precedes(left: Route, right: Route) -> bool:
    """Whether `left` is tried before `right`."""
    ranks = (left.priority, specificity(left)), (right.priority, specificity(right))
    return left.id < right.id if ranks[0] == ranks[1] else ranks[0] > ranks[1]


def specificity(route: Route) -> tuple[int, int, tuple[tuple[Fineness, ...], ...], int, int]:
    """How much a route asks for; the greater is the more specific."""
    return (
        len(route.conditions) + (route.capability is not None),
        route.capability.kind if route.capability else 0,
        tuple(sorted((fineness(c) for c in route.conditions), reverse=True)),
        sum(len(check.operand) for c in route.conditions if c.source is Source.TAGS for check in c.checks),
        literal_length(route.capability),
    )


def fineness(condition: Condition) -> tuple[Fineness, ...]:
    """The fineness of a condition's checks, finest first."""
    return tuple(sorted((check_fineness(check) for check in condition.checks), reverse=True))


def check_fineness(check: Check) -> Fineness:
    match check.operator:
        case Operator.IN:
            return FINENESS[Operator.EQ if len(check.operand) == 1 else Operator.IN], -len(check.operand)
        case Operator.PREFIX:
            return FINENESS[check.operator], len(check.operand)
        case Operator.EQ:
            return FINENESS[check.operator], -1  # like an `in` of one
        case _:
            return FINENESS[check.operator], 0


def literal_length(pattern: CapabilityPattern | None) -> int:
    """How many characters of a glob stand for themselves; 0 for other patterns."""
    return len(WILD.sub("", pattern.text)) if pattern and pattern.kind is Kind.GLOB else 0
