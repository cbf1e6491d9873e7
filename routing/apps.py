from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class RoutingConfig(AppConfig):
    name = "routing"
    verbose_name = _("Routing")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from receipts.retention import more_kinds
        from routing.advisories import kind_of_data

        more_kinds.append(kind_of_data)
