"""Users and groups in the admin. What is done to people leaves audit rows like everything else."""

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

import dashboard.registry_pages  # noqa: F401  registers its pages
from registry.audit import audit
from registry.console import actor

OURS = ("registry", "receipts", "routing", "auth")
VERBS = {
    "add": gettext_noop("add"),
    "change": gettext_noop("change"),
    "delete": gettext_noop("delete"),
    "view": gettext_noop("view"),
}
OWN_PERMISSIONS = {
    "approve_routechange": gettext_noop("Can approve route changes of others"),
    "break_glass_routechange": gettext_noop("Can publish route changes without approval"),
}


def permission_label(permission: Permission) -> str:
    """A permission in the reader's language: Django stores their names in English."""
    if own := OWN_PERMISSIONS.get(permission.codename):
        return _(own)
    verb, _under, _model = permission.codename.partition("_")
    model = permission.content_type.model_class()
    what = capfirst(str(model._meta.verbose_name)) if model else permission.content_type.model
    return f"{what} · {_(VERBS.get(verb, verb))}"


class PermissionField(forms.ModelMultipleChoiceField):
    def label_from_instance(self, obj: Any) -> str:
        return permission_label(obj)


class PeopleAdmin(ModelAdmin):
    """What users and groups share: permissions that people can read, and audit rows."""

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in ("permissions", "user_permissions"):
            kwargs["form_class"] = PermissionField
            known = Permission.objects.filter(content_type__app_label__in=OURS)
            kwargs["queryset"] = known.select_related("content_type").order_by("content_type", "codename")
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        audit(actor(request), "add", target_of(obj))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        audit(actor(request), "edit", target_of(obj), changed=changed_fields(message))
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for obj in queryset:
            audit(actor(request), "delete", target_of(obj))
        return super().log_deletions(request, queryset)


def target_of(obj: Any) -> str:
    return f"{obj._meta.model_name}:{obj}"


def changed_fields(message: Any) -> list[str]:
    """The names of the fields that a change message of the admin speaks of."""
    parts = message if isinstance(message, list) else []
    return [name for part in parts for name in part.get("changed", {}).get("fields", [])]


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, PeopleAdmin):
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "group_names", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "groups")
    search_help_text = gettext_lazy("Part of a name or address")
    list_filter_submit = False

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("groups")

    @admin.display(description=gettext_lazy("groups"))
    def group_names(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all())

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Only a superuser makes superusers."""
        fixed = super().get_readonly_fields(request, obj)
        return fixed if request.user.is_superuser else (*fixed, "is_superuser")


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, PeopleAdmin):
    pass
