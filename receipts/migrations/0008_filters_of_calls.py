"""What lists of calls are filtered by, each with the newest first: built while calls are written."""

from django.db import migrations

from receipts.partitions import index_concurrently

INDEXES = {
    "calls_caller": "(caller, id)",
    "calls_capability": "(capability, id)",
    "calls_service": "(service_id, id) WHERE service_id IS NOT NULL",
    "calls_unsuccessful": "(status, id) WHERE status NOT IN ('accepted', 'running', 'succeeded')",
}


def build(apps, schema_editor):
    for name, columns in INDEXES.items():
        index_concurrently("calls", name, columns)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("receipts", "0007_statistics")]

    operations = [
        migrations.RunPython(build, migrations.RunPython.noop),
    ]
