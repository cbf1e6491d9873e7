"""The audit trail: what operators did."""

from typing import Any

from registry.models import AuditEvent


def audit(actor: str, action: str, target: str, **detail: Any) -> None:
    """Write down what an operator did, inside the caller's transaction."""
    AuditEvent.objects.create(actor=actor, action=action, target=target, detail=detail)
