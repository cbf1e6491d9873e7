"""One counter says that what dispatchers hold in memory has moved; NOTIFY wakes them, a poll catches what it missed.

Whoever changes services, nodes, keys or routes calls `bump()` last in its transaction, and says what it has changed:
then dispatchers read no more than that. A version of which nobody said so (an older release, a trigger) is a gap, and
a gap makes them read everything. Dispatchers sign up in `followers`; a view that has just changed something calls
`wait_until_followed(version)` after its commit, so that the process that answered also knows what it answered.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum

from django.db import connection

from registry.database import give_back

CHANNEL = "reach_snapshot"
KEPT = 1000
"""So many versions back it is known what they changed; a dispatcher further behind reads everything."""

Follower = Callable[[int, float], bool]
followers: list[Follower] = []
"""Each blocks its thread until its process holds that version or so many seconds have passed."""


class Part(StrEnum):
    """What is read whole when it has moved, and alone."""

    KEYS = "keys"
    ROUTES = "routes"


BUMP = """
WITH moved AS (
    INSERT INTO registry_snapshotversion AS row (id, version) VALUES (1, 1)
    ON CONFLICT (id) DO UPDATE SET version = row.version + 1 RETURNING version
), noted AS (
    INSERT INTO registry_snapshotchange (version, nodes, parts)
    SELECT version, %(nodes)s::bigint[], %(parts)s::text[] FROM moved WHERE %(nodes)s::bigint[] IS NOT NULL
    ON CONFLICT (version) DO UPDATE SET nodes = EXCLUDED.nodes, parts = EXCLUDED.parts
), forgotten AS (
    DELETE FROM registry_snapshotchange WHERE version <= (SELECT version FROM moved) - %(kept)s
)
SELECT version, pg_notify(%(channel)s, version::text) FROM moved
"""


def bump(nodes: Iterable[int] | None = None, parts: Iterable[Part] = ()) -> int:
    """Count one change and wake every dispatcher when the surrounding transaction commits. Returns the new version.

    `nodes`: the primary keys of those that have changed, come or gone, with all that they declare. Without either
    argument anything may have moved. Call it last in the transaction: the counter's row lock is held until the commit.
    """
    whole = [part.value for part in parts]
    told = {"nodes": list(nodes) if nodes is not None else [] if whole else None, "parts": whole}
    with connection.cursor() as cursor:
        cursor.execute(BUMP, told | {"kept": KEPT, "channel": CHANNEL})
        version, _told = cursor.fetchone()
    return version


def wait_until_followed(version: int, timeout_s: float = 2.0) -> None:
    """Give this process's dispatchers the time to load `version`; after `timeout_s` go on without them."""
    if followers:
        give_back()
    for follower in followers:
        follower(version, timeout_s)
