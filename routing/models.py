"""Facts of the route table: its numbered revisions, their routes, and the changes under review."""

from django.conf import settings
from django.db import models
from django.db.models import Q, UniqueConstraint
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from receipts.core.envelope import digest_of
from routing.core.review import Status
from routing.core.watch import WatchStatus


def status_choices() -> list[tuple[str, str]]:
    return [(s.value, s.value) for s in Status]


class TableRevision(models.Model):
    """One immutable, numbered state of all routes. The highest number is the live one; none = the empty table, 0."""

    number = models.PositiveIntegerField(_("revision"), primary_key=True)
    fallback_rules = models.JSONField(_("fallback rules"), default=list)
    published_at = models.DateTimeField(_("published at"), default=timezone.now)
    published_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("published by"), null=True, on_delete=models.PROTECT, related_name="+"
    )
    note = models.TextField(_("note"), blank=True, default="")

    class Meta:
        verbose_name = _("table revision")
        verbose_name_plural = _("table revisions")
        ordering = ["-number"]

    def __str__(self) -> str:
        return str(self.number)


class Route(models.Model):
    """A declarative rule of one revision: match → strategy, as it was written."""

    revision = models.ForeignKey(TableRevision, on_delete=models.CASCADE, related_name="routes")
    route_id = models.CharField(_("route"), max_length=128)
    position = models.PositiveIntegerField(_("position"))
    document = models.JSONField(_("rule"))

    class Meta:
        verbose_name = _("route")
        verbose_name_plural = _("routes")
        ordering = ["position"]
        constraints = [UniqueConstraint(fields=["revision", "route_id"], name="one_route_per_revision_and_id")]

    def __str__(self) -> str:
        return self.route_id


class RouteChange(models.Model):
    """A proposed next revision."""

    title = models.TextField(_("title"))
    description = models.TextField(_("description"), blank=True, default="")
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("author"), on_delete=models.PROTECT, related_name="route_changes"
    )
    base_revision = models.PositiveIntegerField(_("base revision"))
    document = models.JSONField(_("proposed table"))  # {"routes": […], "fallback_rules": […]}: the whole table
    operations = models.JSONField(_("operations"), null=True, blank=True)  # as the author wrote them, if so
    status = models.CharField(_("status"), max_length=16, choices=status_choices, default=Status.DRAFT)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    updated_at = models.DateTimeField(_("updated at"), default=timezone.now)
    published_revision = models.OneToOneField(
        TableRevision, verbose_name=_("published as"), null=True, blank=True, on_delete=models.PROTECT
    )
    reverts = models.ForeignKey("self", verbose_name=_("reverts"), null=True, blank=True, on_delete=models.PROTECT)
    auto_revert = models.BooleanField(_("takes itself back"), default=False, db_default=False)
    broke_glass = models.TextField(_("published without approval because"), blank=True, default="", db_default="")

    class Meta:
        verbose_name = _("route change")
        verbose_name_plural = _("route changes")
        permissions = [
            ("approve_routechange", "Can approve route changes of others"),
            ("break_glass_routechange", "Can publish route changes without approval"),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.title}"

    @property
    def content_digest(self) -> str:
        """What an approval approves: the table, the revision it replaces, and whether it may be taken back unasked."""
        content = [self.base_revision, self.document]
        return digest_of([*content, "auto_revert"] if self.auto_revert else content)


class Impact(models.Model):
    """What a change would do, by a replay of recent calls. A row with `due_at` is work; `report` is what came of it."""

    change = models.OneToOneField(RouteChange, primary_key=True, on_delete=models.CASCADE, related_name="impact")
    wanted = models.CharField(_("content to be analysed"), max_length=64)
    due_at = models.DateTimeField(_("due at"), null=True)
    done = models.PositiveIntegerField(_("calls replayed"), default=0)
    total = models.PositiveIntegerField(_("calls to replay"), default=0)
    covers = models.CharField(_("content analysed"), max_length=64, blank=True, default="")
    report = models.JSONField(_("report"), null=True)
    digest = models.CharField(_("digest of the report"), max_length=64, blank=True, default="")
    computed_at = models.DateTimeField(_("computed at"), null=True)

    class Meta:
        verbose_name = _("impact analysis")
        verbose_name_plural = _("impact analyses")

    def __str__(self) -> str:
        return f"{self.change_id}"


def watch_choices() -> list[tuple[str, str]]:
    return [(s.value, s.value) for s in WatchStatus]


class Watch(models.Model):
    """How the calls that a published change moves fare, against those before it. `due_at`: when to look next."""

    change = models.OneToOneField(RouteChange, primary_key=True, on_delete=models.CASCADE, related_name="watch")
    status = models.CharField(_("status"), max_length=16, choices=watch_choices, default=WatchStatus.WATCHING)
    started_at = models.DateTimeField(_("started at"))
    ends_at = models.DateTimeField(_("ends at"))
    due_at = models.DateTimeField(_("due at"), null=True)
    scope = models.JSONField(_("which calls"))
    before = models.JSONField(_("calls before"), null=True)
    after = models.JSONField(_("calls after"), null=True)
    told = models.TextField(_("what was seen"), blank=True, default="")
    alerted_at = models.DateTimeField(_("alerted at"), null=True)

    class Meta:
        verbose_name = _("watch of a change")
        verbose_name_plural = _("watches of changes")

    def __str__(self) -> str:
        return f"{self.change_id} {self.status}"


class Advisory(models.Model):
    """Something about traffic or tables that an operator should look at; one row as long as it lasts, and after."""

    kind = models.CharField(_("kind"), max_length=32)
    subject = models.TextField(_("subject"))
    facts = models.JSONField(_("facts"), default=dict)
    first_seen_at = models.DateTimeField(_("first seen"))
    last_seen_at = models.DateTimeField(_("last seen"))
    resolved_at = models.DateTimeField(_("resolved"), null=True, blank=True)
    acknowledged_at = models.DateTimeField(_("acknowledged"), null=True, blank=True)
    acknowledged_by = models.TextField(_("acknowledged by"), blank=True, default="", db_default="")
    acknowledged_reason = models.TextField(_("reason"), blank=True, default="", db_default="")

    class Meta:
        verbose_name = _("advisory")
        verbose_name_plural = _("advisories")
        constraints = [UniqueConstraint(fields=["kind", "subject"], name="one_advisory_per_kind_and_subject")]

    def __str__(self) -> str:
        return self.subject or f"#{self.pk}"


class Approval(models.Model):
    """One person's yes to exactly one content (`digest`); an edit withdraws it."""

    change = models.ForeignKey(RouteChange, on_delete=models.CASCADE, related_name="approvals")
    approver = models.ForeignKey(settings.AUTH_USER_MODEL, verbose_name=_("approver"), on_delete=models.PROTECT)
    comment = models.TextField(_("comment"), blank=True, default="")
    digest = models.CharField(_("content approved"), max_length=64)
    impact_digest = models.CharField(_("impact seen"), max_length=64, blank=True, default="", db_default="")
    approved_at = models.DateTimeField(_("approved at"), default=timezone.now)
    withdrawn_at = models.DateTimeField(_("withdrawn at"), null=True, blank=True)

    class Meta:
        verbose_name = _("approval")
        verbose_name_plural = _("approvals")
        constraints = [
            UniqueConstraint(
                fields=["change", "approver"],
                condition=Q(withdrawn_at=None),
                name="one_standing_approval_per_person",
            )
        ]

    def __str__(self) -> str:
        return f"{self.approver}: {self.change_id}"
