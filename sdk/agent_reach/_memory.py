"""What has been done lately, so that it is answered and not done again."""

from collections import OrderedDict
from collections.abc import Hashable

from agent_reach._wire import Ending


class Memory:
    """The latest endings by key. The oldest go first when there are too many, or too many bytes."""

    def __init__(self, *, max_entries: int = 10_000, max_bytes: int = 32 * 1024 * 1024):
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._endings: OrderedDict[Hashable, Ending] = OrderedDict()
        self._bytes = 0

    def recall(self, key: Hashable) -> Ending | None:
        return self._endings.get(key)

    def remember(self, key: Hashable, ending: Ending) -> None:
        if (former := self._endings.pop(key, None)) is not None:
            self._bytes -= len(former.body)
        self._endings[key] = ending
        self._bytes += len(ending.body)
        while len(self._endings) > 1 and (len(self._endings) > self._max_entries or self._bytes > self._max_bytes):
            _key, oldest = self._endings.popitem(last=False)
            self._bytes -= len(oldest.body)
