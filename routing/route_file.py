"""ROUTE_FILE: the table in a file. It makes revision 1; a later edit of it is a change in review like anybody's.

What was last seen of the file is kept as audit rows, so that each content is acted on once, whatever restarts.
"""

import hashlib
import logging
from pathlib import Path

from django.contrib.auth.models import User
from django.db import transaction

from registry import changes
from registry.audit import audit
from registry.errors import InvalidRequest
from registry.models import AuditEvent
from routing.core.edits import Document, differ
from routing.core.review import MOVES, Move, Status
from routing.models import RouteChange
from routing.querysets import live_number, table_of
from routing.review import carry, draft, hold_publish_lock, record_revision
from routing.route_text import located
from routing.rules import load_text
from routing.sense import check_table

AUTHOR = "route-file"
READ = "route_file.read"
logger = logging.getLogger(__name__)


def sync_route_file(path: str | Path) -> str:
    """Act on what the file now says, and return what was done in a sentence; "" when there was nothing to do.

    A file that cannot be used changes nothing and is logged once for each content.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        document = None if already_seen(path, sha256(content)) else read_table(content, path.name)
    except OSError as exc:
        return refused(path, sha256(str(exc).encode()), f"cannot be read: {exc.strerror}")
    except InvalidRequest as exc:
        return refused(path, sha256(content), "; ".join(problems_of(exc, content, path.name)))
    return "" if document is None else taken(path, sha256(content), document)


def read_table(content: bytes, name: str) -> Document:
    """The table in a file's bytes, checked; what reads as in the live one is left alone. Raises InvalidRequest."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{name}: not UTF-8: {exc.reason} at byte {exc.start}") from exc
    document = load_text(text, name)
    check_table(document, table_of(live_number()))
    return {"routes": document["routes"], "fallback_rules": document.get("fallback_rules") or []}


def problems_of(exc: InvalidRequest, content: bytes, name: str) -> list[str]:
    """What is wrong with a file, each mistake with its file, line and route id."""
    return list(located(exc.errors, content.decode("utf-8-sig", "replace"), name)) or [str(exc)]


@transaction.atomic
def taken(path: Path, digest: str, document: Document) -> str:
    """Bootstrap with a good file, or put it up for review."""
    hold_publish_lock()
    if already_seen(path, digest):
        return ""  # another process was first
    author = route_file_user()
    remember(path, digest)
    live = live_number()
    if live == 0:
        record_revision(1, document, by=author, note=f"from {path.name}")
        changes.bump(parts=[changes.Part.ROUTES])
        done = f"{path}: published as revision 1"
    else:
        withdraw_open_changes(author)
        if not differ(document, table_of(live)):
            return f"{path}: reads like the live revision {live}"
        change = draft(author=author, title=f"{path.name} was edited", base_revision=live, document=document)
        carry(change, Move.SUBMIT, by=author)
        done = f"{path}: was edited; its table is route change {change.pk}, in review"
    logger.info(done)
    return done


@transaction.atomic
def refused(path: Path, digest: str, problem: str) -> str:
    """Say once what is wrong with a file that cannot be used."""
    if already_seen(path, digest):
        return ""
    remember(path, digest, problem=problem)
    sentence = f"{path}: not used, the live routes stay as they are: {problem}"
    logger.error(sentence)
    return sentence


def withdraw_open_changes(author: User) -> None:
    """An older content of the file is nobody's wish any more."""
    may_withdraw = [status for status in Status if Move.WITHDRAW in MOVES[status]]
    for change in RouteChange.objects.select_for_update().filter(author=author, status__in=may_withdraw):
        carry(change, Move.WITHDRAW, by=author, comment="the file was edited again")


def already_seen(path: Path, digest: str) -> bool:
    """Whether this content is the last that was seen of the file."""
    last = AuditEvent.objects.filter(action=READ, target=str(path)).order_by("-pk").first()
    return last is not None and last.detail["sha256"] == digest


def remember(path: Path, digest: str, **detail: str) -> None:
    audit(f"user:{AUTHOR}", READ, str(path), sha256=digest, **detail)


def route_file_user() -> User:
    """The author of what the file says: a user that nobody can log in as."""
    user, is_new = User.objects.get_or_create(username=AUTHOR, defaults={"is_active": False})
    if is_new:
        user.set_unusable_password()
        user.save(update_fields=["password"])
    return user


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
