"""Who is calling, and what they may do: one key ring in memory for every view, one look-up where it misses."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from rest_framework import authentication, exceptions, permissions
from rest_framework.request import Request

from registry.clock import now_millis
from registry.errors import Forbidden, Unauthenticated

SCOPES = ("register", "dispatch", "observe", "operate")
OBSERVE = ("observe", "operate")
"""Reading: an operator may do by REST whatever operators may."""

load_keys_sql = """
    SELECT key.digest, key.key_id, key.service_id, key.user_id, person.username, key.scopes, key.expires_at
    FROM registry_apikey AS key LEFT JOIN auth_user AS person ON person.id = key.user_id
    WHERE key.revoked_at IS NULL AND (key.user_id IS NULL OR person.is_active)"""
find_key_sql = load_keys_sql + " AND key.digest = %s"


@dataclass(frozen=True, slots=True)
class Key:
    """A key, or an operator's session, as every view sees it."""

    key_id: str
    service_id: str | None
    user_id: int | None
    username: str | None
    scopes: frozenset[str]
    expires_at_millis: int | None = None

    @property
    def caller(self) -> str:
        return self.service_id or f"user:{self.username}"

    def usable(self, now_millis: int) -> bool:
        return self.expires_at_millis is None or now_millis < self.expires_at_millis


class KeyRing:
    """All keys in memory, replaced whole by those who follow the database (`routing.snapshot`)."""

    def __init__(self) -> None:
        self._keys: Mapping[str, Key] = {}
        self.fetch: Callable[[str], Awaitable[Key | None]] | None = None
        """One look-up of a digest without a thread, for keys made a moment ago; set by who owns such a connection."""

    def replace(self, keys: Mapping[str, Key]) -> None:
        self._keys = keys

    def find(self, bearer: str, now_millis: int) -> Key | None:
        key = self._keys.get(digest_of(bearer))
        return key if key is not None and key.usable(now_millis) else None


keyring = KeyRing()


def digest_of(bearer: str) -> str:
    return hashlib.sha256(bearer.encode(errors="replace")).hexdigest()


def key_of_row(row: Sequence[Any] | Mapping[str, Any]) -> tuple[str, Key]:
    """One row of `load_keys_sql` as (digest, Key)."""
    fields = row.values() if isinstance(row, Mapping) else row
    digest, key_id, service_id, user_id, username, scopes, expires_at = fields
    expires_at_millis = millis(expires_at) if expires_at is not None else None
    return digest, Key(key_id, service_id, user_id, username, frozenset(scopes), expires_at_millis)


def millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def bearer_of(header: str | None) -> str | None:
    """The key in an Authorization header; None without one. Raises Unauthenticated for any other scheme."""
    if not header:
        return None
    scheme, _space, bearer = header.partition(" ")
    if scheme.lower() != "bearer" or not bearer.strip():
        raise Unauthenticated("send Authorization: Bearer <key>")
    return bearer.strip()


def find_key(bearer: str) -> Key:
    """The key from memory or, where it is not there (yet), from the database. Raises Unauthenticated."""
    key = keyring.find(bearer, now_millis())
    if key is None:
        with connection.cursor() as cursor:
            cursor.execute(find_key_sql, [digest_of(bearer)])
            row = cursor.fetchone()
        key = key_of_row(row)[1] if row else None
    return accepted(key)


async def fetch_key(bearer: str) -> Key:
    """`find_key` by the key ring's own look-up, where it has one. Raises Unauthenticated."""
    return accepted(await keyring.fetch(digest_of(bearer)) if keyring.fetch else None)


def accepted(key: Key | None) -> Key:
    if key is None or not key.usable(now_millis()):
        raise Unauthenticated("the key is unknown, revoked or expired")
    return key


def session_key(user: Any) -> Key:
    """What a logged-in user may do by REST; their permissions narrow `operate` (`check_may`)."""
    scopes = SCOPES if user.is_staff else ("dispatch", "observe")
    return Key("session", None, user.pk, user.get_username(), frozenset(scopes))


class KeyAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer <key>`."""

    def authenticate(self, request: Request) -> tuple[Any, Key] | None:
        bearer = bearer_of(request.META.get("HTTP_AUTHORIZATION"))
        if bearer is None:
            return None
        key = find_key(bearer)
        return (AnonymousUser() if key.user_id is None else user_of(key)), key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="agent-reach"'


class SessionAuthentication(authentication.SessionAuthentication):
    """The admin's session cookie, with its CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, Key] | None:
        try:
            found = super().authenticate(request)
        except exceptions.PermissionDenied as exc:
            raise Forbidden(str(exc.detail)) from exc
        return found and (found[0], session_key(found[0]))

    def enforce_csrf(self, request: Request) -> None:
        """Look for the token in the bare request: asked for its form, DRF's would have to find a parser for JSON."""
        super().enforce_csrf(request._request)


class HasScope(permissions.BasePermission):
    """Views say `scopes = {"GET": "observe", "PUT": ("register", "operate")}`: any one of them is enough."""

    def has_permission(self, request: Request, view: Any) -> bool:
        check_scope(request.auth, getattr(view, "scopes", {}), request.method or "GET")
        return True


def check_scope(key: Key | None, scopes: Mapping[str, str | tuple[str, ...]], method: str) -> None:
    """Raise Unauthenticated without a key, Forbidden when it has none of the scopes that the method takes."""
    if key is None:
        raise Unauthenticated("a key is needed: Authorization: Bearer <key>")
    wanted = scopes.get("GET" if method == "HEAD" else method, ())
    wanted = (wanted,) if isinstance(wanted, str) else wanted
    if wanted and key.scopes.isdisjoint(wanted):
        raise Forbidden(f"this needs the scope {' or '.join(wanted)}; the key has {', '.join(sorted(key.scopes))}")


def check_service(key: Key, service_id: str, permission: str) -> None:
    """Raise Forbidden unless the key is that service's own, or an operator's who has the permission."""
    if key.service_id == service_id and "register" in key.scopes:
        return
    if "operate" not in key.scopes:
        raise Forbidden(f"the key belongs to {key.caller}, not to {service_id}")
    check_may(key, permission)


def check_may(key: Key, permission: str) -> None:
    """Raise Forbidden when the key is a user's who lacks this Django permission. A service's scopes are enough."""
    if key.user_id is not None and not user_of(key).has_perm(permission):
        raise Forbidden(f"{key.username} lacks the permission {permission}")


def user_of(key: Key) -> Any:
    """The user behind a key. Raises Unauthenticated when they may not log in any more."""
    people = get_user_model().objects
    user = None if key.user_id is None else people.filter(pk=key.user_id, is_active=True).first()
    if user is None:
        raise Unauthenticated("the key's user is gone or inactive")
    return user
