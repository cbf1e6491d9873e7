"""Failed calls are looked up by what they asked for and who had them: only those are in this index."""

from django.db import migrations

from receipts.partitions import index_concurrently


def build(apps, schema_editor):
    index_concurrently(
        "calls",
        "calls_dead",
        "(capability, coalesce(service_id, ''), id) WHERE status IN ('failed', 'timed_out', 'rejected')",
    )


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("receipts", "0010_bulk_redispatches")]

    operations = [
        migrations.RunPython(build, migrations.RunPython.noop),
    ]
