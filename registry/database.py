"""Connection parameters for code that speaks to PostgreSQL without the ORM (journal, snapshot, engine)."""

from django.db import connection
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from psycopg_pool.base import AttemptWithBackoff

LIBPQ_KNOWS = {option.keyword.decode() for option in Conninfo.get_defaults()}
"""Every option that DATABASE_URL may name: certificates, keepalives, time-outs."""


def let_pools_try_steadily() -> None:
    """Have the pools of this process look for a database that is away once a second.

    Left alone they rest twice as long each time: after a minute they come up to a minute late, which no lease of
    seconds survives. There is no option for it; with a short `reconnect_timeout` those who wait may wait in vain.
    """
    AttemptWithBackoff.DELAY_BACKOFF = 1.0


def conninfo(application_name: str) -> str:
    """The libpq connection string of Django's default database, read when it is needed (tests swap the database)."""
    given = connection.get_connection_params()
    wanted = {name: value for name, value in given.items() if name in LIBPQ_KNOWS and value not in (None, "")}
    return make_conninfo(**wanted | {"application_name": application_name})


def give_back() -> None:
    """Give this thread's session back to the pool, before a wait for something else. A transaction keeps its own."""
    if not connection.in_atomic_block:
        connection.close()
