"""Signing secrets: made, kept encrypted, and used as Standard Webhooks say.

Secrets are encrypted with a key derived from the given SECRET_KEY; where none is given, from one that lives in the
database, because all processes of one database must agree. Both are tried for reading, so SECRET_KEY may be set later.
"""

import base64
import hashlib
import hmac
import secrets
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from registry.models import InstallationKey

PREFIX = "whsec_"


def new_signing_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(24)).decode()


def secret_bytes(secret: str) -> bytes:
    """The key behind "whsec_…"; decode it once where many messages are signed."""
    return base64.b64decode(secret.removeprefix(PREFIX))


def signature_headers(secret: bytes | str, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of Standard Webhooks for one message."""
    key = secret_bytes(secret) if isinstance(secret, str) else secret
    signed = hmac.digest(key, b"%s.%d.%s" % (message_id.encode(), timestamp_s, body), "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": "v1," + base64.b64encode(signed).decode(),
    }


def encrypt(secret: str) -> str:
    """A secret as it is stored. Reads the database where no SECRET_KEY is given, within the caller's transaction."""
    return cipher(settings.GIVEN_SECRET_KEY, installation_key()).encrypt(secret.encode()).decode()


def decrypt(stored: str) -> str:
    """A stored secret in clear. Reads the database once a process. Raises InvalidToken when no key fits."""
    try:
        return known_cipher().decrypt(stored.encode()).decode()
    except InvalidToken:
        known_cipher.cache_clear()  # the database was replaced under this process
        return known_cipher().decrypt(stored.encode()).decode()


@lru_cache(maxsize=1)
def known_cipher() -> MultiFernet:
    return cipher(settings.GIVEN_SECRET_KEY, installation_key())


def cipher(given: str, installation: str) -> MultiFernet:
    """Writes with the given key if there is one, reads with both."""
    return MultiFernet([Fernet(derived(source)) for source in (given, installation) if source])


def derived(source: str) -> bytes:
    hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"agent-reach signing secrets")
    return base64.urlsafe_b64encode(hkdf.derive(hashlib.sha256(source.encode()).digest()))


def installation_key() -> str:
    """The database's own key, made by whoever needs it first."""
    row = InstallationKey.objects.filter(pk=1).first()
    if row is None:
        InstallationKey.objects.bulk_create(
            [InstallationKey(pk=1, value=secrets.token_urlsafe(48))], ignore_conflicts=True
        )
        row = InstallationKey.objects.get(pk=1)
    return row.value
