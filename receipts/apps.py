from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ReceiptsConfig(AppConfig):
    name = "receipts"
    verbose_name = _("Traffic")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from receipts.dead_letters import kind_of_data
        from receipts.recovery import is_anybody_listening
        from receipts.retention import more_kinds
        from registry.services import ears

        if is_anybody_listening not in ears:
            ears.append(is_anybody_listening)
        more_kinds.append(kind_of_data)
