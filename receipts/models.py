"""Facts about calls. The journal writes them in groups with SQL of its own; Django reads them.

Both tables are partitioned by the UUIDv7 of the call (time order is in the id), which Django cannot declare:
the migration holds their DDL, so the models are unmanaged.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _


class Call(models.Model):
    """One task from a caller."""

    id = models.UUIDField(primary_key=True)
    trace_id = models.CharField(_("trace"), max_length=32)
    parent_call_id = models.UUIDField(_("parent"), null=True)
    depth = models.PositiveSmallIntegerField(_("depth"), default=0)
    caller = models.TextField(_("caller"))
    origin_caller = models.TextField(_("origin caller"))
    capability = models.TextField(_("capability"))
    status = models.TextField(_("status"))
    route_id = models.TextField(_("route"), null=True)
    table_revision = models.IntegerField(_("table revision"))
    service_id = models.TextField(_("service"), null=True)
    node_id = models.TextField(_("node"), null=True)
    attempts = models.IntegerField(_("attempts"), default=0)
    seq = models.IntegerField(_("last receipt"), default=0)
    accepted_at = models.DateTimeField(_("accepted at"))
    first_forwarded_at = models.DateTimeField(_("first forwarded at"), null=True)
    ended_at = models.DateTimeField(_("ended at"), null=True)
    deadline = models.DateTimeField(_("deadline"))
    idempotent = models.BooleanField(_("idempotent"), default=False)
    request = models.TextField(_("request"))  # JSON: the envelope as accepted, enough to dispatch it again
    request_digest = models.TextField(_("request digest"))
    payload_digest = models.TextField(_("payload digest"))
    output = models.TextField(_("output"), null=True)  # JSON
    error = models.TextField(_("error"), null=True)  # JSON
    labels = models.JSONField(_("labels"), null=True)
    idempotency_key = models.TextField(_("idempotency key"), null=True)
    session_id = models.TextField(_("session"), null=True)
    owner = models.UUIDField(_("owner"))
    epoch = models.IntegerField(_("epoch"), default=1)
    step = models.IntegerField(_("writes of this owner"), default=0)
    due_at = models.DateTimeField(_("due at"), null=True)
    mirror_of = models.UUIDField(_("copy of"), null=True)
    watchers = ArrayField(models.UUIDField(), null=True)  # processes to wake when the call ends

    class Meta:
        managed = False
        db_table = "calls"
        verbose_name = _("call")
        verbose_name_plural = _("calls")

    def __str__(self) -> str:
        return str(self.id)


class Receipt(models.Model):
    """One immutable fact about a call."""

    pk = models.CompositePrimaryKey("call_id", "seq")
    call_id = models.UUIDField(_("call"))
    seq = models.IntegerField(_("number"))
    kind = models.TextField(_("kind"))
    attempt = models.IntegerField(_("attempt"), null=True)
    service_id = models.TextField(_("service"), null=True)
    node_id = models.TextField(_("node"), null=True)
    at = models.DateTimeField(_("at"))
    detail = models.TextField(_("detail"), null=True)  # JSON

    class Meta:
        managed = False
        db_table = "receipts"
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")

    def __str__(self) -> str:
        return f"{self.call_id} #{self.seq} {self.kind}"


class IdempotencyKey(models.Model):
    """Which call a caller's key stands for; apart from the calls, whose unique keys must contain the partition key."""

    pk = models.CompositePrimaryKey("caller", "key")
    caller = models.TextField(_("caller"))
    key = models.TextField(_("key"))
    call_id = models.UUIDField(_("call"))
    request_digest = models.TextField(_("request digest"))
    expires_at = models.DateTimeField(_("expires at"), db_index=True)

    class Meta:
        db_table = "idempotency"
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")

    def __str__(self) -> str:
        return f"{self.caller} {self.key}"


class ProcessLease(models.Model):
    """A process that carries calls. When its lease runs out, its open calls are taken over (`receipts.recovery`)."""

    owner = models.UUIDField(_("process"), primary_key=True)
    role = models.TextField(_("role"))
    host = models.TextField(_("host"))
    pid = models.IntegerField(_("pid"))
    started_at = models.DateTimeField(_("started at"))
    held_since = models.DateTimeField(_("held without a gap since"))
    lease_expires_at = models.DateTimeField(_("lease expires at"))

    class Meta:
        db_table = "process_leases"
        verbose_name = _("process")
        verbose_name_plural = _("processes")

    def __str__(self) -> str:
        return f"{self.role} {self.host}:{self.pid}"


class Maintenance(models.Model):
    """One row: what the last run of retention did, so that people see that it runs (`receipts.retention`)."""

    ran_at = models.DateTimeField(_("ran at"))
    took_ms = models.PositiveIntegerField(_("took (ms)"))
    deleted = models.JSONField(_("deleted"), default=dict)  # {kind: rows}
    finished = models.BooleanField(_("finished"), default=True)  # False: a backlog was carried over

    class Meta:
        verbose_name = verbose_name_plural = _("last run of retention")

    def __str__(self) -> str:
        return str(self.ran_at)


class CallCount(models.Model):
    """Ended calls of one minute or hour, of one group, by how long they took (`receipts.statistics`)."""

    pk = models.CompositePrimaryKey("span_s", "dimension", "since", "key")
    span_s = models.PositiveSmallIntegerField(_("span (s)"))
    dimension = models.CharField(_("grouped by"), max_length=16, blank=True)
    since = models.DateTimeField(_("since"))
    key = models.TextField(_("group"), blank=True)
    buckets = ArrayField(models.SmallIntegerField())
    counts = ArrayField(models.IntegerField())
    failures = ArrayField(models.IntegerField())

    class Meta:
        verbose_name = _("call statistics")
        verbose_name_plural = _("call statistics")
        indexes = [models.Index(fields=["span_s", "since"], name="call_counts_by_time")]

    def __str__(self) -> str:
        return f"{self.since} {self.dimension} {self.key}"


class CountedMinute(models.Model):
    """A minute whose ended calls are counted, and how many were open then; counted again when they have ended."""

    minute = models.DateTimeField(_("minute"), primary_key=True)
    open = models.PositiveIntegerField(_("open calls"), default=0)

    class Meta:
        verbose_name = _("counted minute")
        verbose_name_plural = _("counted minutes")
        indexes = [models.Index(fields=["minute"], name="minutes_with_open_calls", condition=models.Q(open__gt=0))]

    def __str__(self) -> str:
        return str(self.minute)
