"""`manage.py reach_key create --service S --scopes register,dispatch`: prints the key, and nothing else."""

from argparse import ArgumentParser
from datetime import datetime
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from registry import services
from registry.errors import ReachError
from registry.serializers import Name


class Command(BaseCommand):
    help = "Make an API key for a service; prints the key alone. It is shown this once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        create = parser.add_subparsers(dest="verb", required=True).add_parser("create")
        create.add_argument("--service", required=True, help="service_id; made when it is new")
        create.add_argument("--scopes", required=True, help="comma list of register, dispatch, observe, operate")
        create.add_argument("--expires-at", type=moment, help="RFC 3339, as 2030-01-31T00:00:00Z")

    def handle(self, *args: Any, service: str, scopes: str, expires_at: datetime | None, **options: Any) -> None:
        try:
            msgspec.convert(service, Name)
        except msgspec.ValidationError:
            raise CommandError(f"--service {service!r} must match ^[a-z0-9][a-z0-9_.-]{{0,62}}$") from None
        wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
        try:
            key = services.create_service_key(service, wanted, expires_at=expires_at, by="manage.py")
        except ReachError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(key.text)


def moment(text: str) -> datetime:
    """RFC 3339; without a zone it is UTC."""
    found = parse_datetime(text)
    if found is None:
        raise ValueError(text)
    return found if timezone.is_aware(found) else timezone.make_aware(found)
