"""One counter says that what dispatchers hold in memory has moved; NOTIFY wakes them, a poll catches what it missed.

Whoever changes services, nodes, keys or routes calls `bump()` last in its transaction. Dispatchers sign up in
`followers`; a view that has just changed something calls `wait_until_followed(version)` after its commit, so that
the process that answered also knows what it answered.
"""

from collections.abc import Callable

from django.db import connection

from registry.database import give_back

CHANNEL = "reach_snapshot"

Follower = Callable[[int, float], bool]
followers: list[Follower] = []
"""Each blocks its thread until its process holds that version or so many seconds have passed."""


def bump() -> int:
    """Count one change and wake every dispatcher when the surrounding transaction commits. Returns the new version.

    Call it last in the transaction: the counter's row lock is held until the commit.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO registry_snapshotversion AS row (id, version) VALUES (1, 1)"
            " ON CONFLICT (id) DO UPDATE SET version = row.version + 1 RETURNING version"
        )
        (version,) = cursor.fetchone()
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, str(version)])
    return version


def wait_until_followed(version: int, timeout_s: float = 2.0) -> None:
    """Give this process's dispatchers the time to load `version`; after `timeout_s` go on without them."""
    if followers:
        give_back()
    for follower in followers:
        follower(version, timeout_s)
