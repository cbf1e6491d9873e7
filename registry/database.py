"""Connection parameters for code that speaks to PostgreSQL without the ORM (journal, snapshot, engine)."""

from django.db import connection
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

POOL_BACKOFF_S = 1.0
"""How long (s) a pool goes on trying to connect by itself, resting ever longer; then whoever asks makes it try at once.
Its own 300 s would mean that after a minute's absence of the database a pool looks for it a minute later."""

LIBPQ_KNOWS = {option.keyword.decode() for option in Conninfo.get_defaults()}
"""Every option that DATABASE_URL may name: certificates, keepalives, time-outs."""


def conninfo(application_name: str) -> str:
    """The libpq connection string of Django's default database, read when it is needed (tests swap the database)."""
    given = connection.get_connection_params()
    wanted = {name: value for name, value in given.items() if name in LIBPQ_KNOWS and value not in (None, "")}
    return make_conninfo(**wanted | {"application_name": application_name})


def give_back() -> None:
    """Give this thread's session back to the pool, before a wait for something else. A transaction keeps its own."""
    if not connection.in_atomic_block:
        connection.close()
