"""Forms of routing's admin pages. What a table or an envelope holds is judged by those who read them, not here."""

import json
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from routing.models import RouteChange
from routing.rules import MAX_TEXT_BYTES, URGENCIES
from routing.wording import URGENCY

MAX_TITLE = 200
MAX_PROSE = 10_000
MONO = {"class": "reach-mono", "spellcheck": "false", "autocapitalize": "off", "autocomplete": "off"}


class ChangeForm(forms.Form):
    """A draft: the whole table as text, and what it is for."""

    title = forms.CharField(
        label=_("Title"),
        max_length=MAX_TITLE,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "class": "reach-stretch"}),
        help_text=_("What will be different, in one line: reviewers read it in their inbox."),
    )
    description = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=MAX_PROSE,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "class": "reach-stretch"}),
    )
    auto_revert = forms.BooleanField(
        label=_("Takes itself back"),
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text=_("If the calls that it moves fare worse after it is published, the reach reverts it by itself."),
    )
    text = forms.CharField(max_length=MAX_TEXT_BYTES, required=False, strip=False, widget=forms.Textarea)
    base_revision = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    digest = forms.CharField(required=False, widget=forms.HiddenInput)


class EnvelopeForm(forms.Form):
    """A call to try out."""

    table = forms.ModelChoiceField(
        label=_("Table"),
        queryset=RouteChange.objects.none(),
        required=False,
        empty_label=_("The live one"),
        widget=UnfoldAdminSelectWidget,
    )
    capability = forms.CharField(
        label=_("Capability"),
        max_length=63,
        widget=UnfoldAdminTextInputWidget(attrs={"list": "known-capabilities", "autocomplete": "off"}),
    )
    payload = forms.CharField(
        label=_("Payload (JSON)"), initial="{}", widget=UnfoldAdminTextareaWidget(attrs={"rows": 6, **MONO})
    )
    tags = forms.CharField(
        label=_("Tags"), required=False, widget=UnfoldAdminTextInputWidget, help_text=_("With commas between them")
    )
    labels = forms.CharField(
        label=_("Labels"),
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text=_("name:value, with commas between them"),
    )
    caller = forms.CharField(
        label=_("Caller"),
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"list": "known-services", "autocomplete": "off"}),
        help_text=_("A service, or user:NAME; you, where it is left empty"),
    )
    session_id = forms.CharField(label=_("Session"), required=False, widget=UnfoldAdminTextInputWidget)
    urgency = forms.ChoiceField(
        label=_("Urgency"),
        choices=[(urgency, URGENCY[urgency]) for urgency in ("normal", *(u for u in URGENCIES if u != "normal"))],
        widget=UnfoldAdminSelectWidget,
    )

    def __init__(self, *args: Any, changes: QuerySet[RouteChange], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.fields["table"].queryset = changes  # type: ignore[attr-defined]

    def clean_payload(self) -> Any:
        try:
            return json.loads(self.cleaned_data["payload"])
        except ValueError as exc:
            raise forms.ValidationError(
                _("Not JSON: %(problem)s"), params={"problem": str(exc)}, code="not_json"
            ) from exc

    def clean_tags(self) -> list[str]:
        return split(self.cleaned_data["tags"])

    def clean_labels(self) -> dict[str, str]:
        pairs = [part.partition(":") for part in split(self.cleaned_data["labels"])]
        if any(not name or not colon for name, colon, _value in pairs):
            raise forms.ValidationError(_("Write name:value, with commas between them."), code="no_pair")
        return {name.strip(): value.strip() for name, _colon, value in pairs}


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
