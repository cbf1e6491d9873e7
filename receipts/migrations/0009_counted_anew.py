"""Calls are counted by four things more, so the history is counted once more: in the background, an hour at a time."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("receipts", "0008_filters_of_calls")]

    operations = [
        migrations.RunSQL("TRUNCATE receipts_callcount, receipts_countedminute", migrations.RunSQL.noop),
    ]
