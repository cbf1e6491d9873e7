"""Connection parameters for code that speaks to PostgreSQL without the ORM (journal, snapshot, engine)."""

from django.db import connection
from psycopg.conninfo import make_conninfo


def conninfo(application_name: str) -> str:
    """The libpq connection string of Django's default database, read when it is needed (tests swap the database)."""
    parameters = dict(connection.get_connection_params())
    wanted = {
        k: v for k, v in parameters.items() if k in {"dbname", "user", "password", "host", "port", "sslmode"} and v
    }
    return make_conninfo(**wanted, application_name=application_name)


def give_back() -> None:
    """Give this thread's session back to the pool, before a wait for something else. A transaction keeps its own."""
    if not connection.in_atomic_block:
        connection.close()
