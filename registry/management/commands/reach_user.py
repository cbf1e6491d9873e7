"""`manage.py reach_user create NAME --groups operator,approver --with-key`: prints JSON with password and key."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from registry import services
from registry.errors import ReachError


class Command(BaseCommand):
    help = "Make an operator who can log in; prints JSON with the password (and key), shown this once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        create = parser.add_subparsers(dest="verb", required=True).add_parser("create")
        create.add_argument("username")
        create.add_argument("--groups", default="viewer", help=f"comma list of {', '.join(services.GROUPS)}")
        create.add_argument("--with-key", action="store_true", help="make an API key too")

    def handle(self, *args: Any, username: str, groups: str, with_key: bool, **options: Any) -> None:
        wanted = [group.strip() for group in groups.split(",") if group.strip()]
        try:
            with transaction.atomic():
                user, password = services.create_user(username, wanted, by="manage.py")
                key = None
                if with_key:
                    scopes = services.user_key_scopes(wanted)
                    key = services.create_user_key(user, scopes, by="manage.py").text
        except ReachError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(json.dumps({"username": username, "password": password, "key": key}))
