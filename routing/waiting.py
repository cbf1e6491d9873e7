"""How many wait here for calls: for an end, or for each receipt. So many at the most, and of one key so many."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from routing.errors import Overloaded, TooManyWaiting

KINDS = ("wait", "events")


class Waiting:
    """The open waits and streams of one process."""

    def __init__(self, *, most: int, most_of_key: int, retry_after_ms: int):
        self.most, self.most_of_key, self.retry_after_ms = most, most_of_key, retry_after_ms
        self.of_key: Counter[str] = Counter()
        self.of_kind: Counter[str] = Counter()

    @contextmanager
    def admitted(self, key: str, kind: str) -> Iterator[None]:
        """Count one more. Raises TooManyWaiting where the key has enough of them, Overloaded where all have."""
        if self.of_key[key] >= self.most_of_key:
            raise TooManyWaiting(
                f"this key has {self.of_key[key]} waits and streams open here, and may have no more: close some",
                self.retry_after_ms,
            )
        if (count := self.of_kind.total()) >= self.most:
            raise Overloaded(f"{count} waits and streams are open here, and no more are taken", self.retry_after_ms)
        self.of_key[key] += 1
        self.of_kind[kind] += 1
        try:
            yield
        finally:
            self.of_kind[kind] -= 1
            self.of_key[key] -= 1
            if not self.of_key[key]:
                del self.of_key[key]
