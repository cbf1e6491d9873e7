"""What may not be shown of the calls of a capability, as its providers' schemas say today."""

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from registry.core.sensitive import MARK, Path, sensitive_paths
from registry.models import Declaration

NOWHERE: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class Masks:
    """Places in payload and output."""

    payload: frozenset[Path] = NOWHERE
    output: frozenset[Path] = NOWHERE


def masks_of(capabilities: Collection[str]) -> Masks:
    """All that anyone who declares one of these marks: whoever took a call may have left, or declare otherwise now."""
    marked = (
        Declaration.objects.filter(capability__in=capabilities)
        .annotate(takes=Cast("input_schema", TextField()), gives=Cast("output_schema", TextField()))
        .filter(Q(takes__contains=MARK) | Q(gives__contains=MARK))
        .values_list("input_schema", "output_schema")
        .distinct()
    )
    payload, output = NOWHERE, NOWHERE
    for takes, gives in marked:
        payload |= sensitive_paths(takes)
        output |= sensitive_paths(gives)
    return Masks(payload, output)
