"""Facts of the registry. Verbs that change them live in `services.py`."""

from datetime import datetime

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import CheckConstraint, Q, UniqueConstraint
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from registry import clock
from registry.core.node import AdminState, Health, Status, Tier, visible_status
from registry.querysets import NodeQuerySet
from registry.wording import ADMIN_STATE, AUDIT_ACTION, NODE_STATUS, TIER, label


def health_choices() -> list[tuple[str, Promise]]:
    return [(h.value, NODE_STATUS[h]) for h in Health]


def admin_state_choices() -> list[tuple[str, Promise]]:
    return [(s.value, ADMIN_STATE[s]) for s in AdminState]


def tier_choices() -> list[tuple[str, Promise]]:
    return [(t.value, TIER[t]) for t in Tier]


class Service(models.Model):
    """A logical agent, or a caller without nodes."""

    service_id = models.CharField(_("service"), max_length=63, primary_key=True)
    signing_secret = models.TextField(_("signing secret (encrypted)"))
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    class Meta:
        verbose_name = _("service")
        verbose_name_plural = _("services")

    def __str__(self) -> str:
        return self.service_id


class Node(models.Model):
    """One running copy of a service at an address. Its lease is kept apart: heartbeats must not touch this row."""

    service = models.ForeignKey(Service, verbose_name=_("service"), on_delete=models.CASCADE, related_name="nodes")
    node_id = models.CharField(_("node"), max_length=63)
    address = models.TextField(_("address"))
    declared_weight = models.PositiveIntegerField(_("declared weight"), default=100)
    operator_weight = models.PositiveIntegerField(_("operator's weight"), null=True, blank=True)
    admin_state = models.CharField(
        _("admin state"), max_length=16, choices=admin_state_choices, default=AdminState.ENABLED
    )
    admin_state_since = models.DateTimeField(_("admin state since"), default=timezone.now)
    tags = ArrayField(models.TextField(), verbose_name=_("tags"), default=list)
    version = models.CharField(_("version"), max_length=64, blank=True, default="")
    protocol = models.CharField(_("protocol"), max_length=32, default="reach-http")
    endpoints = models.JSONField(_("endpoints"), default=dict)
    heartbeat_interval_s = models.FloatField(_("heartbeat interval (s)"), default=15)
    lease_ttl_s = models.FloatField(_("lease (s)"), default=45)
    max_concurrency = models.PositiveIntegerField(_("max concurrency"), null=True, blank=True)
    metadata = models.JSONField(_("metadata"), default=dict)
    requires = ArrayField(models.TextField(), verbose_name=_("requires"), default=list)
    declaration_hash = models.CharField(_("declaration hash"), max_length=64)
    health = models.CharField(_("health"), max_length=16, choices=health_choices, default=Health.STARTING)
    health_reason = models.TextField(_("reason"), blank=True, default="")
    health_since = models.DateTimeField(_("since"), default=timezone.now)
    ejected_until = models.DateTimeField(_("ejected until"), null=True, blank=True)
    ejected_since = models.DateTimeField(_("ejected since"), null=True, blank=True)
    ejected_reason = models.TextField(_("why ejected"), null=True, blank=True)
    drain_until = models.DateTimeField(_("drains until"), null=True, blank=True)
    deleted_at = models.DateTimeField(_("deleted at"), null=True, blank=True)
    registered_at = models.DateTimeField(_("registered at"), default=timezone.now)

    objects = NodeQuerySet.as_manager()

    class Meta:
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        constraints = [UniqueConstraint(fields=["service", "node_id"], name="one_node_per_service_and_id")]

    def __str__(self) -> str:
        return f"{self.service_id}/{self.node_id}"

    @property
    def weight(self) -> int:
        """The weight in force: the operator's when there is one."""
        return self.declared_weight if self.operator_weight is None else self.operator_weight

    @property
    def status(self) -> Status:
        return visible_status(
            Health(self.health),
            self.health_reason,
            AdminState(self.admin_state),
            expired=self.lease.expired,
            ejected=self.ejected_reason if self.is_ejected else None,
        )

    @property
    def is_ejected(self) -> bool:
        """Whether a breaker keeps calls away; it lapses by itself, whatever becomes of who has opened it."""
        return self.ejected_until is not None and self.ejected_until > clock.now()

    @property
    def status_since(self) -> datetime:
        """Since when the visible status holds."""
        if AdminState(self.admin_state) is not AdminState.ENABLED:
            return self.admin_state_since
        if self.status.name == "ejected":
            return self.ejected_since or self.health_since
        return self.lease.expired_since or self.health_since


class NodeLease(models.Model):
    """A node's right to be listed. Written by every heartbeat; only the sweeper sets `expired`."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="lease")
    last_heartbeat_at = models.DateTimeField(_("last heartbeat at"))
    lease_expires_at = models.DateTimeField(_("lease expires at"))
    in_flight = models.PositiveIntegerField(_("in flight"), null=True)
    expired = models.BooleanField(_("expired"), default=False)
    expired_since = models.DateTimeField(_("expired since"), null=True)

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")

    def __str__(self) -> str:
        return f"lease of {self.node_id}"


class NodeProbe(models.Model):
    """How probes of a node stand. Written by every probe, so kept apart from the node, like its lease."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="probe")
    due_at = models.DateTimeField(_("probed next"), default=timezone.now)
    checked_at = models.DateTimeField(_("last probed"), null=True)
    failures = models.PositiveIntegerField(_("failures in a row"), default=0)
    evidence = models.JSONField(_("evidence of the last probe"), null=True)
    recent_ms = ArrayField(
        models.FloatField(null=True), verbose_name=_("answer times of the last probes"), default=list
    )
    """Milliseconds, the newest first; None for a probe that failed."""

    class Meta:
        verbose_name = _("probe")
        verbose_name_plural = _("probes")
        indexes = [models.Index(fields=["due_at"], name="probes_by_due_at")]

    def __str__(self) -> str:
        return f"probes of {self.node_id}"


class StatusChange(models.Model):
    """A node's visible status from one moment on, with the evidence where a probe decided it; rows are only added."""

    node = models.ForeignKey(Node, verbose_name=_("node"), on_delete=models.CASCADE, related_name="history")
    at = models.DateTimeField(_("at"))
    status = models.CharField(_("status"), max_length=16)
    reason = models.TextField(_("reason"), blank=True, default="")
    evidence = models.JSONField(_("evidence"), null=True)
    version = models.CharField(_("version"), max_length=64, blank=True, default="", db_default="")
    """What the node declared, where a declaration was what happened; pages mark such moments as deployments."""

    class Meta:
        verbose_name = _("status change")
        verbose_name_plural = _("status changes")
        indexes = [
            models.Index(fields=["node", "-id"], name="history_of_a_node"),
            models.Index(fields=["at"], name="status_changes_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.node_id} {self.status}"


class Capability(models.Model):
    """A task by name. Once declared it stays known, with or without a provider."""

    name = models.CharField(_("capability"), max_length=63, primary_key=True)
    first_declared_at = models.DateTimeField(_("first declared at"), default=timezone.now)

    class Meta:
        verbose_name = _("capability")
        verbose_name_plural = _("capabilities")

    def __str__(self) -> str:
        return self.name


class Declaration(models.Model):
    """A capability as one node declares it: schemas belong to the node, so two versions of a service may differ."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="declarations")
    capability = models.ForeignKey(Capability, on_delete=models.PROTECT, related_name="declarations")
    version = models.CharField(_("version"), max_length=64, blank=True, default="")
    description = models.TextField(_("description"), blank=True, default="")
    input_schema = models.JSONField(_("input schema"), default=dict)
    output_schema = models.JSONField(_("output schema"), default=dict)
    cost_level = models.CharField(_("cost level"), max_length=8, default="medium")
    rate_limit = models.JSONField(_("rate limit, as declared"), null=True)
    rate_per_s = models.FloatField(_("rate limit (calls/s)"), null=True)
    timeout_tier = models.CharField(_("timeout tier"), max_length=8, choices=tier_choices, default=Tier.MEDIUM)
    idempotent = models.BooleanField(_("idempotent"), default=False)
    tags = ArrayField(models.TextField(), verbose_name=_("tags"), default=list)
    allow_callers = ArrayField(models.TextField(), verbose_name=_("allowed callers"), default=list)
    examples = models.JSONField(_("examples"), default=list)

    class Meta:
        verbose_name = _("declaration")
        verbose_name_plural = _("declarations")
        constraints = [UniqueConstraint(fields=["node", "capability"], name="one_declaration_per_node_and_capability")]

    def __str__(self) -> str:
        return f"{self.node} {self.capability_id}"


class ApiKey(models.Model):
    """A bearer key, stored as SHA-256: keys are high-entropy, so no slow hash is needed."""

    key_id = models.CharField(_("key"), max_length=32, primary_key=True)
    digest = models.CharField(_("SHA-256"), max_length=64, unique=True)
    service = models.ForeignKey(
        Service, verbose_name=_("service"), null=True, blank=True, on_delete=models.CASCADE, related_name="keys"
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("user"), null=True, blank=True, on_delete=models.CASCADE
    )
    scopes = ArrayField(models.TextField(), verbose_name=_("scopes"))
    created_by = models.TextField(_("created by"), default="")
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked at"), null=True, blank=True)

    class Meta:
        verbose_name = _("API key")
        verbose_name_plural = _("API keys")
        constraints = [
            CheckConstraint(
                condition=Q(service=None, user__isnull=False) | Q(service__isnull=False, user=None),
                name="key_belongs_to_a_service_or_a_user",
            )
        ]

    def __str__(self) -> str:
        return self.key_id

    @property
    def username(self) -> str | None:
        return self.user.get_username() if self.user else None

    @property
    def owner(self) -> str:
        """The `caller` of calls made with it."""
        return self.service_id or f"user:{self.username}"


class AuditEvent(models.Model):
    """One action of an operator; rows are only added."""

    at = models.DateTimeField(_("at"), default=timezone.now, db_index=True)
    actor = models.TextField(_("actor"))
    action = models.TextField(_("action"))
    target = models.TextField(_("target"))
    detail = models.JSONField(_("detail"), default=dict)

    class Meta:
        verbose_name = _("audit event")
        verbose_name_plural = _("audit events")
        indexes = [models.Index(fields=["target", "-id"], name="audit_trail_of_a_target")]

    def __str__(self) -> str:
        return f"{self.actor} {label(AUDIT_ACTION, self.action)} {self.target}"


class SnapshotVersion(models.Model):
    """One row: bumped inside every transaction that changes what dispatchers hold in memory (`registry.changes`)."""

    version = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = verbose_name_plural = _("snapshot version")

    def __str__(self) -> str:
        return str(self.version)


class SnapshotChange(models.Model):
    """What one version of the snapshot has changed; only the last are kept (`registry.changes`)."""

    version = models.BigIntegerField(primary_key=True)
    nodes = ArrayField(models.BigIntegerField())
    parts = ArrayField(models.TextField())

    class Meta:
        verbose_name = _("snapshot change")
        verbose_name_plural = _("snapshot changes")

    def __str__(self) -> str:
        return str(self.version)


class LeaseSweep(models.Model):
    """One row: when leases were last looked at, so that the reach's own absence evicts nobody."""

    swept_at = models.DateTimeField()

    class Meta:
        verbose_name = verbose_name_plural = _("sweep of leases")

    def __str__(self) -> str:
        return str(self.swept_at)


class RefusalCount(models.Model):
    """Requests that were refused and left no call, by key, problem code and minute."""

    key_id = models.CharField(_("key"), max_length=32, blank=True, default="")
    code = models.CharField(_("code"), max_length=32)
    minute = models.DateTimeField(_("minute"))
    count = models.PositiveBigIntegerField(_("count"), default=0)

    class Meta:
        verbose_name = _("refusals")
        verbose_name_plural = _("refusals")
        constraints = [UniqueConstraint(fields=["key_id", "code", "minute"], name="one_refusal_count_per_minute")]

    def __str__(self) -> str:
        return f"{self.minute} {self.key_id or 'no key'} {self.code}: {self.count}"


class InstallationKey(models.Model):
    """One row: encrypts signing secrets where no SECRET_KEY is given, so that processes of one database agree."""

    value = models.TextField()

    class Meta:
        verbose_name = verbose_name_plural = _("installation key")

    def __str__(self) -> str:
        return "installation key"
