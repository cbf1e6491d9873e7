"""Which call a mirrored copy is one of. Django does not manage the table, so the column is added by hand.

Going back leaves it: the version before writes and reads without it.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("receipts", "0003_last_run_of_retention")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE calls ADD COLUMN IF NOT EXISTS mirror_of uuid",
            migrations.RunSQL.noop,
            state_operations=[
                migrations.AddField("call", "mirror_of", models.UUIDField(null=True, verbose_name="copy of"))
            ],
        )
    ]
