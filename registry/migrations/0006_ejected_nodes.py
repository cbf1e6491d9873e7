from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0005_probes_and_history"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="ejected_until",
            field=models.DateTimeField(blank=True, null=True, verbose_name="ejected until"),
        ),
        migrations.AddField(
            model_name="node",
            name="ejected_since",
            field=models.DateTimeField(blank=True, null=True, verbose_name="ejected since"),
        ),
        migrations.AddField(
            model_name="node",
            name="ejected_reason",
            field=models.TextField(blank=True, null=True, verbose_name="why ejected"),
        ),
    ]
