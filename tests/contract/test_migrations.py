"""The models and their migrations agree, and the processes that run meanwhile live through each."""

import pytest
from django.conf import settings
from django.core.management import call_command
from django_migration_linter import MigrationLinter
from django_migration_linter.sql_analyser import PostgresqlAnalyser, analyse_sql_statements

pytestmark = pytest.mark.django_db


def test_no_migration_is_missing():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize("table", ["calls", "receipts"])
def test_the_unmanaged_models_have_the_columns_of_their_tables(table: str):
    from django.apps import apps
    from django.db import connection

    model = next(model for model in apps.get_app_config("receipts").get_models() if model._meta.db_table == table)
    with connection.cursor() as cursor:
        described = {
            column.name: column.null_ok for column in connection.introspection.get_table_description(cursor, table)
        }
    fields = {field.column: field.null for field in model._meta.concrete_fields if field.column}
    assert described.keys() == fields.keys()
    assert {name for name, null in described.items() if null} == {name for name, null in fields.items() if null}


BEFORE_RELEASES = {
    "registry": "0004_audit_trail_of_a_target",
    "receipts": "0002_partitioned_tables",
    "routing": "0001_initial",
}
"""The last migration of each app that nobody's running processes had to live through."""


def landed_before() -> list[str]:
    return [
        path.stem
        for app, last in BEFORE_RELEASES.items()
        for path in (settings.BASE_DIR / app / "migrations").glob("0*.py")
        if path.stem <= last
    ]


def test_the_processes_of_the_version_before_survive_every_migration(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/deployment.md, "Migrations": additions only, large indexes concurrently."""
    linter = MigrationLinter(
        str(settings.BASE_DIR),
        include_apps=list(BEFORE_RELEASES),
        ignore_name=landed_before(),
        no_cache=True,
        all_warnings_as_errors=True,
    )
    linter.lint_all_migrations()
    assert linter.nb_total > 0 and not linter.has_errors, capsys.readouterr().out


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        pytest.param(
            'ALTER TABLE "t" ADD COLUMN "c" integer NOT NULL', "NOT_NULL", id="the old code inserts without it"
        ),
        pytest.param('ALTER TABLE "t" DROP COLUMN "c"', "DROP_COLUMN", id="the old code selects it"),
        pytest.param('ALTER TABLE "t" RENAME COLUMN "c" TO "d"', "RENAME_COLUMN", id="likewise"),
        pytest.param('ALTER TABLE "t" RENAME TO "u"', "RENAME_TABLE", id="the whole table"),
        pytest.param('CREATE INDEX "i" ON "t" ("c")', "CREATE_INDEX", id="writers wait for as long as it is built"),
    ],
)
def test_what_would_break_them_is_found(sql: str, code: str) -> None:
    errors, _ignored, warnings = analyse_sql_statements(PostgresqlAnalyser, [sql])
    assert code in {issue.code for issue in [*errors, *warnings]}


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param('ALTER TABLE "t" ADD COLUMN "c" integer DEFAULT 0 NOT NULL', id="a default of the database"),
        pytest.param('ALTER TABLE "t" ADD COLUMN "c" integer NULL', id="nullable"),
        pytest.param('CREATE INDEX CONCURRENTLY "i" ON "t" ("c")', id="built beside the writers"),
    ],
)
def test_what_they_do_not_notice_passes(sql: str) -> None:
    errors, _ignored, warnings = analyse_sql_statements(PostgresqlAnalyser, [sql])
    assert not errors and not warnings
