"""What a route asks of a call besides its capability: a place in the envelope, and checks of the value found there.

Types are strict (`true` is not 1, "5" is not 5, 5 is 5.0), and a missing place satisfies only `exists: false`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final

from receipts.core.envelope import CallEnvelope


class Missing(Enum):
    """The value of a place that the envelope does not have."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


class Source(StrEnum):
    """The part of the envelope that a condition looks at."""

    INPUT = "input"
    LABELS = "labels"
    CALLER = "caller"
    URGENCY = "urgency"
    TAGS = "tags"


class Operator(StrEnum):
    """How a value is tested."""

    EQ = "eq"
    NE = "ne"
    IN = "in"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    EXISTS = "exists"
    PREFIX = "prefix"
    PATTERN = "pattern"
    INCLUDE = "include"
    """Of tags only: the call carries all of these."""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(left: Any, right: Any) -> bool:
    """Equality of JSON scalars: numbers by value, everything else by type and value."""
    if is_number(left):
        return is_number(right) and left == right
    return type(left) is type(right) and left == right


PASSES: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQ: same,
    Operator.NE: lambda value, operand: not same(value, operand),
    Operator.IN: lambda value, operand: any(same(value, option) for option in operand),
    Operator.GT: lambda value, operand: is_number(value) and value > operand,
    Operator.GTE: lambda value, operand: is_number(value) and value >= operand,
    Operator.LT: lambda value, operand: is_number(value) and value < operand,
    Operator.LTE: lambda value, operand: is_number(value) and value <= operand,
    Operator.EXISTS: lambda _value, operand: operand,
    Operator.PREFIX: lambda value, operand: isinstance(value, str) and value.startswith(operand),
    Operator.PATTERN: lambda value, operand: isinstance(value, str) and operand.search(value) is not None,
    Operator.INCLUDE: lambda value, operand: operand <= value,
}
"""Each is asked only about a value that is there; `exists: false` is then refused."""


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One operator with its operand; `text` is the operand as people read it (a pattern is held compiled)."""

    operator: Operator
    operand: Any
    text: str

    def passes(self, value: Any) -> bool:
        if value is MISSING:
            return self.operator is Operator.EXISTS and not self.operand
        return PASSES[self.operator](value, self.operand)

    def __str__(self) -> str:
        return f"{self.operator} {self.text}"


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """All `checks` must pass at one place: `path` within `source` (empty for caller, urgency and tags)."""

    source: Source
    path: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def key(self) -> str:
        """The place as routes name it: `input.customer.tier`."""
        return ".".join((self.source, *self.path))

    def holds(self, envelope: CallEnvelope) -> bool:
        value = value_at(envelope, self.source, self.path)
        return all(check.passes(value) for check in self.checks)

    def refusal(self, envelope: CallEnvelope) -> str | None:
        """The sentence that says which check fails; None when all pass. Never shows the caller's value."""
        value = value_at(envelope, self.source, self.path)
        for check in self.checks:
            if not check.passes(value):
                return f"{self.key} is missing" if value is MISSING else f"{self.key} fails {check}"
        return None


def value_at(envelope: CallEnvelope, source: Source, path: tuple[str, ...]) -> Any:
    """The value at one place of the envelope, or MISSING. Paths lead through objects, not into lists."""
    match source:
        case Source.INPUT:
            value = envelope.payload
            for name in path:
                if not isinstance(value, dict) or name not in value:
                    return MISSING
                value = value[name]
            return value
        case Source.LABELS:
            return envelope.labels.get(path[0], MISSING)
        case Source.CALLER:
            return envelope.caller
        case Source.URGENCY:
            return str(envelope.urgency)
        case Source.TAGS:
            return envelope.tags
