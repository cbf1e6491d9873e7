"""A user who is deactivated, renamed or deleted takes their keys along: the database itself says that memory is stale."""

from django.conf import settings
from django.db import migrations

CREATE = """
CREATE FUNCTION reach_user_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE registry_snapshotversion SET version = version + 1;
    PERFORM pg_notify('reach_snapshot', '');
    RETURN NULL;
END $$;
CREATE TRIGGER reach_user_changed AFTER UPDATE OF is_active, username ON auth_user
    FOR EACH ROW WHEN (OLD.is_active IS DISTINCT FROM NEW.is_active OR OLD.username IS DISTINCT FROM NEW.username)
    EXECUTE FUNCTION reach_user_moved();
CREATE TRIGGER reach_user_deleted AFTER DELETE ON auth_user FOR EACH ROW EXECUTE FUNCTION reach_user_moved();
"""
DROP = """
DROP TRIGGER reach_user_changed ON auth_user;
DROP TRIGGER reach_user_deleted ON auth_user;
DROP FUNCTION reach_user_moved();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0002_single_rows"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations = [migrations.RunSQL(CREATE, DROP)]
