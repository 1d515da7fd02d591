"""The contents of a path, as text that is another one when it changes.

Files of one's own are read; those of Python, of installed libraries and of Opstage are known by their size and time.
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
    """Of a file that was read; None for one of Python itself, whose version says it."""
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
    """Of a folder whose entries were listed: their names; None for one of Python itself."""
    if f"{path}{os.sep}".startswith(_PYTHON) and "site-packages" not in path and "dist-packages" not in path:
        return None
    try:
        names = sorted(name for name in os.listdir(path) if name != "__pycache__")
    except OSError:
        return MISSING
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


@cache
def status_of(path: str) -> str | None:
    """Of a path that was looked for."""
    if path.startswith(_PYTHON):
        return None
    try:
        status = os.stat(path)
    except OSError:
        return MISSING
    return "folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_mode} {status.st_size} {status.st_mtime_ns}"


def forget() -> None:
    """Look anew at every path."""
    for known in (content_of, folder_of, status_of):
        known.cache_clear()


OF = {"content": content_of, "folder": folder_of, "status": status_of}
"""By the kind of question."""

PYTHON = f"{sys.version} {sys.executable} {sys.prefix}"
