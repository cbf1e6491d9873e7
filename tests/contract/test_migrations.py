"""The models and their migrations agree."""

import pytest
from django.core.management import call_command

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
