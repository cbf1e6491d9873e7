"""The rows that are there once: the snapshot's version, and the key that encrypts where no SECRET_KEY is given."""

import secrets

from django.db import migrations


def insert(apps, schema_editor):
    apps.get_model("registry", "SnapshotVersion").objects.get_or_create(pk=1, defaults={"version": 0})
    key = {"value": secrets.token_urlsafe(48)}
    apps.get_model("registry", "InstallationKey").objects.get_or_create(pk=1, defaults=key)


class Migration(migrations.Migration):
    dependencies = [("registry", "0001_initial")]
    operations = [migrations.RunPython(insert, migrations.RunPython.noop)]
