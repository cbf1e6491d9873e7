"""What one condition says about another: can it hold at all, and does it hold wherever another does?

Answers are on the safe side: `implies` is only true where it certainly is, and so is a contradiction.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from routing.core.conditions import MISSING, Check, Condition, Operator, same
from routing.core.matching import CapabilityPattern, Kind, Route

LOWER, UPPER = (Operator.GT, Operator.GTE), (Operator.LT, Operator.LTE)


def contradiction(condition: Condition) -> str | None:
    """The sentence that says why no value can pass all checks of a condition; None where one may."""
    checks = condition.checks
    absent = [check for check in checks if check.operator is Operator.EXISTS and not check.operand]
    others = [check for check in checks if check not in absent]
    if absent and others:
        return f"{absent[0]} and {others[0]} never hold together"
    values = finite_values(checks)
    if values is not None:
        if values:
            return None
        listed = next(check for check in checks if check.operator in (Operator.EQ, Operator.IN))
        against = next((c for c in checks if c is not listed and not any_passes(listed, c)), checks[-1])
        return f"{listed} and {against} never hold together"
    for low in (check for check in checks if check.operator in LOWER):
        for high in (check for check in checks if check.operator in UPPER):
            both_closed = low.operator is Operator.GTE and high.operator is Operator.LTE
            if low.operand > high.operand or (low.operand == high.operand and not both_closed):
                return f"{low} and {high} never hold together"
    number = next((check for check in checks if check.operator in (*LOWER, *UPPER)), None)
    text = next((check for check in checks if check.operator in (Operator.PREFIX, Operator.PATTERN)), None)
    if number is not None and text is not None:
        return f"{number} takes numbers and {text} takes texts: they never hold together"
    prefixes = sorted((c for c in checks if c.operator is Operator.PREFIX), key=lambda c: len(c.operand))
    for short, long in pairwise(prefixes):
        if not long.operand.startswith(short.operand):
            return f"{short} and {long} never hold together"
    return None


def any_passes(listed: Check, other: Check) -> bool:
    options = (listed.operand,) if listed.operator is Operator.EQ else listed.operand
    return any(other.passes(option) for option in options)


def finite_values(checks: Sequence[Check]) -> list[Any] | None:
    """The values that pass all checks, where these are a few known ones; None where they cannot be listed."""
    for check in checks:
        if check.operator is Operator.EQ:
            options: Iterable[Any] = (check.operand,)
        elif check.operator is Operator.IN:
            options = check.operand
        elif check.operator is Operator.EXISTS and not check.operand:
            options = (MISSING,)
        else:
            continue
        return [option for option in options if all(other.passes(option) for other in checks)]
    return None


def implies(narrow: Sequence[Check], wide: Sequence[Check]) -> bool:
    """Whether every value that passes the checks `narrow` passes those of `wide`."""
    values = finite_values(narrow)
    if values is not None:
        return all(check.passes(value) for value in values for check in wide)
    return all(any(check_implies(given, asked) for given in narrow) for asked in wide)


def check_implies(given: Check, asked: Check) -> bool:
    """Whether a value that passes `given` passes `asked`; `given` lists no values."""
    if asked.operator is Operator.EXISTS and asked.operand:
        return True  # only `exists: false` is met by a place that is not there
    for bounds, closed in ((LOWER, Operator.GTE), (UPPER, Operator.LTE)):
        if asked.operator in bounds and given.operator in bounds:
            if given.operand == asked.operand:
                return asked.operator is closed or given.operator is asked.operator
            return bool((given.operand > asked.operand) is (bounds is LOWER))
    if given.operator is not asked.operator:
        return False
    match asked.operator:
        case Operator.NE:
            return same(given.operand, asked.operand)
        case Operator.PREFIX:
            return bool(given.operand.startswith(asked.operand))
        case Operator.INCLUDE:
            return bool(asked.operand <= given.operand)
        case Operator.PATTERN:
            return given.text == asked.text
    return False


def narrows(narrow: Route, wide: Route) -> bool:
    """Whether every call that `narrow` matches is matched by `wide`, too."""
    if not speaks_within(narrow.capability, wide.capability):
        return False
    given = {(condition.source, condition.path): condition.checks for condition in narrow.conditions}
    return all(
        (checks := given.get((asked.source, asked.path))) is not None and implies(checks, asked.checks)
        for asked in wide.conditions
    )


def speaks_within(narrow: CapabilityPattern | None, wide: CapabilityPattern | None) -> bool:
    """Whether every capability that `narrow` accepts is accepted by `wide`."""
    if wide is None or narrow is None:
        return wide is None
    if narrow.kind is Kind.EXACT:
        return wide.accepts(narrow.text)
    if narrow.kind is Kind.GLOB:
        return wide.kind is Kind.GLOB and wide.text in (narrow.text, "*")
    same_text = wide.kind is Kind.FUZZY and wide.text == narrow.text
    return (same_text and narrow.min_score >= wide.min_score) or (wide.kind is Kind.GLOB and wide.text == "*")
