"""Fingerprints of paths: text that changes when the content does.

User files are hashed; those of Python, installed libraries and Opstage are identified by size and time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from functools import cache

from ...loading import is_own_file

_LARGEST = 8 << 20
_PYTHON = os.path.dirname(os.__file__) + os.sep
MISSING = "missing"


def is_installed(path: str) -> bool:
    """Whether a file belongs to a library or to Opstage."""
    return not is_own_file(path)


@cache
def content_of(path: str) -> str | None:
    """Return the fingerprint of a file that was read; None for one of Python itself, which its version identifies."""
    if path.startswith(_PYTHON) and "site-packages" not in path and "dist-packages" not in path:
        return None
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return "no file"
        if is_installed(path) or status.st_size > _LARGEST:
            return f"{status.st_size} {status.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return MISSING


@cache
def folder_of(path: str) -> str | None:
    """Return the fingerprint of a listed folder, the names in it; None for one of Python itself."""
    if f"{path}{os.sep}".startswith(_PYTHON) and "site-packages" not in path and "dist-packages" not in path:
        return None
    try:
        names = sorted(name for name in os.listdir(path) if name != "__pycache__")
    except OSError:
        return MISSING
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


@cache
def status_of(path: str) -> str | None:
    """Return the fingerprint of a path that was looked up."""
    if path.startswith(_PYTHON):
        return None
    try:
        status = os.stat(path)
    except OSError:
        return MISSING
    return "folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_mode} {status.st_size} {status.st_mtime_ns}"


def forget() -> None:
    """Clear the caches, so that every path is examined again."""
    for known in (content_of, folder_of, status_of):
        known.cache_clear()


OF = {"content": content_of, "folder": folder_of, "status": status_of}
"""The functions by kind of access."""

PYTHON = f"{sys.version} {sys.executable} {sys.prefix}"
