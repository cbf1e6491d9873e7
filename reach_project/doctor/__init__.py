"""The doctor: looks at everything that a reach depends on, and says how to mend what is wrong.

Meant for the moment when something is broken. Every look is bounded in time; what cannot be looked at, because what
it needs is away, is left out; a check that breaks is a finding like any other.
"""

import psycopg
from django.utils.translation import gettext as _

from reach_project.doctor import broker, database, installation, processes, registry_state
from reach_project.doctor.findings import Finding, Level, error, examined, warning, worst

__all__ = ["Finding", "Level", "examine", "worst"]


def examine() -> list[Finding]:
    """Look at everything there is. Starts nothing and changes nothing."""
    found = examined(installation.WITHOUT_A_DATABASE)
    found += examined((broker.broker,))
    try:
        with database.connected() as db:
            about_database, running = of_database(db)
    except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
        about_database, running = [database.unreachable(exc)], None
    found = about_database + found
    found += examined((installation.secret_key, processes.own_url), running)
    found += examined((processes.telemetry,))
    return found


def of_database(db: psycopg.Connection) -> tuple[list[Finding], processes.Running | None]:
    """What the database is like, and what stands in it; the processes that it knows of, when it knows any."""
    found = examined(database.OF_ANY_DATABASE, db)
    if any(finding.check == "migrations" and finding.level is Level.ERROR for finding in found):
        return [*found, not_looked_into()], None
    try:
        running = processes.running(db)
    except psycopg.Error as exc:
        return [*found, error("database", _("It cannot be read: %(reason)s") % {"reason": exc}, "")], None
    found += examined(database.OF_A_PREPARED_DATABASE, db)
    found += examined(processes.OF_THE_PROCESSES, running)
    found += examined((processes.open_calls,), db)
    found += examined((processes.maintenance,), db, running)
    found += examined(installation.OF_A_PREPARED_DATABASE)
    found += examined(registry_state.OF_A_PREPARED_DATABASE)
    return found, running


def not_looked_into() -> Finding:
    return warning(
        "contents",
        _("Processes, calls and nodes were not looked at: the database is not up to date"),
        _("Apply the migrations, then look again."),
    )
