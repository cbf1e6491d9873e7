"""The partitioned tables, which Django cannot declare, and their first partitions.

Both are range-partitioned on the UUIDv7 of the call: a partitioned table needs the partition key in every unique key,
and the id already holds the time. No foreign key leads into a partition, so that one can be dropped at any time.
"""

from datetime import UTC, datetime

from django.conf import settings
from django.db import migrations

from receipts.partitions import ensure_partitions

CREATE = """
CREATE TABLE calls (
    id uuid PRIMARY KEY,
    trace_id text NOT NULL,
    parent_call_id uuid,
    depth smallint NOT NULL,
    caller text NOT NULL,
    origin_caller text NOT NULL,
    capability text NOT NULL,
    status text NOT NULL,
    route_id text,
    table_revision integer NOT NULL,
    service_id text,
    node_id text,
    attempts integer NOT NULL,
    seq integer NOT NULL,
    accepted_at timestamptz NOT NULL,
    first_forwarded_at timestamptz,
    ended_at timestamptz,
    deadline timestamptz NOT NULL,
    idempotent boolean NOT NULL,
    request text NOT NULL,
    request_digest text NOT NULL,
    payload_digest text NOT NULL,
    output text,
    error text,
    labels jsonb,
    idempotency_key text,
    session_id text,
    owner uuid NOT NULL,
    epoch integer NOT NULL,
    step integer NOT NULL,
    due_at timestamptz,
    watchers uuid[],
    CONSTRAINT an_ended_call_has_an_ending CHECK (
        (ended_at IS NULL) = (status IN ('accepted', 'running'))
    )
) PARTITION BY RANGE (id);
CREATE TABLE calls_default PARTITION OF calls DEFAULT;
CREATE INDEX calls_open ON calls (owner) WHERE ended_at IS NULL;
CREATE INDEX calls_trace ON calls (trace_id);
CREATE INDEX calls_labels ON calls USING gin (labels) WHERE labels IS NOT NULL;
CREATE INDEX calls_idempotency_key ON calls (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX calls_session ON calls (session_id) WHERE session_id IS NOT NULL;

CREATE TABLE receipts (
    call_id uuid NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    attempt integer,
    service_id text,
    node_id text,
    at timestamptz NOT NULL,
    detail text,
    PRIMARY KEY (call_id, seq)
) PARTITION BY RANGE (call_id);
CREATE TABLE receipts_default PARTITION OF receipts DEFAULT;
"""


def make_partitions(apps, schema_editor):
    ensure_partitions(
        datetime.now(UTC), hours=settings.REACH_PARTITION_HOURS, ahead=settings.REACH_PARTITIONS_AHEAD
    )


class Migration(migrations.Migration):
    dependencies = [("receipts", "0001_initial")]

    operations = [
        migrations.RunSQL(CREATE, "DROP TABLE calls; DROP TABLE receipts"),
        migrations.RunPython(make_partitions, migrations.RunPython.noop),
    ]
