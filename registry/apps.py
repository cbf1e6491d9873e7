from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class RegistryConfig(AppConfig):
    name = "registry"
    verbose_name = _("Registry")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.database import let_pools_try_steadily

        let_pools_try_steadily()
