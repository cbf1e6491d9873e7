"""Which state the static files are in: a part of their addresses, so that browsers may keep each for ever."""

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("django", "django-unfold", "drf-spectacular-sidecar", "djangorestframework")
"""Whose files are served beside ours; their versions stand for their contents."""


def state_of(folder: Path, packages: Sequence[str] = PACKAGES) -> str:
    """Eight hex digits, the same on every host with the same files."""
    digest = hashlib.blake2b(digest_size=4)
    for package in packages:
        digest.update(f"{package} {version(package)}\n".encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
