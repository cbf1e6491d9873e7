"""Callbacks, made due by the database itself in the commit that ends their call.

A trigger, so that no way to end a call can forget it, those of the version before included, which runs on for a while.
"""

from django.db import migrations, models

CREATE_TRIGGER = """
CREATE FUNCTION make_callback_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO callbacks (call_id, url, host, caller, status, made_at, due_at, tries, log)
    VALUES (NEW.id, NEW.callback_url, coalesce(lower(substring(NEW.callback_url FROM '^[a-zA-Z]+://([^/?#]+)')), ''),
        NEW.caller, 'pending', now(), now(), 0, '[]')
    ON CONFLICT (call_id) DO NOTHING;
    PERFORM pg_notify('reach_due', 'callbacks');
    RETURN NULL;
END $$;
CREATE TRIGGER make_callback_due AFTER UPDATE ON calls FOR EACH ROW
    WHEN (NEW.callback_url IS NOT NULL AND OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL)
    EXECUTE FUNCTION make_callback_due();
"""
DROP_TRIGGER = "DROP TRIGGER make_callback_due ON calls; DROP FUNCTION make_callback_due()"


class Migration(migrations.Migration):
    dependencies = [("receipts", "0005_asynchronous_calls")]

    operations = [
        migrations.CreateModel(
            name="Callback",
            fields=[
                ("call_id", models.UUIDField(primary_key=True, serialize=False, verbose_name="call")),
                ("url", models.TextField(verbose_name="address")),
                ("host", models.TextField(verbose_name="host")),
                ("caller", models.TextField(verbose_name="caller")),
                (
                    "status",
                    models.TextField(
                        choices=[
                            ("pending", "due, or being tried again"),
                            ("delivered", "delivered"),
                            ("gone", "the receiver wants no more (410)"),
                            ("gave_up", "given up"),
                        ],
                        default="pending",
                        verbose_name="status",
                    ),
                ),
                ("made_at", models.DateTimeField(verbose_name="due since")),
                ("due_at", models.DateTimeField(verbose_name="tried next")),
                ("tries", models.IntegerField(default=0, verbose_name="tries")),
                ("settled_at", models.DateTimeField(null=True, verbose_name="settled at")),
                ("log", models.JSONField(default=list, verbose_name="what was tried")),
            ],
            options={
                "verbose_name": "callback",
                "verbose_name_plural": "callbacks",
                "db_table": "callbacks",
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "pending")), fields=["host", "due_at"], name="callbacks_pending"
                    ),
                    models.Index(
                        condition=models.Q(("status", "gave_up")), fields=["settled_at"], name="callbacks_given_up"
                    ),
                    models.Index(fields=["made_at"], name="callbacks_by_age"),
                ],
            },
        ),
        migrations.RunSQL(CREATE_TRIGGER, DROP_TRIGGER),
    ]
