"""Is Redis, where there is one, a broker that loses nothing and answers fast?"""

import time
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.translation import gettext as _

from reach_project.doctor.findings import Finding, Findings, error, ok, warning

OLDEST_VERSION = (6, 2)
TIMEOUT_S = 2.0
PINGS = 3
SLOW_MS = 20.0


def address() -> str:
    """Where Redis is, without its password."""
    parts = urlsplit(settings.REDIS_URL)
    return f"{parts.hostname or parts.path}:{parts.port or 6379}" if parts.hostname else parts.path


def broker() -> Findings:
    if not settings.REDIS_URL:
        if settings.REACH_ROLE != "all":
            yield error(
                "redis",
                _("REACH_ROLE=%(role)s is one of several processes, and they have no Redis in common")
                % {"role": settings.REACH_ROLE},
                _("Set REDIS_URL, the same for every process."),
            )
        return
    import redis  # a tenth of a start, and most installations need none

    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        ) as client:
            facts = client.info()
            took = []
            for _n in range(PINGS):
                started = time.monotonic()
                client.ping()
                took.append((time.monotonic() - started) * 1000)
    except (redis.RedisError, OSError) as exc:
        yield error(
            "redis",
            _("Redis at %(address)s does not answer: %(reason)s")
            % {"address": address(), "reason": " ".join(str(exc).split())},
            _("Start Redis, or correct REDIS_URL. Calls go on without it; probes and sweeps wait."),
        )
        return
    yield from redis_found(facts, min(took))


def redis_found(facts: dict[str, Any], ping_ms: float) -> list[Finding]:
    """Judge what INFO says, and the best of a few pings."""
    text = str(facts.get("valkey_version") or facts.get("redis_version", "0"))
    number = tuple(int(part) for part in str(facts.get("redis_version", "0")).split(".")[:2] if part.isdigit())
    about = {"address": address(), "version": text, "ms": f"{ping_ms:.1f}"}
    found = []
    if number < OLDEST_VERSION:
        found.append(
            warning(
                "redis",
                _("Redis %(version)s at %(address)s is old: 6.2 or newer is tried") % about,
                _("Upgrade it; Valkey works too."),
            )
        )
    else:
        found.append(ok("redis", _("Redis %(version)s answers at %(address)s") % about))
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            error(
                "redis memory",
                _("Redis throws messages away when its memory is full (maxmemory-policy %(policy)s)")
                % {"policy": policy},
                _("CONFIG SET maxmemory-policy noeviction, and the same in redis.conf."),
            )
        )
    if ping_ms > SLOW_MS:
        found.append(
            warning(
                "redis latency",
                _("Redis takes %(ms)s ms to answer a ping") % about,
                _("Put it near the processes; look for slow commands with SLOWLOG GET."),
            )
        )
    return found
