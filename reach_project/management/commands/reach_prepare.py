from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from reach_project import prepare


class Command(BaseCommand):
    help = (
        "Bring the database up to this code (migrations, partitions), and make the first administrator and operator"
        " key. Run it once before each new version is rolled out; running it again does nothing."
    )

    def handle(self, *args: object, **options: object) -> None:
        path = settings.REACH_HOME / "credentials.json"
        url = f"http://{settings.REACH_HOST}:{settings.REACH_PORT}"
        try:
            fresh = prepare.prepared(self.say, path, url)
        except prepare.CannotStart as exc:
            raise CommandError(str(exc)) from exc
        if fresh:
            self.say(f"  admin         user {fresh.admin_username}  password {fresh.admin_password}")
            self.say(f"  operator key  {fresh.operator_key}")
            self.say(f"  Shown this once; kept in {path}")
        self.say("The database is prepared.")

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
