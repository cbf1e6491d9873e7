"""Forms of the registry's admin pages: each asks for what one verb needs."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from registry.auth import SCOPES
from registry.wording import SCOPE

MAX_WEIGHT = 1000
LIFETIMES = [("", _("Never")), ("30", _("In 30 days")), ("90", _("In 90 days")), ("365", _("In a year"))]


class WeightForm(forms.Form):
    weight = forms.IntegerField(
        label=_("Weight"),
        min_value=0,
        max_value=MAX_WEIGHT,
        initial=100,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=_(
            "0 to 1000. A node gets calls in proportion to its weight; 0 gets none. "
            "It survives restarts and new registrations of the node until you give it back."
        ),
    )


class RemoveForm(forms.Form):
    drain_s = forms.FloatField(
        label=_("Seconds to drain"),
        min_value=0,
        max_value=3600,
        initial=30,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=_("It gets no new call from now on; calls at work may finish for so long. 0 removes it at once."),
    )


class KeyForm(forms.Form):
    service_id = forms.CharField(
        label=_("Service"),
        max_length=63,
        validators=[
            RegexValidator(
                r"^[a-z0-9][a-z0-9_.-]{0,62}$",
                _("Up to 63 lower-case letters, digits, _ . and -, a letter or digit first."),
            )
        ],
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "list": "known-services"}),
        help_text=_("The agent or caller that the key speaks for; a new name makes a new service."),
    )
    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        choices=[(scope, SCOPE[scope]) for scope in SCOPES],
        initial=["register", "dispatch"],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text=_("Give no more than is needed."),
    )
    lifetime = forms.ChoiceField(label=_("Expires"), choices=LIFETIMES, required=False, widget=UnfoldAdminSelectWidget)

    def clean_lifetime(self) -> datetime | None:
        days: Any = self.cleaned_data["lifetime"]
        return timezone.now() + timedelta(days=int(days)) if days else None
