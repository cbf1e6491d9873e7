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
    async_rank = models.SmallIntegerField(_("rank among those that wait"), null=True)  # None: somebody waits for it
    callback_url = models.TextField(_("callback"), null=True)
    redispatch_of = models.UUIDField(_("again, after"), null=True)
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


class WaitingCall(models.Model):
    """An asynchronous call that nobody carries yet: the index by which the engines of all workers find the next one.

    Small, and apart from the calls, which are partitioned. Who takes a call deletes its row here in the same statement.
    """

    call_id = models.UUIDField(_("call"), primary_key=True)
    capability = models.TextField(_("capability"))
    async_rank = models.SmallIntegerField(_("rank"))
    due_at = models.DateTimeField(_("due at"))
    deadline = models.DateTimeField(_("deadline"))

    class Meta:
        db_table = "waiting_calls"
        verbose_name = _("waiting call")
        verbose_name_plural = _("waiting calls")
        indexes = [
            models.Index(fields=["capability", "async_rank", "due_at", "call_id"], name="waiting_calls_in_turn"),
            models.Index(fields=["deadline"], name="waiting_calls_by_deadline"),
        ]

    def __str__(self) -> str:
        return f"{self.call_id} {self.capability}"


class CallbackStatus(models.TextChoices):
    """What has become of a callback."""

    PENDING = "pending", _("due, or being tried again")
    DELIVERED = "delivered", _("delivered")
    GONE = "gone", _("the receiver wants no more (410)")
    GAVE_UP = "gave_up", _("given up")


class Callback(models.Model):
    """The end of an asynchronous call, to be told to the address that its caller has named.

    A trigger of the database makes the row in the commit that ends the call, whoever ends it.
    """

    call_id = models.UUIDField(_("call"), primary_key=True)
    url = models.TextField(_("address"))
    host = models.TextField(_("host"))
    caller = models.TextField(_("caller"))
    status = models.TextField(_("status"), choices=CallbackStatus.choices, default=CallbackStatus.PENDING)
    made_at = models.DateTimeField(_("due since"))
    due_at = models.DateTimeField(_("tried next"))
    tries = models.IntegerField(_("tries"), default=0)
    settled_at = models.DateTimeField(_("settled at"), null=True)
    log = models.JSONField(_("what was tried"), default=list)  # the last ones: [{at, status, error, took_ms}]

    class Meta:
        db_table = "callbacks"
        verbose_name = _("callback")
        verbose_name_plural = _("callbacks")
        indexes = [
            models.Index(fields=["host", "due_at"], name="callbacks_pending", condition=models.Q(status="pending")),
            models.Index(fields=["settled_at"], name="callbacks_given_up", condition=models.Q(status="gave_up")),
            models.Index(fields=["made_at"], name="callbacks_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.call_id} {self.status}"


class BulkRedispatch(models.Model):
    """Failed calls that somebody has ordered to be done again; a worker does so, some each second."""

    by = models.TextField(_("ordered by"))
    made_at = models.DateTimeField(_("ordered at"))
    causes = models.JSONField(_("causes"))  # [[code, capability, service]]
    calls = ArrayField(models.UUIDField())
    done = models.PositiveIntegerField(_("calls looked at"), default=0)  # of `calls`, from the first on
    made = ArrayField(models.UUIDField(), default=list)
    left_out = models.PositiveIntegerField(_("left out"), default=0)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    stopped_by = models.TextField(_("stopped by"), blank=True, default="")

    class Meta:
        verbose_name = _("order to do calls again")
        verbose_name_plural = _("orders to do calls again")
        indexes = [
            models.Index(fields=["id"], name="bulk_redispatches_open", condition=models.Q(finished_at=None)),
            models.Index(fields=["made_at"], name="bulk_redispatches_by_age"),
        ]

    def __str__(self) -> str:
        return f"#{self.pk} {self.by}"


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
