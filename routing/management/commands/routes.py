"""`manage.py routes export|plan|submit`: the route table as code. `plan` exits 2 when something would change."""

import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from registry.errors import InvalidRequest, ReachError
from routing import replay, review
from routing.core.edits import Document, difference
from routing.core.review import OPEN_STATUSES, Status
from routing.impact_text import diff_lines, impact_lines
from routing.models import Impact, RouteChange, TableRevision
from routing.querysets import live_number, table_of
from routing.route_file import problems_of, read_table
from routing.route_text import dump_text, places_of
from routing.sense import unknown_services_in, warnings_in

WOULD_CHANGE = 2
LOOK_EVERY_S = 0.5


class Command(BaseCommand):
    help = "The route table as code: export it, see what a file would change and do, submit the file for review."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        export = verbs.add_parser("export", help="write a revision as YAML")
        export.add_argument("--revision", type=int, help="default: the live one")
        export.add_argument("--output", help="a file; default: the terminal")
        plan = verbs.add_parser(
            "plan", help="what a file would change and do; exits 0: nothing, 2: something, 1: mistakes"
        )
        submit = verbs.add_parser("submit", help="make the file a route change in review")
        for verb in (plan, submit):
            verb.add_argument("file")
            verb.add_argument(
                "--services-to-come", action="store_true", help="services that are not registered yet are only warnings"
            )
        submit.add_argument("--author", required=True, help="the user whose change it is; somebody else approves")
        submit.add_argument("--title")
        submit.add_argument("--description", default="")
        submit.add_argument("--auto-revert", action="store_true", help="take it back if the calls it moves fare worse")
        submit.add_argument(
            "--watch", action="store_true", help="follow it until it is published (exits 0) or ended (1)"
        )
        submit.add_argument("--timeout", type=float, help="seconds to follow it for; default: for ever")

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        getattr(self, verb)(**options)

    # --- Verbs -------------------------------------------------------------------------------------------------------

    def export(self, *, revision: int | None, output: str | None, **_: Any) -> None:
        number = live_number() if revision is None else revision
        try:
            text = f"# revision {number}\n{dump_text(table_of(number))}"
        except TableRevision.DoesNotExist as exc:
            raise CommandError(f"there is no revision {number}") from exc
        if output is None:
            self.stdout.write(text, ending="")
        else:
            Path(output).write_text(text, encoding="utf-8")

    def plan(self, *, file: str, services_to_come: bool, **_: Any) -> None:
        live = live_number()
        document = self.read(file, live, services_to_come=services_to_come)
        if not self.show_difference(document, live):
            return
        report = replay.replayed(table_of(live), document, live, replay.load_tables(), tell=self.progress)
        self.show(impact_lines(report))
        sys.exit(WOULD_CHANGE)

    def submit(
        self,
        *,
        file: str,
        services_to_come: bool,
        author: str,
        title: str | None,
        description: str,
        auto_revert: bool,
        watch: bool,
        timeout: float | None,
        **_: Any,
    ) -> None:
        live = live_number()
        document = self.read(file, live, services_to_come=services_to_come)
        if not self.show_difference(document, live):
            return
        try:
            change = review.propose(
                author=self.person(author),
                title=title or f"{Path(file).name} was submitted",
                description=description,
                base_revision=live,
                auto_revert=auto_revert,
                **document,
            )
            review.submit(change.pk, by=change.author)
        except ReachError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(f"route change {change.pk} is in review")
        if watch:
            self.follow(change.pk, timeout)

    # --- What they are made of ---------------------------------------------------------------------------------------

    def read(self, file: str, live: int, *, services_to_come: bool) -> Document:
        """The file's table; its warnings are written to stderr. Ends the command with every mistake.

        What is live already may go on naming a service that is gone.
        """
        name = Path(file).name
        try:
            content = Path(file).read_bytes()
        except OSError as exc:
            raise CommandError(f"{file}: cannot be read: {exc.strerror}") from exc
        try:
            document = read_table(content, name)
        except InvalidRequest as exc:
            raise CommandError("\n".join(problems_of(exc, content, name))) from exc
        lines, _ids = places_of(content.decode("utf-8-sig"))
        mistakes = [] if services_to_come else unknown_services_in(document, table_of(live))
        if mistakes:
            told = [f"{name}:{lines.get(one.path, 1)}: route {one.route}: {one.message}" for one in mistakes]
            raise CommandError("\n".join(told))
        for warned in warnings_in(document):
            self.stderr.write(f"{name}:{lines.get(warned.path, 1)}: warning: route {warned.route}: {warned.message}")
        return document

    def show_difference(self, document: Document, live: int) -> bool:
        """Write what differs from the live table; whether anything does."""
        before = table_of(live)
        if not any(difference(before, document).values()):
            self.stdout.write(f"nothing would change: revision {live} reads like the file")
            return False
        self.show(diff_lines(before, document))
        return True

    def show(self, lines: Any) -> None:
        for line in lines:
            self.stdout.write(line)

    def progress(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            self.stderr.write(f"\rreplayed {done} of {total} calls", ending="" if done < total else "\n")

    def person(self, username: str) -> User:
        user = User.objects.filter(username=username, is_active=True).first()
        if user is None:
            raise CommandError(f"there is no user {username}; make one with manage.py reach_user create")
        return user

    def follow(self, change_id: int, timeout_s: float | None) -> None:
        """Say what becomes of a change: its impact, each step, and its end."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        told, seen = "", 0
        while until is None or time.monotonic() < until:
            change = RouteChange.objects.get(pk=change_id)
            known = Impact.objects.filter(change=change, covers=change.content_digest).first()
            if known is not None and known.report is not None and known.digest != told:
                told = known.digest
                self.show(impact_lines(known.report))
            events = list(review.history(change))
            for event in events[seen:]:
                said = event.detail.get("comment") or event.detail.get("reason") or ""
                self.stdout.write(
                    " ".join(filter(None, [event.actor, event.action.removeprefix("route_change."), said]))
                )
            seen = len(events)
            if change.status not in OPEN_STATUSES:
                if change.status != Status.PUBLISHED:
                    raise CommandError(f"route change {change_id} was {change.status}")
                self.stdout.write(f"route change {change_id} is revision {change.published_revision_id}")
                return
            time.sleep(LOOK_EVERY_S)
        raise CommandError(f"route change {change_id} is still {change.status} after {timeout_s:g} s")
