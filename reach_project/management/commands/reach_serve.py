from django.core.management.base import BaseCommand, CommandError

from reach_project import runtime
from reach_project.prepare import CannotStart


class Command(BaseCommand):
    help = "Serve: the all-in-one, or the part that REACH_ROLE names. This is what `make run` runs."

    def handle(self, *args: object, **options: object) -> None:
        try:
            runtime.serve(self.say)
        except CannotStart as exc:
            raise CommandError(str(exc)) from exc

    def say(self, text: str) -> None:
        """One line at once, also where nobody watches a terminal: a service manager shows what was printed."""
        self.stdout.write(text)
        self.stdout.flush()
