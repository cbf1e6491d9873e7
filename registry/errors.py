"""What can go wrong in the registry. Kinds carry facts; `reach_project.problems` turns them into HTTP."""

from collections.abc import Sequence
from typing import Any


class ReachError(Exception):
    """Root of every error that Agent-Reach raises on purpose."""


class RegistryError(ReachError):
    """Root of this app's errors."""


class InvalidRequest(ReachError):
    """The request itself is malformed; `errors` names each place as a JSON pointer."""

    def __init__(self, detail: str, errors: Sequence[dict[str, Any]] = ()):
        super().__init__(detail)
        self.errors = list(errors)


class Unauthenticated(RegistryError):
    """No key, or one that nobody knows (any more)."""


class Forbidden(RegistryError):
    """The key or user is known and may not do this."""


class NotFound(RegistryError):
    """No such thing under that name."""


class Conflict(RegistryError):
    """The thing is not in a state that allows this."""


class PayloadTooLarge(RegistryError):
    """The body is larger than the reach takes."""


class UnsupportedMediaType(RegistryError):
    """The body is not JSON."""


class Unavailable(RegistryError):
    """The reach's own database is away: nothing was accepted."""

    def __init__(
        self,
        detail: str = "the reach's database is away; nothing was accepted",
        retry_after_ms: int = 1000,
        call_id: str | None = None,
    ):
        super().__init__(detail)
        self.retry_after_ms, self.call_id = retry_after_ms, call_id
