"""Lease rules: how long a registration lasts, and what the reach's own absence does to it."""

from datetime import datetime, timedelta

SWEEPER_MAY_PAUSE = timedelta(seconds=3)
"""The sweeper runs every second; a longer silence means that the reach was away and heard no heartbeats."""

TTL_S, HEARTBEATS_PER_LEASE = 45.0, 3
"""A node may miss two heartbeats and is still listed."""


def lease_terms(ttl_s: float | None, heartbeat_interval_s: float | None) -> tuple[float, float]:
    """Lease and heartbeat interval in seconds; what was not declared follows from what was."""
    if ttl_s is None:
        ttl_s = max(TTL_S, HEARTBEATS_PER_LEASE * (heartbeat_interval_s or 0))
    if heartbeat_interval_s is None:
        heartbeat_interval_s = min(TTL_S, ttl_s) / HEARTBEATS_PER_LEASE
    return ttl_s, heartbeat_interval_s


def absence(last_sweep: datetime | None, now: datetime, *, heard: bool = True) -> timedelta:
    """By how much leases must be extended, because nobody was there to hear heartbeats.

    `heard` is False while the sweeper works and no server does.
    """
    if last_sweep is None or now <= last_sweep or (heard and now - last_sweep <= SWEEPER_MAY_PAUSE):
        return timedelta()
    return now - last_sweep
