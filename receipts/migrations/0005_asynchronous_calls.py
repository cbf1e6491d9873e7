"""What an asynchronous call has beside others, and the index of those that wait.

Django does not manage the table of calls, so its columns are added by hand. Going back leaves them: the version before
writes and reads without them.
"""

from django.db import migrations, models

COLUMNS = {
    "async_rank": models.SmallIntegerField(null=True, verbose_name="rank among those that wait"),
    "callback_url": models.TextField(null=True, verbose_name="callback"),
    "redispatch_of": models.UUIDField(null=True, verbose_name="again, after"),
}


class Migration(migrations.Migration):
    dependencies = [("receipts", "0004_copies_of_calls")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE calls ADD COLUMN IF NOT EXISTS async_rank smallint,"
            " ADD COLUMN IF NOT EXISTS callback_url text, ADD COLUMN IF NOT EXISTS redispatch_of uuid",
            migrations.RunSQL.noop,
            state_operations=[migrations.AddField("call", name, field) for name, field in COLUMNS.items()],
        ),
        migrations.CreateModel(
            name="WaitingCall",
            fields=[
                ("call_id", models.UUIDField(primary_key=True, serialize=False, verbose_name="call")),
                ("capability", models.TextField(verbose_name="capability")),
                ("async_rank", models.SmallIntegerField(verbose_name="rank")),
                ("due_at", models.DateTimeField(verbose_name="due at")),
                ("deadline", models.DateTimeField(verbose_name="deadline")),
            ],
            options={
                "verbose_name": "waiting call",
                "verbose_name_plural": "waiting calls",
                "db_table": "waiting_calls",
                "indexes": [
                    models.Index(
                        fields=["capability", "async_rank", "due_at", "call_id"], name="waiting_calls_in_turn"
                    ),
                    models.Index(fields=["deadline"], name="waiting_calls_by_deadline"),
                ],
            },
        ),
        # rows come and go, so that many are dead soon: cleaned up long before a fifth of the table is
        migrations.RunSQL(
            "ALTER TABLE waiting_calls SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500)",
            migrations.RunSQL.noop,
        ),
    ]
