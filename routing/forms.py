"""Forms of routing's admin pages: each asks for what one verb needs."""

from django import forms
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminTextareaWidget


class AcknowledgeForm(forms.Form):
    reason = forms.CharField(
        label=_("Why it may stand"),
        max_length=500,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text=_("Whoever asks later reads this here and in the audit log."),
    )
