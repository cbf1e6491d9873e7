"""Django's stock ASGI handler, as `startproject` writes it."""

import os

from django.core.asgi import get_asgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "bench.forwarder.settings"
application = get_asgi_application()
