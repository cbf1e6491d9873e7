#!/usr/bin/env python3
"""Django's command line; without a DATABASE_URL the embedded PostgreSQL is up while a command needs it."""

import contextlib
import gc
import os
import sys

NEEDS_NO_DATABASE = {
    "help",
    "version",
    "check",
    "compilemessages",
    "findstatic",
    "makemessages",
    "reach_configuration",
    "reach_doctor",  # says itself what is wrong with the database
    "reach_serve",  # starts it itself, after it has made sure of its port
    "spectacular",
}


def needs_database(arguments: list[str]) -> bool:
    """Whether the command of these arguments speaks to the database."""
    if not arguments or {"--help", "-h", "--version"} & set(arguments):
        return False
    return arguments[0] not in NEEDS_NO_DATABASE


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "reach_project.settings")
    gc.disable()  # what is imported stays: to look through it for garbage again and again is a tenth of the start
    import django
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from reach_project import embedded

    try:
        has_database_of_its_own = not settings.DATABASE_URL
        django.setup()
    except ImproperlyConfigured as exc:
        sys.exit(f"{exc}")
    gc.freeze()
    gc.enable()
    with contextlib.ExitStack() as stack:
        if needs_database(sys.argv[1:]) and has_database_of_its_own:
            try:
                stack.enter_context(embedded.running(settings.REACH_HOME))
            except embedded.EmbeddedError as exc:
                sys.exit(f"{exc}")
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
